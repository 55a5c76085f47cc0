"""Flops a byte and GFLOP/s of Phi and MTTKRP, mode by mode, under the roofs of the machine.

Two models, for P nonzeros of N modes, R columns of s bytes:

- `paper`: every operand comes from memory. Phi: ``P (4 R + 2)`` flops, ``P (5 R + 2)`` words (equations 3 and 4; Pi is
  stored). MTTKRP: ``P N R`` flops; N - 1 rows are read and an output row read and written, ``P ((N + 1) R + 1)`` words
  and N indices of 4 bytes.
- `amped`: what its kernels ask for. Both read each nonzero as it is packed, and N - 1 rows of R s bytes, and write an
  output of 8 R bytes a row; Phi also reads a row of B for each output row. As Pi is not stored, Phi has
  ``P ((N + 2) R + 2)`` flops.

Neither models caches: a kernel that finds rows there lies above the roof of the memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from amped.backend.device import Device

from . import ceilings, phi_stream
from .groups import free_memory
from .phi_problem import Nonzeros, best_kernel, cases_of, seconds, summaries

PACKAGES = ("numba",)
MATRIX = {"cuda": 8192, "cpu": 1024}  # rows and columns of matrices whose product tells the peak


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add this part's flags: none."""


def measure(args: argparse.Namespace, device: Device) -> dict[str, Any]:
    """Measure the roofs, then Phi and MTTKRP of each tensor, number of columns, precision and mode."""
    roofs = measured_roofs(device, args)
    cases = cases_of(args, device, lambda nonzeros: of_mode(nonzeros, args.repeats), line)
    roofs = _higher(roofs, measured_roofs(device, args))  # on a machine that is busy at times
    print("roofs:", roofs, flush=True)
    return {"roofs": roofs, "cases": cases}


def measured_roofs(device: Device, args: argparse.Namespace) -> dict[str, Any]:
    """Return GB/s of STREAM's triad, and of random rows by their matrix's MB; GFLOP/s of products of matrices.

    The fastest of several runs, but of random rows the median.
    """
    count = (args.stream_bytes or phi_stream.BYTES[device.name]) // 8
    triad = seconds(device, {"triad": phi_stream.operations(device, count)["triad"]}, args.repeats)["triad"]
    free_memory(device.xp)
    found: dict[str, Any] = {"triad": 24 * count / min(triad) / 1e9, "gather": ceilings.gather(device)}
    free_memory(device.xp)
    return found | {"flops": {name: _peak(device, kind) for name, kind in (("fp32", "f4"), ("fp64", "f8"))}}


def _higher(a: Any, b: Any) -> Any:
    return {key: _higher(a[key], b[key]) for key in a} if isinstance(a, dict) else max(a, b)


def _peak(device: Device, kind: str) -> float:
    """Return GFLOP/s of a product of square matrices, by the device's own library."""
    import threadpoolctl

    size = MATRIX[device.name]
    a, b, out = (device.zeros((size, size), np.dtype(kind)) for _ in range(3))
    a.fill(1)
    b.fill(1)
    limit = device.threads.count if device.on_host else None  # type: ignore[attr-defined]
    with threadpoolctl.threadpool_limits(limit):
        times = ceilings.seconds(device, lambda: device.xp.matmul(a, b, out=out))
    return 2 * size**3 / min(times) / 1e9


def of_mode(nonzeros: Nonzeros, repeats: int) -> dict[str, Any]:
    """Return kernel, seconds, flops, bytes of both models and GFLOP/s of a mode's Phi and MTTKRP."""
    kernel, _ = best_kernel(nonzeros)
    shard = nonzeros.shard(kernel)
    times = seconds(nonzeros.device, nonzeros.actions(kernel, shard), repeats)
    rows = int(nonzeros.device.xp.unique(nonzeros.columns[0]).size)
    found: dict[str, Any] = {"kernel": kernel.name, "seconds": summaries(times, False)}
    counted = nonzeros.share.nnz, nonzeros.order, nonzeros.rank, nonzeros.share.dtype.itemsize, shard.nbytes, rows
    for name, models in counts(*counted).items():
        took = found["seconds"][name]["median"]
        found[name] = {
            model: {"flops": f, "bytes": b, "flops_a_byte": f / b, "gigaflops_a_second": f / took / 1e9}
            for model, (f, b) in models.items()
        }
    return found


