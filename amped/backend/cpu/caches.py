"""Cache sizes of this machine's processor."""

from __future__ import annotations

from functools import cache
from pathlib import Path

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
