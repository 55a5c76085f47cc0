"""Conversion, validation and comparison between ranks of the arguments of the Python functions."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import singledispatch
from typing import Any, Literal, get_args

import numpy as np

from partitioner.array_types import Floats
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.device_arrays import on_host
from partitioner.tensors.ingest import refuse_masked
from partitioner.tensors.interop import AnyTensor, factors_of
from partitioner.tensors.observed import NAN, STORED
from partitioner.tensors.sparse import SparseTensor
from partitioner.validate import real, whole
from partitioner.wording import alternatives

from ..backend.known_losses import KNOWN, loss_of
from ..backend.losses import Loss
from ..errors import InputError
from ..methods.constraints import modes_of, nonnegative_of, ridge_of
from ..methods.poisson import MOST_INNER, PoissonMethod
from ..methods.proximal.fixed import masks_of
from ..methods.proximal.terms import ModeTerms, by_mode
from ..models.align import tensor_or_path
from ..models.labelled_matrices import LabelledMatrices
from ..models.semisparse import SemiSparseTensor
from ..operators.placement import MAX_DENSE_RANK
from ..options import Options
from ..parallel.calls import Argument
from ..runs.callback import takes_view
from ..runs.holding_out import fraction

Matrices = Sequence[Floats]
OutputName = Literal["host", "device"]
DEVICE: OutputName = "device"


@singledispatch
def _tensor_text(tensor: object) -> str:
    """Return the text by which ranks compare tensors: the path, or the kind, shape and number of nonzeros."""
    return str(tensor)


@_tensor_text.register
def _(tensor: SparseTensor) -> str:
    return f"a tensor of {' x '.join(map(str, tensor.shape))}, {tensor.raw[0][1].size} nonzeros,"


@_tensor_text.register
def _(tensor: SemiSparseTensor) -> str:
    return repr(tensor)


@_tensor_text.register
def _(tensor: DenseTensor) -> str:
    return f"a dense tensor of {' x '.join(map(str, tensor.shape))}"


def _matrices_or_path(name: str, value: Any) -> Matrices | str:
    """Convert factor matrices, or the factor matrices of a model, to NumPy arrays; return a path as text."""
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if isinstance(value, LabelledMatrices):
        return value
    try:
        if (factors := factors_of(value)) is not None:
            return LabelledMatrices(factors, getattr(value, "labels", None))
        matrices = list(value)
        for number, matrix in enumerate(matrices):
            refuse_masked(matrix, f"{name}[{number}]")
        return [on_host(matrix) for matrix in matrices]
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected matrices: {error}") from None


def _matrices(name: str, value: object) -> Matrices:
    matrices = _matrices_or_path(name, value)
    if isinstance(matrices, str):
        raise InputError(f"{name} is {matrices!r}: expected matrices")
    return matrices


def _matrices_text(matrices: Matrices | str | None) -> str:
    return f"matrices of shapes {[each.shape for each in matrices]}" if isinstance(matrices, list) else str(matrices)


def check_matrices(matrices: Sequence[Floats], order: int, leave: int | None = None) -> None:
    """Raise `InputError` unless there is a matrix per mode; that of mode `leave` may be any array."""
    if len(matrices) != order:
        raise InputError(f"{len(matrices)} factor matrices for a tensor of order {order}: expected one per mode")
    for mode, matrix in enumerate(matrices):
        if mode != leave and matrix.ndim != 2:
            raise InputError(f"factor_{mode} is of shape {matrix.shape}: expected a matrix")


def _mask(name: str, value: object) -> AnyTensor | str:
    return value if isinstance(value, str) and value in (NAN, STORED) else tensor_or_path(name, value)


def _holdout(name: str, value: object) -> AnyTensor | str | float:
    """Convert a fraction, or the mask of held-out elements."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        return tensor_or_path(name, value)
    return fraction(name, value)


def _path(name: str, value: Any) -> str:
    try:
        path = os.fsdecode(value)
    except TypeError:
        raise InputError(f"{name} is of type {type(value).__name__}: expected a path") from None
    if not path:  # it would mean the current folder
        raise InputError(f"{name}: the name is empty")
    return path


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} is {value!r}: expected True or False")
    return bool(value)


def one_of(*choices: str) -> Argument:
    """Return an argument that must be one of several names."""

    def convert(name: str, value: object) -> object:
        if not isinstance(value, str) or value not in choices:
            raise InputError(f"{name} is {value!r}: expected {alternatives(map(repr, choices))}")
        return value

    return Argument(convert)


