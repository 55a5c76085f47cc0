"""Compiled CPU kernels, and the code that splits work between their threads."""
