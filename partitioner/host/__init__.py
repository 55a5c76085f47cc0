"""Operating system and process: threads, ranks, signals, checksums, caches and compiled code."""
