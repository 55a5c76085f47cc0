"""Host side of amped: read a sparse tensor, sort it by each mode, cut it into shards and store it."""

from .host.signals import at_start

__version__ = "0.1.0"

at_start()  # before the slow imports
