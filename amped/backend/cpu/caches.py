"""Cache sizes of this machine's processor, and cache-aligned memory."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Element

LANE = 32  # bytes of a factor row per element of `lanes`; see `simd.vectors`
LINE = 64  # bytes of a cache line
USUAL = 1 << 20  # L2 cache of a core in bytes, if the system does not report it
LEVELS = Path("/sys/devices/system/cpu/cpu0/cache")
UNITS = {"K": 10, "M": 20, "G": 30}


@cache
def own_cache(levels: Path = LEVELS) -> int:
    """Return the size of a core's L2 cache in bytes; a typical size if unknown."""
    for folder in sorted(levels.glob("index*")):
        try:
            if (folder / "level").read_text().strip() == "2":
                size = (folder / "size").read_text().strip()
                return int(size[:-1]) << UNITS[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return USUAL


def aligned(shape: tuple[int, ...], dtype: np.dtype[Element]) -> NDArray[Element]:
    """Return an array aligned to a cache line, so that rows of whole lines touch as few lines as possible."""
    count = math.prod(shape) * dtype.itemsize
    memory = np.empty(count + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + count].view(dtype).reshape(shape)
