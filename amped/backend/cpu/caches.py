"""The caches of this machine's cores."""

from __future__ import annotations

from functools import cache
from pathlib import Path

USUAL = 1 << 20  # bytes of a core's own cache, where the system tells nothing
LEVELS = Path("/sys/devices/system/cpu/cpu0/cache")
UNITS = {"K": 10, "M": 20, "G": 30}


@cache
def own_cache(levels: Path = LEVELS) -> int:
    """Return the bytes of the second level of cache, or what is usual."""
    for folder in sorted(levels.glob("index*")):
        try:
            if (folder / "level").read_text().strip() == "2":
                size = (folder / "size").read_text().strip()
                return int(size[:-1]) << UNITS[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return USUAL
