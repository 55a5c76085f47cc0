"""What a run measures: JSON lines for programs, and sums for the report."""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import psutil

from ..decomp.driver import Spans
from ..errors import InputError

KINDS = ("copy", "compute", "exchange", "solve")
PACKAGES = ("numpy", "numba", "mpi4py", "cupy-cuda12x", "cupy-cuda13x", "nvidia-nccl-cu12", "nvidia-nccl-cu13")


class Metrics:
    """Collects the ranks' times; writes an event a line if given a file. Only rank 0 holds one that writes."""

    def __init__(self, path: Path | None = None, append: bool = False) -> None:
        self._file: IO[str] | None = None
        if path is not None:
            try:
                self._file = open(path, "a" if append else "w")  # noqa: SIM115
            except OSError as error:
                raise InputError(f"cannot write: {error.strerror}", path=path) from None
        self.totals: dict[str, float] = defaultdict(float)
        self.iterations: list[float] = []  # seconds of each

    def event(self, name: str, **facts: Any) -> None:
        """Write one line: the event's name, the time in seconds since 1970, and its facts."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps({"event": name, "time": round(time.time(), 3), **facts}) + "\n")
            self._file.flush()
        except OSError as error:
            raise InputError(f"cannot write: {error.strerror}", path=self._file.name) from None

    def spans(self, by_rank: list[Spans]) -> list[dict[str, Any]]:
        """Add up the ranks' spans (their mean goes to `totals`); return them as records, in seconds."""
        for spans in by_rank:
            for (kind, _), seconds in spans.items():
                self.totals[kind] += seconds / len(by_rank)
        modes = sorted({mode for spans in by_rank for _, mode in spans})
        return [
            {"rank": rank, "mode": mode, **{kind: round(spans.get((kind, mode), 0.0), 9) for kind in KINDS}}
            for rank, spans in enumerate(by_rank)
            for mode in modes
        ]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # each event was flushed, or its failure told
                self._file.close()


def peak_resident_bytes() -> int:
    """Return the most memory that this process has had resident."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resident_bytes()


def resident_bytes() -> int:
    """Return the memory that this process has resident now."""
    resident: int = psutil.Process().memory_info().rss
    return resident


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a result depends on."""
    from partitioner import __version__

    found = {"python": platform.python_version(), "amped": __version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
