"""Metrics of a run: events as JSON lines, and totals for the report."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from stat import S_ISREG
from typing import IO, Any

from partitioner.host.memory import resident_memory
from partitioner.store.locks import lock

from ..errors import InputError
from ..methods.driver import Spans

WORK_KINDS = ("copy", "compute", "exchange", "solve")
MAX_LINE = 1 << 20  # bytes read of a line
Extends = Callable[[dict[str, Any]], bool]
PACKAGES = ("numpy", "scipy", "numba", "mpi4py")
CUDA_PACKAGES = ("cupy-cuda12x", "cupy-cuda13x", "nvidia-nccl-cu12", "nvidia-nccl-cu13")


class Metrics:
    """Collects the times of all ranks, and writes events to a file, one JSON object per line. Only rank 0 has a file.

    The file is opened and locked when the run starts; its content stays until the first event. If a write fails, one
    message says so, later events are dropped, and `failed` is true.
    """

    def __init__(
        self,
        path: Path | None = None,
        replace: bool = False,
        extends: Extends | None = None,
        remedy: str = "--force replaces it",
    ) -> None:
        """Open the file at `path`, if any.

        An existing file is an error, which ends with the `remedy`, unless the run may `replace` it or `extends`,
        called with the first event of the file, returns True: the file is of the run that is resumed.
        """
        self.totals: dict[str, float] = defaultdict(float)
        self.by_rank: list[dict[str, float]] = []  # the totals of each rank
        self.iterations: list[float] = []  # seconds of each
        self.failed = False
        self._path, self._is_new, self._keep = path, path is not None and not path.exists(), True
        self._file = None if path is None else _opened(path)
        if path is not None and self._file is not None:
            try:
                self._keep = _checked(path, self._file, replace, extends, remedy)
            except BaseException:
                self.close()
                raise

    @property
    def usual(self) -> float | None:
        """Typical seconds per iteration: the median of the means of consecutive pairs, which may share work."""
        times = self.iterations
        means = sorted((one + other) / 2 for one, other in zip(times, times[1:] or times, strict=False))
        return (means[(len(means) - 1) // 2] + means[len(means) // 2]) / 2 if means else None

    def event(self, name: str, **facts: object) -> None:
        """Write one line: the event's name, the time in seconds since 1970, and its facts."""
        if self._file is None or self.failed:
            return
        try:
            if not self._keep:
                os.ftruncate(self._file.fileno(), 0)
                self._keep = True
            self._file.write(json.dumps({"event": name, "time": round(time.time(), 3), **facts}) + "\n")
            self._file.flush()
        except OSError as error:
            self.failed = True
            warning = InputError(f"cannot write: {error.strerror}; the run continues without metrics", path=self._path)
            print(f"amped: {warning}", file=sys.stderr)

    @property
    def writes(self) -> bool:
        """Whether events are written to a file."""
        return self._file is not None and not self.failed

    def add(self, by_rank: list[Spans]) -> None:
        """Add the spans of all ranks to `by_rank`, and their mean to `totals`."""
        self.by_rank = self.by_rank or [defaultdict[str, float](float) for _ in by_rank]
        for rank, spans in zip(self.by_rank, by_rank, strict=True):
            for (kind, _), seconds in spans.items():
                self.totals[kind] += seconds / len(by_rank)
                rank[kind] += seconds

    def close(self) -> None:
        """Close the file; remove it if it is new and empty."""
        if self._file is None or self._path is None:
            return
        with contextlib.suppress(OSError):
            if self._is_new and not os.fstat(self._file.fileno()).st_size:
                self._path.unlink()
        with contextlib.suppress(OSError):  # each event was flushed, or its failure reported
            self._file.close()
        self._file = None


def split(by_rank: list[Spans]) -> list[dict[str, Any]]:
    """Return the spans of all ranks as records, in seconds."""
    modes = sorted({mode for spans in by_rank for _, mode in spans})
    return [
        {"rank": rank, "mode": mode, **{kind: round(spans.get((kind, mode), 0.0), 9) for kind in WORK_KINDS}}
        for rank, spans in enumerate(by_rank)
        for mode in modes
    ]


def _opened(path: Path) -> IO[str]:
    """Open a file, or create it, to append text; a pipe without a reader is an error."""
    if path.is_symlink() and not path.exists():
        raise InputError("is a broken symbolic link", path=path)
    flags = os.O_RDWR if path.is_file() or not path.exists() else os.O_WRONLY
    try:
        handle = os.open(path, flags | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", path=path) from None
    os.set_blocking(handle, True)
    return open(handle, "a", encoding="utf-8")


def _checked(path: Path, file: IO[str], replace: bool, extends: Extends | None, remedy: str) -> bool:
    """Lock a file; return whether to keep its content; raise `InputError` if the run may not write to it."""
    status = os.fstat(file.fileno())
    if not S_ISREG(status.st_mode):
        if not replace:
            raise InputError(f"exists already; {remedy.replace('replaces', 'writes to')}", path=path)
        return True
    lock(file.fileno(), path, path)
    if not status.st_size:
        return True
    if extends is not None and extends(_first_event(path)):
        if os.pread(file.fileno(), 1, status.st_size - 1) != b"\n":  # a line truncated by a full disk
            file.write("\n")
        return True
    if not replace:
        other = "" if extends is None else " and does not belong to the resumed run"
        raise InputError(f"exists already{other}; {remedy}", path=path)
    return False


def _first_event(path: Path) -> dict[str, Any]:
    """Return the first event in a metrics file; empty if the file has none."""
    with contextlib.suppress(OSError, ValueError, RecursionError), open(path, "rb") as file:
        event = json.loads(file.readline(MAX_LINE))
        if isinstance(event, dict):
            return event
    return {}


def peak_resident_bytes() -> int:
    """Return the peak resident memory of this process."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resident_memory()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the loaded packages that results depend on."""
    from partitioner import __version__

    numbers = {"python": platform.python_version(), "amped": __version__}
    numbers |= {name: sys.modules[name].__version__ for name in PACKAGES if name in sys.modules}
    if "cupy" in sys.modules:
        from importlib.metadata import PackageNotFoundError, version  # takes 20 ms to import

        for package in CUDA_PACKAGES:
            with contextlib.suppress(PackageNotFoundError):
                numbers[package] = version(package)
    return numbers
