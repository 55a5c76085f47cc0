"""Shards: the nonzeros sorted by each mode, cut by output index and distributed to ranks."""
