"""Flops a byte and GFLOP/s of Phi and MTTKRP, mode by mode, under the roofs of the machine.

Two models, for P nonzeros of N modes, R columns of s bytes:

- `paper`: every operand comes from memory. Phi: ``P (4 R + 2)`` flops, ``P (5 R + 2)`` words (equations 3 and 4; Pi is
  stored). MTTKRP: ``P N R`` flops; N - 1 rows are read and an output row read and written, ``P ((N + 1) R + 1)`` words
  and N indices of 4 bytes.
- `amped`: what its kernels read and write. Both read each nonzero as it is packed, and N - 1 rows of R s bytes, and
  write an output of 8 R bytes a row; Phi also reads a row of B for each output row. As Pi is not stored, Phi has
  ``P ((N + 2) R + 2)`` flops.

Neither models caches: a kernel that finds rows there lies above the roof of the memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import threadpoolctl

from amped.backend.device import Device

from . import ceilings
from .groups import free_memory
from .harness import Facts, summaries
from .phi_problem import Nonzeros, best_kernel, device_of, seconds, study, study_flags

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MATRIX = {"cuda": 8192, "cpu": 1024}  # rows and columns of matrices whose product gives the peak


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    study_flags(parser, "phi-intensity")


def run(args: argparse.Namespace) -> None:
    """Measure the roofs, then Phi and MTTKRP of each tensor, number of columns, precision and mode."""
    roofs = measured_roofs(device_of(args))
    result = study(args, "phi-intensity", partial(of_mode, repeats=args.repeats), line)
    result.facts["roofs"] = _higher(roofs, measured_roofs(device_of(args)))  # on a machine that is busy at times
    result.write()
    print("roofs:", result.facts["roofs"], flush=True)
    result.draw(draw)


def measured_roofs(device: Device) -> Facts:
    """Return GB/s of a copy, and of random rows by their matrix's MB; GFLOP/s of products of matrices."""
    found: Facts = {"copy": ceilings.copied(device), "gather": ceilings.gather(device)}
    free_memory(device.xp)
    return found | {"flops": {name: _peak(device, kind) for name, kind in (("fp32", "f4"), ("fp64", "f8"))}}


def _higher(a: Any, b: Any) -> Any:
    return {key: _higher(a[key], b[key]) for key in a} if isinstance(a, dict) else max(a, b)


def _peak(device: Device, kind: str) -> float:
    """Return GFLOP/s of a product of square matrices, by the device's own library."""
    size = MATRIX[device.name]
    a, b, out = (device.zeros((size, size), np.dtype(kind)) for _ in range(3))
    a.fill(1)
    b.fill(1)
    limit = device.threads.count if device.on_host else None  # type: ignore[attr-defined]
    with threadpoolctl.threadpool_limits(limit):
        times = ceilings.seconds(device, lambda: device.xp.matmul(a, b, out=out))
    return 2 * size**3 / min(times) / 1e9


def of_mode(nonzeros: Nonzeros, repeats: int) -> Facts:
    """Return kernel, seconds, flops, bytes of both models and GFLOP/s of a mode's Phi and MTTKRP."""
    kernel, _ = best_kernel(nonzeros)
    shard = nonzeros.shard(kernel)
    times = seconds(nonzeros.device, nonzeros.actions(kernel, shard), repeats)
    rows = int(nonzeros.device.xp.unique(nonzeros.columns[0]).size)
    found: Facts = {"kernel": kernel.name, "seconds": summaries(times)}
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
    """Return a case as text."""
    parts = [case["kernel"]]
    for name in ("phi", "mttkrp"):
        each = ", ".join(
            f"{model} {found['flops_a_byte']:.3f} flop/byte {found['gigaflops_a_second']:,.0f}"
            for model, found in case[name].items()
        )
        parts.append(f"{name} {case['seconds'][name]['median'] * 1e3:.3f} ms, {each} GFLOP/s")
    return "; ".join(parts)


def draw(pyplot: ModuleType, facts: Facts) -> Figure:
    """A roofline for each model: GFLOP/s by flops a byte, with the measured roofs; of one precision."""
    cases, roofs = facts["cases"], facts["roofs"]
    precision, shapes = cases[0]["precision"], list(dict.fromkeys(case["shape"] for case in cases))
    peak, sizes = roofs["flops"][precision], sorted(roofs["gather"], key=float)
    figure, both = pyplot.subplots(1, 2, figsize=(8.4, 3.4), sharey=True, layout="constrained")
    x = np.geomspace(0.05, 2 * max(1.0, peak / roofs["copy"]), 100)
    memory = {"copy": roofs["copy"], f"rows out of {float(sizes[0]):g} MB": roofs["gather"][sizes[0]]}
    for axes, model in zip(both, ("paper", "amped"), strict=True):
        for (name, speed), style in zip(memory.items(), ("-", "--"), strict=True):
            axes.loglog(
                x, np.minimum(x * speed, peak), style, color="0.4", linewidth=1, label=f"{name}, {speed:,.0f} GB/s"
            )
        for case in (case for case in cases if case["precision"] == precision):
            for kind, marker in (("phi", "o"), ("mttkrp", "x")):
                at, colour = case[kind][model], f"C{shapes.index(case['shape'])}"
                point = at["flops_a_byte"], at["gigaflops_a_second"]
                label = f"{case['shape']}, {kind}" if case["mode"] == 0 else None
                axes.plot(*point, marker, markerfacecolor="none", markersize=5, color=colour, label=label)
        axes.set(title=f"model: {model}; {precision}", xlabel="flops a byte")
    both[0].set_ylabel("GFLOP/s")
    figure.legend(*both[0].get_legend_handles_labels(), frameon=False, fontsize=7, loc="outside right upper")
    return figure
