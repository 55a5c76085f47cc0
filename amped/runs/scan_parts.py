"""Parts of a scan: the halves of a tensor, and the deviance of counts."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import NamedTuple

import numpy as np

from partitioner.array_types import FloatDType
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor

from ..errors import InputError
from ..models.explained import blocks_of
from ..operators.sources.protocols import DescribedSource

ROUNDINGS = 8  # rounding error of a log-likelihood, in units of the last place of its terms
LEAST_COUNT = 1e-6  # lower bound of the largest count, well above `Poisson.eps`


@singledispatch
def halves_of(tensor: object, mode: int) -> list[SparseTensor | DenseTensor] | None:
    """Return the tensors of the even and the odd indices of a mode; None if one of them would be zero."""
    raise InputError(f"a {type(tensor).__name__} has no halves")


@halves_of.register
def _(tensor: DenseTensor, mode: int) -> list[SparseTensor | DenseTensor] | None:
    array = np.moveaxis(tensor.array(), mode, 0)
    parts = [np.moveaxis(array[k::2], 0, mode) for k in range(2)]
    return [DenseTensor(np.ascontiguousarray(part)) for part in parts] if all(map(np.any, parts)) else None


@halves_of.register
def _(tensor: SparseTensor, mode: int) -> list[SparseTensor | DenseTensor] | None:
    halves, length = list[SparseTensor | DenseTensor](), tensor.shape[mode]
    for k in range(2):
        inside = tensor.columns[mode] % 2 == k
        if not tensor.values[inside].any():
            return None
        columns = tensor.columns[:, inside]
        columns[mode] //= 2
        shape = [(length - k + 1) // 2 if m == mode else n for m, n in enumerate(tensor.shape)]
        half = SparseTensor.from_columns(columns, tensor.values[inside], shape, keep_zeros=tensor.keeps_zeros)
        halves.append(half)
    return halves


class CountsDeviance(NamedTuple):
    """The log-likelihoods between which the deviance of a tensor of counts is measured."""

    uniform: float  # with the same rate for all elements
    exact: float  # with the counts as rates
    total: float  # sum of the counts
    rounding: float  # rounding error of a log-likelihood

    def explained(self, likelihood: float) -> float:
        """Return the share of the deviance that a model explains; 1 if the rest is within the rounding error.

        If all counts are equal, the deviance is zero; then the rest is divided by the sum of the counts.
        """
        rest, whole = self.exact - likelihood, self.exact - self.uniform
        return 1.0 if rest <= self.rounding else 1 - rest / (whole if whole > self.rounding else self.total)


def deviance_of(tensor: SparseTensor | DenseTensor, dtype: FloatDType) -> CountsDeviance:
    """Return the deviance of counts whose models have this dtype."""
    values = np.concatenate([each[each > 0] for _, each in blocks_of(tensor)]).astype(np.float64)
    total, size = float(values.sum()), math.prod(map(float, tensor.shape))
    uniform, exact = total * np.log(total / size) - total, float(values @ np.log(values)) - total
    scale = total + abs(total * np.log(total / size)) + float(values @ np.abs(np.log(values)))
    return CountsDeviance(float(uniform), exact, total, ROUNDINGS * float(np.finfo(dtype).eps) * float(scale))


def check_counts(source: DescribedSource) -> None:
    """Raise `InputError` if all counts are so small that their model could be below the lower bound of divisors."""
    largest = source.value_range.largest
    if 0 < largest < LEAST_COUNT:
        cause = f"values up to {largest:g} are too small for counts (loss 'poisson')"
        raise InputError(f"{cause}: scale them to at least {LEAST_COUNT:g}", path=source.path)
