"""Operators of dense tensors."""
