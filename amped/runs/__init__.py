"""Runs: options become a machine, a tensor on its ranks and a method; scans, compression and checkpoints."""
