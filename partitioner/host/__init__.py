"""The host: threads, ranks, signals, checksums, caches and compiled code."""
