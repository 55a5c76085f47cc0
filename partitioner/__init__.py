"""The host side of amped: read a sparse tensor, sort it by each mode, cut it into shards, store it."""
