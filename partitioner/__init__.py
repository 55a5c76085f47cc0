"""The host side of amped: read a sparse tensor, sort it by each mode, cut it into shards, store it."""

__version__ = "0.1.0"
