"""Tensors on the host: sparse and dense, their labels, and conversion from and to other libraries."""
