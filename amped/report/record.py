"""The record of a run that is stored with its model, by the command line and by Python functions."""

from __future__ import annotations

import os

from ..methods.driver import Method, best_iteration
from ..methods.initial import Init
from ..operators.sources.protocols import DescribedSource

SERIES = {"fit": "fits", "objective": "objectives"}  # names in records, if they differ


def run_facts(method: Method, source: DescribedSource, seed: int | None, init: str | None) -> dict[str, object]:
    """Return the parameters, machine, tensor and figures of a run; see `init_name`."""
    state, machine = method.state, method.operator.machine
    best = best_iteration(state)
    return {
        **{SERIES.get(name, name): list(numbers) for name, numbers in state.series.items()},
        "method": method.name, "norm": method.norm, **method.facts,
        "iterations": state.iterations, "converged": state.converged,
        **({} if best is None else {"best_iteration": best}),
        "ranks": machine.everyone.size, "distribution": method.operator.distribution,
        "device": machine.device.name, "device_description": machine.device.description,
        "precision": method.operator.options.precision, "seed": seed, "init": init, "rank": method.rank,
        **_source_facts(source), "kernels": method.operator.kernels,
    }  # fmt: skip


def _source_facts(source: DescribedSource) -> dict[str, object]:
    facts = {"tensor_kind": source.kind, "tensor_shape": list(source.shape), "nonzeros": source.nnz}
    return {**facts, "tensor_norm": source.norm, **source.repaired}


def init_name(init: Init | None) -> str | None:
    """Return the name of a start; "" for matrices in memory, None for a random start."""
    return None if init is None else os.fspath(init) if isinstance(init, (str, os.PathLike)) else ""
