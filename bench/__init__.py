"""Benchmarks: each writes a JSON result with the machine, versions, date, medians and spread."""
