"""Seconds of work on a GPU, by events on its own time line."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import cupy

HIGHEST = -(1 << 30)  # stream priority; CUDA clamps it to the highest there is
EXTERNAL = 1  # CU_EVENT_RECORD_EXTERNAL: a node of a graph records the event, each time the graph is launched

Seconds = dict[tuple[str, int], float]
Span = tuple[str, int, Any, Any]


class CudaClock:
    """See `Clock`. Times are taken by events, so nothing waits until they are collected."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._spare: list[Any] = []
        self._marks: Marks | None = None  # while work is noted down
        self._replayed: Seconds | None = None

    @contextmanager
    def span(self, kind: str, mode: int) -> Iterator[None]:
        with self.span_on(cupy.cuda.get_current_stream(), kind, mode):
            yield

    @contextmanager
    def span_on(self, stream: Any, kind: str, mode: int) -> Iterator[None]:
        """Count the work queued on another stream."""
        if self._marks:
            with self._marks.span(stream, kind, mode):
                yield
            return
        start, stop = (self._spare.pop() if self._spare else cupy.cuda.Event() for _ in range(2))
        start.record(stream)
        try:
            yield
        finally:
            stop.record(stream)
            self._spans.append((kind, mode, start, stop))

    @contextmanager
    def noting(self, marks: Marks) -> Iterator[None]:
        """Have times taken by `marks` inside the block, where work is noted down."""
        self._marks = marks
        try:
            yield
        finally:
            self._marks = None

    def replayed(self, seconds: Seconds) -> None:
        """Take what a launch of noted work has taken; it is what is collected next."""
        self._replayed = seconds

    def collect(self) -> Seconds:
        if self._replayed is not None and not self._spans:
            found, self._replayed = self._replayed, None
            return found
        seconds = seconds_of(self._spans)
        self._spare += [event for *_, start, stop in self._spans for event in (start, stop)]
        self._spans.clear()
        self._replayed = None
        return seconds


class Marks:
    """Events that a graph records beside its work, at both ends of each span. They take no multiprocessor."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._beside: dict[int, Any] = {}  # by stream: one beside it, so that the work does not wait for events

    def _mark(self, stream: Any) -> Any:
        event = cupy.cuda.Event()
        beside = self._beside.setdefault(stream.ptr, cupy.cuda.Stream(non_blocking=True))
        beside.wait_event(stream.record(untimed()))
        status = _driver().cuEventRecordWithFlags(ctypes.c_void_p(event.ptr), ctypes.c_void_p(beside.ptr), EXTERNAL)
        if status:
            raise RuntimeError(f"cuEventRecordWithFlags: CUDA error {status}")
        return event

    @contextmanager
    def span(self, stream: Any, kind: str, mode: int) -> Iterator[None]:
        """Count the work noted down for a stream."""
        start = self._mark(stream)
        yield
        self.spans.append((kind, mode, start, self._mark(stream)))

    def join(self) -> None:
        """Let the current stream wait for all events."""
        for beside in self._beside.values():
            cupy.cuda.get_current_stream().wait_event(beside.record(untimed()))
        self._beside.clear()


def seconds_of(spans: list[Span]) -> Seconds:
    """Wait for the ends of spans; return their seconds by (kind, mode)."""
    seconds: Seconds = defaultdict(float)
    for kind, mode, start, stop in spans:
        stop.synchronize()
        seconds[kind, mode] += cupy.cuda.get_elapsed_time(start, stop) * 1e-3
    return dict(seconds)


def untimed() -> Any:
    """Return a new event that only orders work."""
    return cupy.cuda.Event(disable_timing=True)


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
