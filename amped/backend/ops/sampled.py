"""The sampled operation: a loss and its gradient estimated from samples of elements, and stochastic steps.

Elements are drawn from strata (Kolda and Hong, Stochastic gradients for large-scale tensor decomposition, 2020). Each
sample is a function of a key and its number (`amped.backend.counter_rng`), so that nothing is stored, and samples can
be drawn again by the same key. All factor matrices are rows of one matrix.

Sample `n` of `count` is drawn from the n-th of `count` equal parts of the list of nonzeros or, of all elements, of the
first mode's indices; indices of other modes are uniform. Each element is still drawn as often as any other on average,
but estimates vary less than with independent samples, and memory is read in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Literal, NamedTuple, Protocol

from partitioner.array_types import FloatDType

from ..device import Array
from ..formulas import Evaluated, Formula
from ..registry import Op

StepMethod = Literal["adam", "sgd", "adagrad"]


class SampleOrigin(IntEnum):
    """Where the samples of a stratum come from."""

    LISTED = 0  # nonzeros
    EVERY = 1  # each nonzero once, in order
    ABSENT = 2  # all elements; those that are nonzeros do not count
    ANYWHERE = 3  # all elements; those that are absent are zeros
    BLIND = 4  # all elements, as if they were zeros


class Stratum(NamedTuple):
    """Samples of equal weight.

    Attributes
    ----------
    origin : SampleOrigin
    samples : int
        The number that is drawn.
    weight : float
        Factor of the loss of each sample.
    less_zero : bool
        Whether the loss of the same sample as a zero is subtracted.
    """

    origin: SampleOrigin
    samples: int
    weight: float
    less_zero: bool = False


class ListedElements(NamedTuple):
    """A rank's elements.

    Attributes
    ----------
    coordinates : (nnz, order) int32 device array, C-contiguous
        The indices of nonzeros, or of observed elements.
    values : (nnz,) device array
    slots : int32 device array
        A table of the coordinates (`amped.backend.coordinate_table`), if absent elements are zeros; otherwise (0,).
    begin, lengths : sequence of int
        The range of indices of each mode from which absent elements are drawn; all nonzeros in it are listed.
    """

    coordinates: Array
    values: Array
    slots: Array
    begin: Sequence[int]
    lengths: Sequence[int]


class MatrixRows(NamedTuple):
    """The rows of the matrix by mode.

    Attributes
    ----------
    offsets : sequence of int
        The first row of each mode, and the end.
    rank : int
        Columns of the matrix without padding, which is zero.
    lower : sequence of float
        Lower bound of each mode's entries.
    ridge : sequence of float
        Weight of the squares of each mode's entries in the objective.
    solved : sequence of bool
        Whether a mode changes.
    """

    offsets: Sequence[int]
    rank: int
    lower: Sequence[float]
    ridge: Sequence[float]
    solved: Sequence[bool]


class SampledFormulas(NamedTuple):
    """The formulas that samples evaluate; m is at least `lower`."""

    value: Evaluated
    slope: Evaluated
    lower: float

    @property
    def texts(self) -> tuple[Formula, Formula] | None:
        """Value and slope if both are formulas that can be compiled, otherwise None."""
        value, slope, _ = self
        return (value, slope) if isinstance(value, Formula) and isinstance(slope, Formula) else None


class SampledRows(NamedTuple):
    """A gradient, (rows, columns in memory), and which rows have samples, (rows,) uint8; device arrays.

    The gradient is float64 or, on GPUs, of the matrix's type unless sums are exact.
    """

    gradient: Array
    touched: Array


class StepRule(NamedTuple):
    """A step: ``rate * first / (sqrt(second) + eps)`` (Adam, AdaGrad), or ``rate * gradient`` (SGD).

    Attributes
    ----------
    method : {"adam", "sgd", "adagrad"}
    rate : float
    number : int
        Number of the step, from 1, for Adam's correction of biases.
    betas : (float, float)
        Decay of Adam's moments.
    eps : float
    """

    method: StepMethod
    rate: float
    number: int
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    @property
    def moments(self) -> int:
        """The number of matrices of moments: first and second ones (Adam), sums of squares (AdaGrad)."""
        return MOMENTS[self.method]


MOMENTS: dict[StepMethod, int] = {"adam": 2, "sgd": 0, "adagrad": 1}


class SampleSize(NamedTuple):
    """The sizes that determine memory."""

    rows: int  # of the matrix
    stride: int  # its columns in memory
    order: int
    nnz: int  # of the rank
    dtype: FloatDType  # of the matrix
    estimated: int  # samples of an estimate of the loss, at most
    exact: bool  # see `SampledProvider.make`


def every(count: int) -> list[Stratum]:
    """Return the stratum of all listed elements, each once; none if there are no elements."""
    return [Stratum(SampleOrigin.EVERY, count, 1.0)] if count else []


class SampledLoss(Protocol):
    """The elements and buffers of a rank. Work may be queued, unless it returns numbers."""

    def load(self, elements: ListedElements) -> None:
        """Replace the elements by others of the same ranges, without a table of coordinates."""

    def value(self, matrix: Array, strata: Sequence[Stratum], key: int) -> tuple[float, float]:
        """Return the estimated loss, and its derivative in the logarithm of a common factor of all m."""

    def gradient(self, matrix: Array, strata: Sequence[Stratum], key: int) -> SampledRows:
        """Return this rank's part of the estimated gradient in the rows of solved modes; valid until `step`."""

    def listed(self, matrix: Array, modes: Sequence[int]) -> Array:
        """Return this rank's gradient of all listed elements in the rows of some modes, (rows, columns in memory).

        Other rows are undefined. It is valid until the next call, and not for `step`.
        """

    def step(self, matrix: Array, moments: Sequence[Array], rows: SampledRows, rule: StepRule) -> None:
        """Change the touched rows of solved modes, and their moments; all rows of modes with a ridge.

        The gradient of the ridge is added, and entries stay at or above their bounds. `rows` are those that `gradient`
        returned, perhaps summed over ranks; afterwards they are zero.
        """

    def queue(
        self, matrix: Array, moments: Sequence[Array], strata: Sequence[Stratum], keys: Sequence[int], rule: StepRule
    ) -> bool:
        """Queue steps, each with the gradient of its key, if the device takes them without the host; return whether.

        The first step has the number of `rule`, and the others the numbers that follow.
        """


class SampledProvider(Protocol):
    """A provider of the operation."""

    def suits(self, formulas: SampledFormulas) -> bool:
        """Return whether it evaluates such formulas."""

    def stride(self, rank: int, dtype: FloatDType) -> int:
        """Return the columns in memory of a matrix with `rank` columns."""

    def bytes(self, size: SampleSize) -> int:
        """Return an upper bound of the device memory of buffers, without elements, matrix and moments."""

    def slots(self, coordinates: Array) -> Array:
        """Return the table of distinct coordinates, (nnz, order) and C-contiguous; see `ListedElements`."""

    def make(
        self, elements: ListedElements, rows: MatrixRows, formulas: SampledFormulas, stride: int, exact: bool
    ) -> SampledLoss:
        """Return the estimates for elements and a matrix of `stride` columns in memory.

        `exact`: results must be the same in each run.
        """


SAMPLED: Op[SampledProvider] = Op("sampled")
