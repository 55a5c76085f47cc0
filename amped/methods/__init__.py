"""Decompositions: the one loop, and methods written in terms of an operator."""
