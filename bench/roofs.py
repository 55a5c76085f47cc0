"""Pictures that set kernels against the memory's measured speed: GenTen's figures 7 and 8b, and a roofline.

Two models of the bytes that a mode's MTTKRP moves, for N modes, R columns of s bytes and P nonzeros:

- GenTen's (7.1), as it stands in the paper: ``((N R + 3) s + 4 N) P``, with 4-byte indices.
- The roofline's: each nonzero's record as it is packed, and a row of each input factor matrix, ``R s (N - 1)``; then
  the output in double precision, once a row, or (`atomic`) read and written in the factors' precision once a nonzero.

Neither knows of caches, shared memory or registers: what reuses rows there lies above the roofs of its own model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .cases import Case, grouped, in_place, select, sweep, tensor

ITEM = {"fp32": 4, "fp64": 8}
GENTEN_RANK = 16  # of its figure 8b
KERNELS_ALONE = 2  # the fewest kernels, or ranks, that make a picture


def genten_bytes(case: Case) -> float:
    """Return the bytes of a sweep by GenTen's model."""
    order, item = len(case["lengths"]), ITEM[case["precision"]]
    return float(((order * case["rank"] + 3) * item + 4 * order) * case["nonzeros"] * order)


def model_bytes(case: Case) -> float:
    """Return the bytes of a sweep by the roofline's model."""
    order, row = len(case["lengths"]), case["rank"] * ITEM[case["precision"]]
    records = sum(in_place(case, mode, "bytes") for mode in range(order))
    gathered = (order - 1) * row * case["nonzeros"] * order
    stored = 8 * case["rank"] * sum(case["lengths"])
    if case["kernel"] == "atomic":
        stored = 2 * row * case["nonzeros"] * order
    return float(records + gathered + stored)


def flops(case: Case) -> int:
    """Return the multiplications and additions of a sweep."""
    order = len(case["lengths"])
    return int(order * order * case["rank"] * case["nonzeros"])


def _alone(cases: Sequence[Case]) -> list[Case]:
    """Return the cases of one rank, on a GPU where there are any, whose nonzeros stay on the device."""
    some = [c for c in cases if c["ranks"] == 1 and c["placement"] != "stream" and c["ceilings"]]
    return [c for c in some if c["device"] == "cuda"] or some


def bandwidth(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Bandwidth by GenTen's model, as a share of the measured copy, over the columns of the factor matrices."""
    lines = grouped(_alone(cases), lambda c: (tensor(c), c["precision"], c["kernel"]))
    lines = {name: some for name, some in lines.items() if len({c["rank"] for c in some}) >= KERNELS_ALONE}
    if not lines:
        return None
    figure, axes = pyplot.subplots(figsize=(5.5, 3.5))
    for name, some in lines.items():
        some.sort(key=lambda c: int(c["rank"]))
        shares = [100 * genten_bytes(c) / sweep(c, False) / 1e9 / max(c["ceilings"]["copy"]) for c in some]
        axes.plot([c["rank"] for c in some], shares, "o-", label=", ".join(name))
    axes.axhline(100, color="k", linestyle=":")
    axes.set(xlabel="columns of the factor matrices", ylabel="% of the bandwidth of a copy", ylim=(0, None))
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def kernels(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Milliseconds of a sweep with each kernel, side by side, on one GPU."""
    some = _alone([c for c in cases if c["precision"] == "fp32"])
    some = select(some, rank=GENTEN_RANK) or some
    tensors = grouped(some, lambda c: (tensor(c), c["rank"]))
    tensors = {t: same for t, same in tensors.items() if len({c["kernel"] for c in same}) >= KERNELS_ALONE}
    if not tensors:
        return None
    names = sorted({c["kernel"] for same in tensors.values() for c in same})
    figure, axes = pyplot.subplots(figsize=(2 + 1.6 * len(tensors), 3.5))
    for k, kernel in enumerate(names):
        here = [(x, c) for x, same in enumerate(tensors.values()) for c in same if c["kernel"] == kernel]
        at = [x + (k - (len(names) - 1) / 2) * 0.8 / len(names) for x, _ in here]
        axes.bar(at, [sweep(c, False) * 1e3 for _, c in here], 0.75 / len(names), label=kernel)
    axes.set_xticks(range(len(tensors)), [f"{name}\nrank {rank}" for name, rank in tensors])
    axes.set(yscale="log", ylabel="ms a sweep over all modes")
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def roofline(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Each kernel's operations a second and a byte of its model, under the measured copy and gathers."""
    chosen = [c for c in _alone(cases) if c["precision"] == "fp32"]
    if not chosen:
        return None
    figure, axes = pyplot.subplots(figsize=(5.5, 4))
    intensity = [flops(c) / model_bytes(c) for c in chosen]
    x = np.array([min(intensity) * 0.8, max(intensity) * 1.25])
    found = chosen[-1]["ceilings"]
    sizes = sorted(found["gather"], key=float)
    roofs = {"copy": max(found["copy"])} | {f"rows out of {s} MB": found["gather"][s] for s in (sizes[0], sizes[-1])}
    for (name, speed), style in zip(roofs.items(), ("-", "--", ":"), strict=True):
        axes.loglog(x, x * speed, "k" + style, linewidth=1, label=f"{name}: {speed:,.0f} GB/s")
    for k, (kernel, some) in enumerate(grouped(chosen, lambda c: c["kernel"]).items()):
        points = [(flops(c) / model_bytes(c), flops(c) / sweep(c, False) / 1e9) for c in some]
        axes.plot(*zip(*points, strict=True), "o", color=f"C{k}", label=kernel)
        for case, point in zip(some, points, strict=True):
            axes.annotate(f" {case['shape']} R{case['rank']}", point, fontsize=5)
    axes.set(xlabel="flops a byte of the model (records, gathered rows, output)", ylabel="Gflop/s")
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