def integer(least: int, most: int | None = None) -> Argument:
    """Return an argument that must be an integer from `least` to `most`."""
    return Argument(lambda name, value: whole(name, value, least, most))


def positive(expected: str) -> Argument:
    """Return an argument that must be a number above 0; errors say what was `expected`."""
    return Argument(lambda name, value: real(name, value, expected, above=True))


def function_of(*parameters: str) -> Argument:
    """Return an argument that must be a function of these parameters, and perhaps a `ModelView`."""

    def convert(name: str, value: object) -> object:
        if not callable(value):
            raise InputError(f"{name} is of type {type(value).__name__}: expected a function")
        try:
            signature = inspect.signature(value)
        except (TypeError, ValueError):  # some built-in functions
            return value
        try:
            signature.bind(*parameters, *([None] if takes_view(value) else []))
        except TypeError as error:
            raise InputError(f"{name}: it is called with {' and '.join(parameters)}: {error}") from None
        return value

    return Argument(convert, None)


def _mode(name: str, value: object) -> int | str:
    return value if isinstance(value, str) else whole(name, value, 0)


MODE = Argument(_mode)
"""A mode, by number or name."""


def optional(argument: Argument) -> Argument:
    """Return the same argument, which may also be None."""
    return argument._replace(convert=lambda name, value: None if value is None else argument.convert(name, value))


NON_NEGATIVE = Argument(lambda name, value: real(name, value, "a number of at least 0"))
BOOLEAN = Argument(_flag)

TENSOR = optional(Argument(tensor_or_path, _tensor_text, of_root=True))
PATH = optional(Argument(_path))


def _loss(name: str, value: object) -> Loss:
    if isinstance(value, Loss):
        if value.name.partition(":")[0] in KNOWN and value != loss_of(value.name):
            raise InputError(f"{name}: {value.name!r} is the name of another loss: give yours another one")
        return value
    if not isinstance(value, str):
        raise InputError(f"{name} is of type {type(value).__name__}: expected a name or an amped.Loss")
    return loss_of(value)


def _loss_text(loss: Loss) -> str:
    return f"{loss.name} {loss.value}" if loss.compiled else loss.name


LOSS = Argument(_loss, _loss_text)
"""Any loss."""


def _constraints(name: str, value: object) -> tuple[tuple[int | str, ModeTerms], ...]:
    return () if value is None else by_mode(name, value)


def _constraints_text(terms: tuple[tuple[int | str, ModeTerms], ...]) -> str:
    return str({mode: list(each.names) for mode, each in terms})


ARGUMENTS = {
    "X": TENSOR,
    "rank": integer(1, MAX_DENSE_RANK),
    "max_iters": integer(1),
    "tol": NON_NEGATIVE,
    "seed": integer(0),
    "init": optional(Argument(_matrices_or_path, _matrices_text, of_root=True)),
    "starts": integer(1),
    "factors": optional(Argument(_matrices, _matrices_text, of_root=True)),
    "inner_iters": integer(1, MOST_INNER),
    "mu_iters": integer(0),
    "kappa": NON_NEGATIVE,
    "kappa_tol": NON_NEGATIVE,
    "method": one_of(*get_args(PoissonMethod)),
    "loss": LOSS,
    "eps": positive("a number above 0"),
    "mode": integer(0),
    "nonnegative": Argument(nonnegative_of),
    "ridge": Argument(ridge_of),
    "constraints": Argument(_constraints, _constraints_text),
    "fixed_modes": Argument(modes_of),
    "fixed": Argument(masks_of, lambda masks: str([mask.name for mask in masks])),
    "mask": optional(Argument(_mask, _tensor_text, of_root=True)),
    "weights": TENSOR,
    "holdout": optional(Argument(_holdout, _tensor_text, of_root=True)),
    "holdout_seed": integer(0),
    "patience": optional(integer(1)),
    "accelerate": optional(BOOLEAN),
    "callback": optional(function_of("the iteration", "the fit or log-likelihood")),
    "checkpoint": PATH,
    "every": optional(integer(1)),
    "resume": BOOLEAN,
    "metrics": PATH,
    "report": PATH,
    "output": one_of(*get_args(OutputName)),
    "deadline": optional(positive("seconds above 0")),
    "verbose": Argument(lambda name, value: whole(name, int(value) if isinstance(value, bool) else value, 0)),
}
"""The arguments of all functions, by name, without the options."""


def argument_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the validated options among all arguments of a call."""
    return vars(Options(**{field.name: arguments[field.name] for field in fields(Options)}))
