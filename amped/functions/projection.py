"""New data on known components: `KruskalTensor.transform`. The same call under ``mpirun`` uses all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from ..assembly import Tensor, begin, decomposition, opened
from ..decomp.als import CpAls
from ..decomp.constraints import Wanted
from ..decomp.driver import Rule, run
from ..errors import InputError
from ..models.kruskal import PROJECTIONS, KruskalTensor
from ..operators.tuning import Budget
from ..options import OptionNames, Options, with_options
from ..parallel.calls import Argument, collective
from ..parallel.mpi import world
from .arguments import ARGUMENTS, argument_options


def _model(name: str, given: Any) -> Any:
    if given is not None and not isinstance(given, KruskalTensor):
        raise InputError(f"{name} is of type {type(given).__name__}: expected a KruskalTensor")
    return given


PROJECTED = {
    **ARGUMENTS,
    "model": Argument(_model, repr, of_root=True),
    "nonnegative": Argument(lambda name, given: bool(given)),
}
"""How its arguments are taken, but for options."""


@collective(PROJECTED, argument_options)
@with_options
def project(
    model: KruskalTensor | None,
    X: Tensor,
    mode: int,
    *,
    nonnegative: bool = False,
    ridge: float = 0.0,
    deadline: float | None = None,
    **options: Unpack[OptionNames],
) -> NDArray[Any]:
    """See `KruskalTensor.transform`; under ``mpirun`` rank 0's `model` counts."""
    comm = world()
    chosen = Options(**options)
    with opened(X, comm, chosen, deadline) as (machine, source):
        lengths, rank = comm.bcast((model.shape, model.rank) if model is not None else ((), 0))
        _check_shape(source.shape, lengths, mode)
        others = tuple(m for m in range(len(lengths)) if m != mode)
        constraints = Wanted((mode,) if nonnegative else False, ridge, others).of(len(lengths))
        method = decomposition(source, rank, machine, chosen, Budget(1), constraints)
        given = list(model.factors) if model is not None else []
        if given:  # a start that takes no memory
            given[mode] = np.broadcast_to(np.ones(1), (source.shape[mode], rank))
        begin(method, source, init=given)
        run(method, Rule(1, tol=0, deadline=deadline))
        norms = [np.linalg.norm(given[m].astype(np.float64), axis=0) for m in others] if given else []
        return _rows(method, mode, comm.bcast(np.prod(norms, axis=0)))


def _check_shape(shape: Sequence[int], lengths: Sequence[int], mode: int) -> None:
    """Raise `InputError` unless a tensor of a shape goes with a model of these mode lengths, `mode` apart."""
    if not lengths:
        raise InputError("no model on rank 0")
    if mode >= len(lengths):
        raise InputError(f"mode {mode} is outside 0..{len(lengths) - 1}")
    wanted = (*lengths[:mode], shape[mode] if mode < len(shape) else 0, *lengths[mode + 1 :])
    if tuple(shape) != wanted:
        shown = " x ".join("any" if m == mode else str(length) for m, length in enumerate(lengths))
        raise InputError(f"X is {' x '.join(map(str, shape))}: this model's other modes make it {shown}")


def _rows(method: CpAls, mode: int, norms: NDArray[np.float64]) -> NDArray[Any]:
    """Return the rows of a mode that go with the other modes' columns as they were given, which had these `norms`."""
    arrays = method.state.arrays
    columns = arrays["scales"][mode] * arrays["weights"] / np.where(norms > 0, norms, np.inf)
    rows: NDArray[Any] = method.factor(mode) * columns
    return rows.astype(method.operator.options.dtype, copy=False)


PROJECTIONS.append(project)
