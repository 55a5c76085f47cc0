"""Decomposition methods, written in terms of an operator, and the driver loop that they share."""
