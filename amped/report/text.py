"""The text that a run prints about its tensor, its plan and its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from signal import Signals
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.tensors.sparse import SparseTensor

from ..methods.driver import MethodState, StopRule
from ..methods.prediction import Forecast
from ..options import Options

LOW = 10  # times the tolerance: a fit below that is hardly one
FITTING = 80  # percent of the memory counted on, where that was too much
REACHED = {"loglikelihood": "no KKT violation is above"}  # by the most telling number, where another one decides
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def human(count: float) -> str:
    """Return a number of bytes in a unit that keeps it short."""
    unit = 0
    while count >= 1024 and unit < len(UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {UNITS[unit]}" if unit == 0 else f"{count:.1f} {UNITS[unit]}"


def rate(count: float) -> str:
    """Return a number of things with three significant digits, in millions where there are so many."""
    if count >= 1e6:
        return f"{rate(count / 1e6)} million"
    return f"{float(f'{count:.3g}'):,.10g}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return rows of cells in right-aligned columns."""
    cells = [[str(c) for c in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  " + "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells)


def progress(state: MethodState) -> str:
    """Return how far a decomposition is."""
    text = f"iteration {state.iterations}"
    return f"{text} and {state.mode} mode{'s' * (state.mode > 1)} of the next" if state.mode else text


def figure(number: float) -> str:
    """Return a number with six significant digits; just below 1, as good fits are, with two of what is missing."""
    if not math.isfinite(number) or not 1e-4 <= abs(number) < 1e15:
        return f"{number:.6g}"
    missing = 1 - abs(number)
    digits = 5 - math.floor(math.log10(abs(number)))
    if 1e-14 < missing < 1e-5:
        digits = 1 - math.floor(math.log10(missing))
    return f"{number:,.{max(0, digits)}f}"


def _headline(state: MethodState) -> str:
    name, numbers = next(iter(state.series.items()))
    return f"{name} {figure(numbers[-1])}" if numbers else f"no {name}"


def iteration_facts(state: MethodState, change: float | None) -> str:
    """Return what a decomposition has reached after an iteration."""
    return _headline(state) + (f"  change {change:+.1e}" if change is not None else "")


def end_line(state: MethodState, told: Signals | None, rule: StopRule) -> str:
    """Return how a decomposition ended, and why: told to by a signal, or by its rule."""
    if told is not None:
        last = f" after iteration {state.iterations}" * bool(state.iterations and state.mode)  # the model is further on
        return f"{_headline(state)}{last}: stopped by {told.name} after {progress(state)}"
    reached = REACHED.get(next(iter(state.series)), "the {} changed by less than").format(next(iter(state.series)))
    why = (
        f"converged: {reached} --tol {rule.tol:g}"
        if state.converged
        else f"not converged: --max-iters {rule.max_iters} reached"
    )
    return f"{_headline(state)} after {state.iterations} iteration{'s' * (state.iterations > 1)} ({why})"


def low_fit(converged: bool, fits: Sequence[float], tol: float) -> str | None:
    """Return what to do where a decomposition has converged at a fit so low that its small change says little."""
    if not converged or not fits or fits[-1] >= LOW * tol:
        return None
    return (
        f"the fit, {fits[-1]:.1e}, is below {LOW} times tol, {tol:g}: that it changed by less than tol says little; "
        "a smaller tol, or 0, goes on; another seed or start, or more components, may fit better"
    )


def memory_line(by_rank: Sequence[dict[str, tuple[int, int]]]) -> str:
    """Return the bytes used and planned at each place, each of the rank that used most."""
    most = {place: max(ranks[place] for ranks in by_rank) for place in by_rank[0]}
    texts = (f"{place} {human(used)} ({human(plan)} planned)" for place, (used, plan) in most.items())
    return "memory of a rank: " + ", ".join(texts)


def out_of_memory(error: MemoryError, room: int, on_host: bool, options: Options) -> str:
    """Return what to do where a run did not fit though its plan, for `room` bytes of device memory, said so."""
    if on_host:
        return _out_of_host_memory(error, room, options)
    less = room * FITTING // 100
    return (
        f"{error or 'out of memory'}; {human(room)} of device memory were counted on: something else needs some. "
        f"With --device-memory {less >> 20}M, more is streamed and the rest fits; so do more ranks, or a lower --rank"
    )


def _out_of_host_memory(error: MemoryError, room: int, options: Options) -> str:
    """Return the same where the device is the host: what would be streamed is in that memory, too."""
    ways = []
    if options.placement != "stream":
        ways.append("a store (python -m partitioner) with --placement stream leaves nonzeros on disk")
    if options.placement != "stream" and options.kernel == "auto":
        ways.append("--kernel permuted keeps one copy of them, not one for each mode")
    if options.precision == "fp64":
        ways.append("--precision fp32 halves factor matrices")
    ways.append("a lower --rank takes less, and so do fewer ranks on this host, as each has all factor matrices")
    return f"{error or 'out of memory'}; {human(room)} of this host's memory were counted on: " + "; ".join(ways)


def skew(tensor: SparseTensor) -> list[dict[str, Any]]:
    """Return for each mode how unevenly its rows are filled."""
    result = []
    for mode, length in enumerate(tensor.shape):
        ends = np.flatnonzero(np.diff(np.sort(tensor.columns[mode])))
        counts: NDArray[np.int64] = np.diff(np.concatenate(([-1], ends, [tensor.nnz - 1])))
        top = np.sort(counts)[::-1][: max(1, length // 100)].sum()
        rows = {"length": length, "empty": length - counts.size, "mean": tensor.nnz / length}
        heaviest = {"heaviest row": counts.max() / tensor.nnz, "heaviest 1% of rows": top / tensor.nnz}
        result.append({"mode": mode, **rows, "largest": int(counts.max()), **heaviest})
    return result


def skew_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return `skew` as text."""
    head = ("mode", "length", "empty rows", "nonzeros a row", "in the heaviest", "of all", "in the heaviest 1%")
    cells = [
        (
            r["mode"], f"{r['length']:,}", f"{r['empty']:,}", f"{r['mean']:.1f}", f"{r['largest']:,}",
            f"{r['heaviest row']:.1%}", f"{r['heaviest 1% of rows']:.1%}",
        )
        for r in rows
    ]  # fmt: skip
    return table(head, cells)


def time_line(totals: dict[str, float], seconds: float) -> str:
    """Return how the seconds of a run were spent, as means over the ranks."""
    parts = [f"{kind} {s:.3g} s" for kind, s in totals.items() if s > 0 and kind != "tune"]
    return f"time {seconds:.3g} s: " + ", ".join(parts)


def forecast_line(forecast: Forecast | None, doubt: str | None) -> str:
    """Return what an iteration will take, or why that is not told."""
    if forecast is None or doubt:
        return f"how long an iteration takes is not told: {doubt}"
    return f"an iteration will take about {forecast}"
