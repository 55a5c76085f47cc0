"""Operators: tensors distributed over ranks, and the products computed from them."""
