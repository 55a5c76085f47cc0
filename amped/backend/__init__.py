"""Devices, the operations that they compute, and the exchange of rows between them.

The folders `cpu`, `cuda` and `null` have the same structure.
"""
