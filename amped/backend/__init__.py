"""Where arrays live and kernels run: two folders, `cpu` and `cuda`, with the same operations.

CUDA is imported only inside `cuda`, and only when a device is asked for.
"""

from __future__ import annotations

from .base import ATOMIC, PERMUTED, Backend, Clock, Shard, Share, Slot, choose

__all__ = ["ATOMIC", "PERMUTED", "Backend", "Clock", "Shard", "Share", "Slot", "choose"]
