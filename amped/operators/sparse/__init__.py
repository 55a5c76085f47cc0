"""Sparse tensors on all ranks."""
