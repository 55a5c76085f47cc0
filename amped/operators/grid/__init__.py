"""Sparse tensors that are distributed over a grid of ranks."""
