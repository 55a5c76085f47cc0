"""Decompositions, written in terms of the engine."""
