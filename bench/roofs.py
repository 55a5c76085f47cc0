"""Figures of kernels against the measured memory bandwidth: GenTen's figures 7 and 8b, and a roofline.

Two models of the bytes that a mode's MTTKRP moves, for N modes, R columns of s bytes and P nonzeros:

- GenTen's, equation (7.1) of the paper: ``((N R + 3) s + 4 N) P``, with 4-byte indices.
- The roofline's: each nonzero's packed record and a row of each input factor matrix, ``R s (N - 1)``; then the output,
  in double precision once per row, or (`atomic`) read and written in the factors' precision once per nonzero.

Neither models caches, shared memory or registers: a kernel that reuses rows there lies above its roofs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import pictures
from .cases import Case, grouped, in_place, select, sweep, tensor

ITEM = {"fp32": 4, "fp64": 8}
FAMILIES = ("auto", "segmented", "fibre", "tiled", "blocked", "permuted", "atomic")
GENTEN_RANK = 16  # columns in GenTen's figure 8b
KERNELS_ALONE = 2  # kernels, or ranks, that a picture needs at least


def genten_bytes(case: Case) -> float:
    """Return the bytes of a sweep by GenTen's model."""
    order, item = len(case["lengths"]), ITEM[case["precision"]]
    return float(((order * case["rank"] + 3) * item + 4 * order) * case["nonzeros"] * order)


def model_bytes(case: Case, mode: int) -> float:
    """Return the bytes of a mode's MTTKRP by the roofline's model."""
    order, row = len(case["lengths"]), case["rank"] * ITEM[case["precision"]]
    gathered = (order - 1) * row * case["nonzeros"]
    stored = 8 * case["rank"] * case["lengths"][mode]
    if case["kernel"] == "atomic":
        stored = 2 * row * case["nonzeros"]
    return float(in_place(case, mode, "bytes") + gathered + stored)


def flops(case: Case) -> int:
    """Return the floating-point operations of a mode's MTTKRP."""
    return int(len(case["lengths"]) * case["rank"] * case["nonzeros"])


def _alone(cases: Sequence[Case]) -> list[Case]:
    """Return the resident cases on one rank, on a GPU if there are any."""
    some = [c for c in cases if c["ranks"] == 1 and c["placement"] != "stream" and c["ceilings"]]
    return [c for c in some if c["device"] == "cuda"] or some


