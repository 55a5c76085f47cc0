"""How the arguments of the Python functions are converted, checked and compared over ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from functools import singledispatch
from typing import Any, get_args

import numpy as np

from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.interop import factors_of
from partitioner.tensors.lowrank import on_host
from partitioner.tensors.sparse import SparseTensor, refuse_masked
from partitioner.validate import real, whole

from ..errors import InputError
from ..methods.constraints import modes_of, nonnegative_of, ridge_of
from ..methods.poisson import MOST_INNER, PoissonMethod
from ..models.align import tensor_or_path
from ..models.semisparse import SemiSparseTensor
from ..operators.placement import MAX_DENSE_RANK
from ..options import Options
from ..parallel.calls import Argument


def _tensor(name: str, given: Any) -> Any:
    """Return a tensor, a path or None; raise `InputError` if it is something else."""
    return None if given is None else tensor_or_path(name, given)


@singledispatch
def _shown_tensor(tensor: object) -> str:
    """Return what ranks must have in common: the kind, and the path or the shape and number of nonzeros."""
    return str(tensor)


@_shown_tensor.register
def _(tensor: SparseTensor) -> str:
    return f"a tensor of {' x '.join(map(str, tensor.shape))}, {tensor.raw[0][1].size} nonzeros,"


@_shown_tensor.register
def _(tensor: SemiSparseTensor) -> str:
    return repr(tensor)


@_shown_tensor.register
def _(tensor: DenseTensor) -> str:
    return f"a dense tensor of {' x '.join(map(str, tensor.shape))}"


def _matrices(name: str, given: Any) -> Any:
    """Return arrays, a path or None; raise `InputError` if it is something else."""
    if given is None:
        return None
    if isinstance(given, (str, os.PathLike)):
        return os.fspath(given)
    try:
        if (found := factors_of(given)) is not None:
            return found
        matrices = list(given)
        for number, each in enumerate(matrices):
            refuse_masked(each, f"{name}[{number}]")
        return [on_host(each) for each in matrices]
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected matrices: {error}") from None


def _given_matrices(name: str, given: Any) -> Any:
    found = _matrices(name, given)
    if isinstance(found, str):
        raise InputError(f"{name} is {found!r}: expected matrices")
    return found


def _shown_matrices(given: Any) -> str:
    return f"matrices of shapes {[each.shape for each in given]}" if isinstance(given, list) else str(given)


def _callback(name: str, given: Any) -> Any:
    if given is not None and not callable(given):
        raise InputError(f"{name} is of type {type(given).__name__}: expected a function")
    return given


def _path(name: str, given: Any) -> Any:
    if given is None:
        return None
    try:
        return os.fsdecode(given)
    except TypeError:
        raise InputError(f"{name} is of type {type(given).__name__}: expected a path") from None


def _flag(name: str, given: Any) -> bool:
    if not isinstance(given, (bool, np.bool_)):
        raise InputError(f"{name} is {given!r}: expected True or False")
    return bool(given)


def _deadline(name: str, given: Any) -> Any:
    return None if given is None else real(name, given, "seconds above 0", above=True)


def _poisson_method(name: str, given: Any) -> Any:
    known = get_args(PoissonMethod)
    if given not in known:
        raise InputError(f"{name} is {given!r}: expected {', '.join(map(repr, known))}")
    return given


ARGUMENTS = {
    "X": Argument(_tensor, _shown_tensor, of_root=True),
    "rank": Argument(lambda name, given: whole(name, given, 1, MAX_DENSE_RANK)),
    "max_iters": Argument(lambda name, given: whole(name, given, 1)),
    "tol": Argument(lambda name, given: real(name, given, "a number of at least 0")),
    "seed": Argument(lambda name, given: whole(name, given, 0)),
    "init": Argument(_matrices, _shown_matrices, of_root=True),
    "starts": Argument(lambda name, given: whole(name, given, 1)),
    "factors": Argument(_given_matrices, _shown_matrices, of_root=True),
    "inner_iters": Argument(lambda name, given: whole("inner iters", given, 1, MOST_INNER)),
    "mu_iters": Argument(lambda name, given: whole("mu iters", given, 0)),
    **{
        name: Argument(lambda name, given: real(name, given, "a number of at least 0"))
        for name in ("kappa", "kappa_tol")
    },
    "method": Argument(_poisson_method),
    "eps": Argument(lambda name, given: real(name, given, "a number above 0", above=True)),
    "mode": Argument(lambda name, given: whole(name, given, 0)),
    "nonnegative": Argument(nonnegative_of),
    "ridge": Argument(ridge_of),
    "fixed_modes": Argument(modes_of),
    "callback": Argument(_callback, None),
    "checkpoint": Argument(_path),
    "every": Argument(lambda name, given: whole(name, given, 1)),
    "resume": Argument(_flag),
    "metrics": Argument(_path),
    "deadline": Argument(_deadline),
    "verbose": Argument(lambda name, given: whole(name, int(given) if isinstance(given, bool) else given, 0)),
}
"""How the arguments of all functions are taken, but for options."""


def argument_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options among all arguments, checked."""
    return vars(Options(**{field.name: given[field.name] for field in fields(Options)}))
