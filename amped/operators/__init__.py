"""A tensor placed on ranks, and what can be computed with it."""
