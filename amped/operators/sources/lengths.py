"""Checks of the lengths of modes, before anything of that length is allocated.

An index can be a time stamp or an identifier: a mode then has billions of indices, of which a few are used. Factor
matrices have a row for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from partitioner.host.memory import available_memory
from partitioner.wording import setting

from ...errors import InputError
from ...parallel.mpi import Comm
from ..memory import DeviceMemoryError
from ..placement import Setting
from .protocols import DescribedSource, ModeCopies

ROUNDED = 2  # bytes of a number in the 16-bit copy of a factor matrix


def check_lengths(source: DescribedSource, setting: Setting, comm: Comm, elsewhere: bool = False) -> None:
    """Raise `InputError` on all ranks if arrays of the length of a mode do not fit into memory. Collective.

    Counted are the factor matrices on the device, and matrices to start from in the host's memory; on a CPU both are
    there. All else is for the plan to count. With `elsewhere`, the host's memory says nothing.
    """
    device, host = _bytes(source.shape, setting)
    free = host if elsewhere else available_memory() // comm.local_size
    wanted = ((device, setting.memory, "device memory"), (host, free, "host memory"))
    lacking = [each for each in wanted if each[0] > each[1]]
    exceeded = [each for ranks in comm.allgather(lacking) for each in ranks]
    if not exceeded:
        return
    needed, limit, place = max(exceeded)
    mode, used, text = _longest(source)
    raise InputError(
        f"{text}: factor matrices of {setting.ranks[mode]} columns need {needed:,} bytes of {place}, but "
        f"{max(0, limit):,} are available; "
        + (_compacting(source) if used < source.shape[mode] else "use more memory or a lower rank"),
        path=source.path,
    )


@contextmanager
def unused_named(source: DescribedSource | ModeCopies) -> Iterator[None]:
    """Add to an error about device memory, which all ranks raise, that most indices of a mode are unused. Collective.

    Memory that threads need for the rows of a mode, for example, is not part of `check_lengths`.
    """
    try:
        yield
    except DeviceMemoryError as error:
        mode, used, text = _longest(source)
        if 2 * used > source.shape[mode]:
            raise
        raise InputError(f"{text}: {error.cause}, or {_compacting(source)}", path=source.path) from None


def _longest(source: DescribedSource | ModeCopies) -> tuple[int, int, str]:
    """Return the number of the longest mode, of its used indices, and both in words. Collective."""
    shape = source.shape
    mode = max(range(len(shape)), key=lambda m: shape[m])
    used = source.used(mode)
    return mode, used, f"mode {mode} has length {shape[mode]:,}, of which {used:,} indices are used"


def _compacting(source: DescribedSource | ModeCopies) -> str:
    if source.stored:
        return f"write the store again from its file with {setting('compact')}, which renumbers the used indices"
    return f"reading with {setting('compact')} renumbers the used indices and keeps their labels"


def _bytes(shape: Sequence[int], setting: Setting) -> tuple[int, int]:
    """Return the bytes of arrays of the length of modes, in device and in host memory."""
    options, device = setting.options, setting.device
    item, narrow = options.dtype.itemsize, 0 if options.gather == "full" else ROUNDED
    rows = [
        (length, rank, device.stride(rank, narrow or item)) for length, rank in zip(shape, setting.ranks, strict=True)
    ]
    placed = sum(length * stride * (item + narrow) for length, _, stride in rows)
    start = sum(length * rank for length, rank, _ in rows) * item
    return placed, start + (placed if device.on_host else 0)