def counts(
    nnz: int, order: int, rank: int, word: int, packed: int, rows: int
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return flops and bytes of Phi and MTTKRP by both models; see above. `packed` are all bytes of the nonzeros."""
    gathered = packed + nnz * (order - 1) * rank * word + 8 * rank * rows
    return {
        "phi": {
            "paper": (nnz * (4 * rank + 2), nnz * (5 * rank + 2) * word),
            "amped": (nnz * ((order + 2) * rank + 2), gathered + rows * rank * word),
        },
        "mttkrp": {
            "paper": (nnz * order * rank, nnz * (((order + 1) * rank + 1) * word + 4 * order)),
            "amped": (nnz * order * rank, gathered),
        },
    }


def line(case: Mapping[str, Any]) -> str:
    """Return a case as one line of text."""
    head = f"{case['shape']} rank {case['rank']} {case['precision']} mode {case['mode']} {case['kernel']}"
    parts = []
    for name in ("phi", "mttkrp"):
        of = case[name]
        each = ", ".join(f"{m} {x['flops_a_byte']:.3f} flop/byte {x['gigaflops_a_second']:,.0f}" for m, x in of.items())
        parts.append(f"{name} {case['seconds'][name]['median'] * 1e3:.3f} ms, {each} GFLOP/s")
    return f"{head}: {'; '.join(parts)}"


def draw(pyplot: Any, facts: dict[str, Any]) -> Any:
    """A roofline for each model: GFLOP/s by flops a byte, with the measured roofs."""
    precisions = list(dict.fromkeys(case["precision"] for case in facts["cases"]))
    shape = len(precisions), 2
    figure, grid = pyplot.subplots(
        *shape, figsize=(8.4, 0.8 + 3 * shape[0]), sharey="row", squeeze=False, layout="constrained"
    )
    shapes = list(dict.fromkeys(case["shape"] for case in facts["cases"]))
    for row, precision in zip(grid, precisions, strict=True):
        some = [case for case in facts["cases"] if case["precision"] == precision]
        for axes, model in zip(row, ("paper", "amped"), strict=True):
            _roofline(axes, some, facts["roofs"], model, precision, shapes)
        row[0].set_ylabel("GFLOP/s")
    for k, name in enumerate(shapes):
        grid[0][0].plot([], [], "o", color=f"C{k}", markerfacecolor="none", label=name)
    for style, name in (("ko", "Phi"), ("kx", "MTTKRP")):
        grid[0][0].plot([], [], style, markerfacecolor="none", label=name)
    figure.supxlabel(f"flops a byte\n{facts['machine']['devices'][0]}", fontsize=9)
    figure.legend(frameon=False, fontsize=7, loc="outside right upper")
    return figure


def _roofline(
    axes: Any,
    cases: Sequence[Mapping[str, Any]],
    roofs: Mapping[str, Any],
    model: str,
    precision: str,
    shapes: list[str],
) -> None:
    peak = roofs["flops"][precision]
    x = np.geomspace(0.05, 2 * max(1.0, peak / roofs["triad"]), 100)
    sizes = sorted(roofs["gather"], key=float)
    memory = {"triad": roofs["triad"], f"rows out of {float(sizes[0]):g} MB": roofs["gather"][sizes[0]]}
    for (name, speed), style in zip(memory.items(), ("-", "--"), strict=True):
        named = f"{name}, {speed:,.0f} GB/s" if axes.get_subplotspec().is_first_col() else None
        axes.loglog(x, np.minimum(x * speed, peak), style, color="0.4", linewidth=1, label=named)
    for case in cases:
        for kind, marker in (("phi", "o"), ("mttkrp", "x")):
            at = case[kind][model]
            axes.plot(
                at["flops_a_byte"], at["gigaflops_a_second"], marker, markerfacecolor="none", markersize=5,
                color=f"C{shapes.index(case['shape'])}",
            )  # fmt: skip
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_title(f"model: {model}; {precision}", fontsize=9)
