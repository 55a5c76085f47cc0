"""Shards: the nonzeros of each mode sorted, cut by output index, and dealt to ranks."""
