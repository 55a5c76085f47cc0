"""Dense tensors placed on the ranks of a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amped.operators.dense.operator import DenseOperator
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs.assembly import bring_up, open_tensor, place, solving_bytes
from partitioner.tensors.dense import DenseTensor


def dense_operator(
    tensor: Any, factors: Sequence[np.ndarray], comm: Comm, late: bool = False, **options: Any
) -> DenseOperator:
    """Return an operator with these factors for an array (rank 0's is used) or the path of a file."""
    chosen = Options(**{"device": "cpu", "precision": "fp64", **options})
    machine = bring_up(chosen, comm)
    source_tensor = DenseTensor(tensor) if isinstance(tensor, np.ndarray) and comm.rank == 0 else tensor
    source = open_tensor(None if isinstance(source_tensor, np.ndarray) else source_tensor, machine, chosen)
    solving = solving_bytes(machine, chosen, len(factors))
    operator = place(source, factors[0].shape[1], machine, chosen, solving, late=late)
    assert isinstance(operator, DenseOperator)
    for mode, factor in enumerate(factors):
        operator.set_factor(mode, factor)
    return operator


def low_rank(shape: Sequence[int], rank: int, noise: float = 0.0, seed: int = 0) -> np.ndarray:
    """Return a tensor of a known rank, with some noise relative to its norm."""
    rng = np.random.default_rng(seed)
    letters = "abcdefgh"[: len(shape)]
    factors = [rng.standard_normal((length, rank)) for length in shape]
    exact = np.einsum(f"{','.join(c + 'z' for c in letters)}->{letters}", *factors)
    other = rng.standard_normal(shape)
    result: np.ndarray = exact + noise * np.linalg.norm(exact) / np.linalg.norm(other) * other
    return result
