"""Distributions of a sparse tensor over ranks: the bytes that they exchange, their forecast time, and the choice."""
