"""Memory of the machine and of this process.

Linux's files are read, because psutil takes a tenth of `import amped` to import.
"""

from __future__ import annotations

import os
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
MACHINE, PROCESS = Path("/proc/meminfo"), Path("/proc/self/statm")


def total_memory() -> int:
    """Return the bytes of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * PAGE


def available_memory() -> int:
    """Return the bytes that processes can allocate without swapping."""
    if MACHINE.exists():
        for line in MACHINE.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    import psutil

    available: int = psutil.virtual_memory().available
    return available


def resident_memory() -> int:
    """Return the resident bytes of this process."""
    if PROCESS.exists():
        return int(PROCESS.read_text().split()[1]) * PAGE
    import psutil

    resident: int = psutil.Process().memory_info().rss
    return resident
