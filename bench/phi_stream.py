"""STREAM: GB/s of copy, scale, add and triad, of arrays that no cache holds, in double precision."""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from amped.backend.cuda.source import compile_options
from amped.backend.device import Device

from . import record
from .phi_problem import Action, seconds

PACKAGES = ("numba",)
MOVED = {"copy": 16, "scale": 16, "add": 24, "triad": 24}
"""Bytes of an element that are read and written; a CPU also reads the lines of `a` before it writes them."""
FLOPS = {"copy": 0, "scale": 1, "add": 1, "triad": 2}
BYTES = {"cuda": 1 << 31, "cpu": 1 << 28}  # of an array
SCALAR, THREADS = 3.0, 256


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add this part's flags."""
    group.add_argument("--stream-bytes", type=int, metavar="BYTES", help="of an array (2 GiB; on a CPU 256 MiB)")


def measure(args: argparse.Namespace, device: Device) -> dict[str, Any]:
    """Run the four operations in turn."""
    count = (args.stream_bytes or BYTES[device.name]) // 8
    times = seconds(device, operations(device, count), args.repeats)
    speeds = {name: [MOVED[name] * count / s / 1e9 for s in each] for name, each in times.items()}
    found = {name: record.summary(each) | {"each": each} for name, each in speeds.items()}
    print(", ".join(f"{name} {s['median']:.1f}" for name, s in found.items()), "GB/s", flush=True)
    intensity = {name: FLOPS[name] / nbytes for name, nbytes in MOVED.items()}
    return {"bytes_of_an_array": 8 * count, "gigabytes_a_second_by_operation": found, "flops_a_byte": intensity}


def operations(device: Device, count: int) -> dict[str, Action]:
    """Return the four operations on arrays of so many numbers."""
    arrays = [device.zeros((count,), np.float64) for _ in range(3)]
    for array, value in zip(arrays, (0.0, 1.0, 2.0), strict=True):
        array.fill(value)
    if device.on_host:
        kernel, threads = _host_kernel(), device.threads.count  # type: ignore[attr-defined]
        return {name: _host(kernel, threads, k, arrays) for k, name in enumerate(MOVED)}
    module = _module(device.number)  # type: ignore[attr-defined]
    return {name: _device(module.get_function(name), arrays) for name in MOVED}


def _host(kernel: Any, threads: int, which: int, arrays: list[Any]) -> Action:
    import numba

    def once() -> None:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        kernel(which, threads, SCALAR, *arrays)

    return once


@cache
def _host_kernel() -> Any:
    import numba

    def kernel(which, parts, s, a, b, c):  # type: ignore[no-untyped-def]
        for part in numba.prange(parts):
            begin, end = part * a.size // parts, (part + 1) * a.size // parts
            if which == 0:
                for i in range(begin, end):
                    a[i] = b[i]
            elif which == 1:
                for i in range(begin, end):
                    a[i] = s * b[i]
            elif which == 2:
                for i in range(begin, end):
                    a[i] = b[i] + c[i]
            else:
                for i in range(begin, end):
                    a[i] = b[i] + s * c[i]

    return numba.njit(parallel=True, fastmath=True)(kernel)


def _device(function: Any, arrays: list[Any]) -> Action:
    pairs = arrays[0].size // 2
    blocks = -(-pairs // THREADS)
    return lambda: function((blocks,), (THREADS,), (*arrays, np.float64(SCALAR), np.int64(pairs)))


@cache
def _module(device: int) -> Any:
    import cupy

    return cupy.RawModule(code=text(), options=compile_options({}))


def text() -> str:
    """Return the CUDA source."""
    return Path(__file__).with_name("stream.cu").read_text()


def draw(pyplot: Any, facts: dict[str, Any]) -> Any:
    """GB/s of each operation, with quartiles."""
    figure, axes = pyplot.subplots(figsize=(4, 2.6))
    for x, (name, speed) in enumerate(facts["gigabytes_a_second_by_operation"].items()):
        low, middle, high = (speed[k] for k in ("quartile_1", "median", "quartile_3"))
        axes.bar(x, middle, yerr=[[middle - low], [high - middle]], color="C0", label=name)
        axes.text(x, middle, f"{middle:,.1f}", ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(len(MOVED)), list(MOVED))
    axes.set(ylabel="GB/s", title=facts["machine"]["devices"][0])
    return figure
