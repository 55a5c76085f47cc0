"""Memory of the machine and of this process, from psutil, which takes a tenth of `import amped` to import."""

from __future__ import annotations


def total_memory() -> int:
    """Return the bytes of the machine's memory."""
    import psutil

    total: int = psutil.virtual_memory().total
    return total


def available_memory() -> int:
    """Return the bytes that processes can allocate without swapping."""
    import psutil

    available: int = psutil.virtual_memory().available
    return available


def resident_memory() -> int:
    """Return the resident bytes of this process."""
    import psutil

    resident: int = psutil.Process().memory_info().rss
    return resident
