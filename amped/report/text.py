"""Text that a run prints about its tensor, plan, progress and result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from signal import Signals
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.tensors.sparse import SparseTensor
from partitioner.wording import parameter, setting

from ..methods.driver import (
    LEAST_DECREASE,
    MethodState,
    StopRule,
    best_iteration,
    held_out_errors,
    held_out_measure,
    is_stale,
)
from ..methods.prediction import Forecast
from ..methods.stopping import WINDOW
from ..options import Options

LOW = 10  # a fit below this multiple of the tolerance is too low to judge convergence
REDUCED = 80  # per cent: suggested reduction of the memory limit after a failure
REACHED = {"loglikelihood": "no KKT violation is above"}  # the stopping test by main metric, if it is another one
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def human(count: float) -> str:
    """Return a number of bytes as text in B, KiB, MiB, GiB or TiB."""
    unit = 0
    while count >= 1024 and unit < len(UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {UNITS[unit]}" if unit == 0 else f"{count:.1f} {UNITS[unit]}"


def rate(count: float) -> str:
    """Return a count with three significant digits, in millions from one million."""
    if count >= 1e6:
        return f"{rate(count / 1e6)} million"
    return f"{float(f'{count:.3g}'):,.10g}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return rows of cells in right-aligned columns."""
    cells = [[str(c) for c in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  " + "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells)


def progress(state: MethodState) -> str:
    """Return the number of completed iterations, and of modes of the current one, as text."""
    text = f"iteration {state.iterations}"
    return f"{text} and {state.mode} mode{'s' * (state.mode > 1)} of the next" if state.mode else text


def figure(number: float) -> str:
    """Return a number with six significant digits; just below 1, with two significant digits of the difference."""
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
    """Return the main metric after an iteration, and its change."""
    errors = held_out_errors(state)
    held_out = f"  held-out {held_out_measure(state)} {figure(errors[-1])}" if errors else ""
    return _headline(state) + (f"  change {change:+.1e}" if change is not None else "") + held_out


def end_line(state: MethodState, signal: Signals | None, rule: StopRule, quiet: int = 1) -> str:
    """Return the main metric at the end of a decomposition, and the reason for the end: a signal or the rule.

    `quiet`: see `Method`.
    """
    if signal is not None:
        # The metric is that of the last complete iteration; the model may include modes of the next one.
        last = f" after iteration {state.iterations}" * bool(state.iterations and state.mode)
        return f"{_headline(state)}{last}: stopped by {signal.name} after {progress(state)}"
    if not state.converged and state.iterations < rule.max_iters:
        return f"{_headline(state)} after {progress(state)}: stopped by the callback"
    ending = f" after {state.iterations} iteration{'s' * (state.iterations > 1)} ({_reason(state, rule, quiet)})"
    return f"{_headline(state)}{ending}{_kept(state)}"


def _reason(state: MethodState, rule: StopRule, quiet: int) -> str:
    """Return why a decomposition ended."""
    if not state.converged:
        return f"not converged: the limit of {rule.max_iters} iterations ({parameter('max_iters')}) is reached"
    if is_stale(state, rule.patience):
        measure, count = held_out_measure(state), rule.patience
        return f"the held-out {measure} fell by less than {LEAST_DECREASE:.2%} in {count} iterations"
    if rule.forecast:
        return f"converged: {WINDOW} iterations gain less than {setting('tol', rule.tol)}"
    main = next(iter(state.series))
    reached = REACHED.get(main, f"the {main} changed by less than")
    each = f" in each of the last {quiet} iterations" if quiet > 1 else ""
    return f"converged: {reached} {setting('tol', rule.tol)}{each}"


def _kept(state: MethodState) -> str:
    """Return the best iteration on held-out elements, if there are any, as the end of a line."""
    best = best_iteration(state)
    if best is None:
        return ""
    return f"; best held-out {held_out_measure(state)} {figure(held_out_errors(state)[best - 1])}, iteration {best}"


def low_fit(converged: bool, fits: Sequence[float], tol: float) -> str | None:
    """Return a warning if a decomposition converged at a fit too low for the stopping test; otherwise None."""
    if not converged or not fits or fits[-1] >= LOW * tol:
        return None
    return (
        f"the fit, {fits[-1]:.1e}, is below {LOW} times tol, {tol:g}, so a change below tol does not show convergence: "
        "use a smaller tol, or 0, to continue; another seed, another start or more components may fit better"
    )


def memory_line(by_rank: Sequence[dict[str, tuple[int, int]]]) -> str:
    """Return the bytes used and planned on host and device, each of the rank that used most."""
    most = {place: max(ranks[place] for ranks in by_rank) for place in by_rank[0]}
    texts = (f"{place} {human(used)} ({human(plan)} planned)" for place, (used, plan) in most.items())
    return "memory per rank: " + ", ".join(texts)


def out_of_memory(error: MemoryError, limit: int, on_host: bool, options: Options) -> str:
    """Return a message with remedies for a run that exceeded memory although its plan fitted `limit` bytes."""
    if on_host:
        return _out_of_host_memory(error, limit, options)
    less = limit * REDUCED // 100
    remedy = parameter(f"device-memory {less >> 20}M", f"device_memory={less}")
    return (
        f"{error or 'out of memory'}; {human(limit)} of device memory were planned, but other programs use some of it. "
        f"Use {remedy} to stream more nonzeros, more ranks, or a lower {parameter('rank')}"
    )


def _out_of_host_memory(error: MemoryError, limit: int, options: Options) -> str:
    """Return the same for the CPU device, whose streamed nonzeros are in host memory, too."""
    ways = []
    if options.placement != "stream":
        ways.append(f"a store (amped partition) with {setting('placement', 'stream')} keeps nonzeros on disk")
    if options.placement != "stream" and options.kernel == "auto":
        ways.append(f"{setting('kernel', 'permuted')} stores one copy of the nonzeros instead of one per mode")
    if options.precision == "fp64":
        ways.append(f"{setting('precision', 'fp32')} halves factor matrices")
    ways.append(f"use a lower {parameter('rank')}, or fewer ranks on this host, because each has all factor matrices")
    return f"{error or 'out of memory'}; {human(limit)} of this host's memory were planned: " + "; ".join(ways)


def skew(tensor: SparseTensor) -> list[dict[str, Any]]:
    """Return statistics of the number of nonzeros per row, for each mode."""
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
    head = ("mode", "length", "empty rows", "nonzeros per row", "in the heaviest", "share", "in the heaviest 1%")
    cells = [
        (
            r["mode"], f"{r['length']:,}", f"{r['empty']:,}", f"{r['mean']:.1f}", f"{r['largest']:,}",
            f"{r['heaviest row']:.1%}", f"{r['heaviest 1% of rows']:.1%}",
        )
        for r in rows
    ]  # fmt: skip
    return table(head, cells)


def time_line(totals: dict[str, float], seconds: float) -> str:
    """Return the seconds of a run by kind of work, as means over the ranks."""
    parts = [f"{kind} {s:.3g} s" for kind, s in totals.items() if s > 0 and kind != "tune"]
    return f"time {seconds:.3g} s: " + ", ".join(parts)


def stages_line(seconds: dict[str, float]) -> str:
    """Return the seconds of each stage of a run."""
    return "stages: " + ", ".join(f"{stage} {s:.3g} s" for stage, s in seconds.items())


def forecast_line(forecast: Forecast | None, doubt: str | None) -> str:
    """Return the estimated time per iteration, or the reason why there is no estimate."""
    if forecast is None or doubt:
        return f"No time estimate: {doubt}"
    return f"an iteration will take about {forecast}"
