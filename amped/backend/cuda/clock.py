"""Measurement of GPU time by events."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import cupy

HIGHEST = -(1 << 30)  # stream priority; CUDA clamps it to the highest there is
EXTERNAL = 1  # CU_EVENT_RECORD_EXTERNAL: in a graph, a node that records the event at each launch

Seconds = dict[tuple[str, int], float]
Span = tuple[str, int, Any, Any]


class CudaClock:
    """See `Clock`. Times are recorded by events, so nothing waits until they are collected."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._spare: list[Any] = []
        self._marks: Marks | None = None  # set during a capture
        self._replayed: Seconds | None = None

    @contextmanager
    def span(self, kind: str, mode: int) -> Iterator[None]:
        with self.span_on(cupy.cuda.get_current_stream(), kind, mode):
            yield

    @contextmanager
    def span_on(self, stream: cupy.cuda.Stream, kind: str, mode: int) -> Iterator[None]:
        """Measure the work queued on another stream."""
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
    def capturing(self, marks: Marks) -> Iterator[None]:
        """Record times by `marks` inside the block, in which work is captured."""
        self._marks = marks
        try:
            yield
        finally:
            self._marks = None

    def replayed(self, seconds: Seconds) -> None:
        """Set the seconds of a launch of captured work, to be returned by the next `collect`."""
        self._replayed = seconds

    def collect(self) -> Seconds:
        if self._replayed is not None and not self._spans:
            seconds, self._replayed = self._replayed, None
            return seconds
        seconds = seconds_of(self._spans)
        self._spare += [event for *_, start, stop in self._spans for event in (start, stop)]
        self._spans.clear()
        self._replayed = None
        return seconds


class Marks:
    """Events that a graph records at both ends of each span, on separate streams so that work need not wait."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._event_streams: dict[int, Any] = {}  # by the work's stream

    def _mark(self, stream: cupy.cuda.Stream) -> cupy.cuda.Event:
        event = cupy.cuda.Event()
        event_stream = self._event_streams.setdefault(stream.ptr, cupy.cuda.Stream(non_blocking=True))
        event_stream.wait_event(stream.record(untimed()))
        status = _driver().cuEventRecordWithFlags(
            ctypes.c_void_p(event.ptr), ctypes.c_void_p(event_stream.ptr), EXTERNAL
        )
        if status:
            raise RuntimeError(f"cuEventRecordWithFlags: CUDA error {status}")
        return event

    @contextmanager
    def span(self, stream: cupy.cuda.Stream, kind: str, mode: int) -> Iterator[None]:
        """Measure the work captured from a stream."""
        start = self._mark(stream)
        yield
        self.spans.append((kind, mode, start, self._mark(stream)))

    def join(self) -> None:
        """Make the current stream wait for all events."""
        for event_stream in self._event_streams.values():
            cupy.cuda.get_current_stream().wait_event(event_stream.record(untimed()))
        self._event_streams.clear()


def seconds_of(spans: list[Span]) -> Seconds:
    """Wait for the ends of the spans; return their seconds by (kind, mode)."""
    seconds: Seconds = defaultdict(float)
    for kind, mode, start, stop in spans:
        stop.synchronize()
        seconds[kind, mode] += cupy.cuda.get_elapsed_time(start, stop) * 1e-3
    return dict(seconds)


def untimed() -> cupy.cuda.Event:
    """Return a new event without timing, for ordering work."""
    return cupy.cuda.Event(disable_timing=True)


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