def bandwidth(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Bandwidth by GenTen's model, as a share of the measured copy, by columns of the factor matrices."""
    some = _alone(select(cases, values="real"))
    lines = grouped(some, lambda c: (c["kernel"], tensor(c), c["precision"]))
    lines = {name: same for name, same in lines.items() if len({c["rank"] for c in same}) >= KERNELS_ALONE}
    if not lines:
        return None
    names, tensors = _known({kernel for kernel, _, _ in lines}), list(dict.fromkeys(name for _, name, _ in lines))
    size = 2.5 + 3 * len(names), 3.5
    figure, grid = pyplot.subplots(1, len(names), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for (kernel, name, precision), same in lines.items():
        axes, colour = grid.flat[names.index(kernel)], f"C{tensors.index(name)}"
        same.sort(key=lambda c: int(c["rank"]))
        shares = [100 * genten_bytes(c) / sweep(c, False) / 1e9 / max(c["ceilings"]["copy"]) for c in same]
        axes.plot([c["rank"] for c in same], shares, "--" if precision == "fp64" else "-", color=colour)
        for case, share in zip(same, shares, strict=True):
            axes.plot(case["rank"], share, "o", color=colour, markerfacecolor=colour if case["own_ceilings"] else "w")
    ranks = sorted({c["rank"] for same in lines.values() for c in same})
    for axes, kernel in zip(grid.flat, names, strict=True):
        axes.axhline(100, color="k", linestyle=":")
        axes.set_xscale("log", base=2)
        axes.set_xticks(ranks, map(str, ranks))
        axes.set_title(f"kernel {kernel}", fontsize=9)
    _named(grid.flat[0], tensors, "o-")
    grid.flat[0].plot([], [], "k:", label="a copy")
    grid.flat[0].set(ylabel="% of the bandwidth of a copy", ylim=(0, None))
    dashed = "; dashed: fp64" if any(precision == "fp64" for _, _, precision in lines) else ""
    figure.supxlabel(f"columns of the factor matrices\n{_devices(some)}{dashed}", fontsize=8)
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    return figure


def _named(axes: Any, names: Sequence[str], style: str, **more: Any) -> None:
    """Add a legend entry per colour."""
    for k, name in enumerate(names):
        axes.plot([], [], style, color=f"C{k}", label=name, **more)


def _known(kernels: Iterable[str]) -> list[str]:
    """Return the names of kernels or their families, in the order of `FAMILIES`."""
    at = {family: k for k, family in enumerate(FAMILIES)}
    return sorted(kernels, key=lambda name: (at.get(name.split("-")[0], len(at)), name))


def _devices(cases: Sequence[Case]) -> str:
    """Return the cases' device, and the meaning of open circles if ceilings are from another result."""
    text = f"one {', '.join(dict.fromkeys(c['model'] for c in cases))}"
    if all(c["own_ceilings"] for c in cases):
        return text
    return f"{text}; open circles: the copy was measured in another run, on the same model"


def kernels(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Milliseconds of a sweep with each kernel, side by side, on one GPU."""
    some = _alone(cases)
    some = select(some, rank=GENTEN_RANK) or some
    tensors = grouped(some, lambda c: (tensor(c), c["rank"], c["precision"]))
    tensors = {t: same for t, same in tensors.items() if len({c["kernel"] for c in same}) >= KERNELS_ALONE}
    if not tensors:
        return None
    names = _known({c["kernel"] for same in tensors.values() for c in same})
    figure, axes = pyplot.subplots(figsize=(2 + 1.6 * len(tensors), 3.5))
    for k, kernel in enumerate(names):
        here = [(x, c) for x, same in enumerate(tensors.values()) for c in same if c["kernel"] == kernel]
        at = [x + (k - (len(names) - 1) / 2) * 0.8 / len(names) for x, _ in here]
        axes.bar(at, [sweep(c, False) * 1e3 for _, c in here], 0.75 / len(names), label=kernel)
    axes.set_xticks(range(len(tensors)), [f"{name}\n{rank} columns, {precision}" for name, rank, precision in tensors])
    pictures.log_scale(axes)
    axes.set_ylabel("ms a sweep over all modes")
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def roofline(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Each kernel's flop/s by flop/byte of its model, mode by mode, with the measured copy and gathers as roofs."""
    chosen = _alone(select(cases, precision="fp32", values="real"))
    if not chosen:
        return None
    points = [(case, mode, kernel) for case in chosen for mode, kernel in enumerate(case["kernels"][0])]
    families = _known({kernel.split("-")[0] for _, _, kernel in points})
    panels = {family: [p for p in points if p[2].startswith(family)] for family in families}
    x = np.array([f(flops(c) / model_bytes(c, m) for c, m, _ in points) for f in (min, max)]) * (0.95, 1.05)
    columns = min(2, len(panels))
    shape = -(-len(panels) // columns), columns
    size = 1 + 3.2 * shape[1], 0.8 + 2.5 * shape[0]
    figure, grid = pyplot.subplots(*shape, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained")
    shapes = list(dict.fromkeys(case["shape"] for case in chosen))
    ranks = sorted({case["rank"] for case in chosen})
    for axes, (kernel, some) in zip(grid.flat, panels.items(), strict=False):
        _roofs(axes, x, chosen)
        for case, mode, _ in some:
            speed = flops(case) / case["seconds_by_kind"]["compute"]["by mode"][mode][0] / 1e12
            axes.plot(
                flops(case) / model_bytes(case, mode), speed, "o", color=f"C{shapes.index(case['shape'])}",
                markersize=3.5 + 2 * ranks.index(case["rank"]), markerfacecolor="none",
            )  # fmt: skip
        axes.set_title(kernel, fontsize=9)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    _named(grid.flat[0], shapes, "o", markerfacecolor="none")
    plain = [tick for tick in (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5) if x[0] <= tick <= x[1]]
    grid.flat[0].set_xticks(plain, [f"{tick:g}" for tick in plain])
    grid.flat[0].minorticks_off()
    grid.flat[0].yaxis.set_major_formatter("{x:g}")
    larger = f"; larger circles: more columns ({', '.join(map(str, ranks))})" if len(ranks) > 1 else ""
    where = f"one {chosen[-1]['model']}{larger}"
    figure.supxlabel(f"flops a byte of the model (records, gathered rows, output)\n{where}", fontsize=9)
    figure.supylabel("Tflop/s of one mode's MTTKRP", fontsize=9)
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    return figure


def _roofs(axes: Any, x: Any, cases: Sequence[Case]) -> None:
    """Draw the roofs of the measured memory bandwidths."""
    speeds = cases[-1]["ceilings"]
    sizes = sorted(speeds["gather"], key=float)
    some = sizes[-1], sizes[len(sizes) // 2], sizes[0]
    roofs = {"copy": max(speeds["copy"])} | {f"rows out of {float(s):,.4g} MB": speeds["gather"][s] for s in some}
    named = axes.get_subplotspec().is_first_row() and axes.get_subplotspec().is_first_col()
    for (name, speed), style in zip(roofs.items(), ("-", "--", "-.", ":"), strict=False):
        text = f"{name}: {speed / 1e3:.1f} TB/s" if named else None
        axes.loglog(x, x * speed / 1e3, style, color="0.4", linewidth=1, label=text, base=2)
