"""Which observed elements a decomposition holds out: `holdout` of `cp_als`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Element, HostArray
from partitioner.tensors.held_out import drawn, fingerprint, part_of, selected
from partitioner.tensors.interop import AnyTensor
from partitioner.tensors.observed import NAN, STORED
from partitioner.tensors.sparse import SparseTensor
from partitioner.validate import real
from partitioner.wording import parameter, setting

from ..errors import InputError
from ..methods.held_out import HeldOut
from ..models.align import elementwise
from ..operators.sources.device_tensor import equal_parts
from ..operators.sources.protocols import DescribedSource, DeviceMemory, SparseSource
from ..operators.sources.sparse import TensorSource
from ..parallel.mpi import Comm, on_root
from .observing import ObservedParams, ObservedSource

PATIENCE = 20  # iterations
SEED = 0


def fraction(name: str, value: object) -> float:
    """Return the fraction of held-out elements; raise `InputError` unless it is between 0 and 1."""
    expected = "a fraction between 0 and 1"
    number = real(name, value, expected, above=True)
    if number >= 1:
        raise InputError(f"{name} {number:g}: expected {expected}")
    return number


class HoldoutParams(NamedTuple):
    """The held-out elements as requested; see `cp_als`. Rank 0's tensor is used."""

    elements: float | AnyTensor | str | None = None  # a fraction, a mask or its path
    seed: int = SEED
    patience: int | None = None

    def given(self, comm: Comm) -> bool:
        """Return whether elements are held out; if not, raise `InputError` for parameters that need it. Collective."""
        given = bool(comm.bcast(self.elements is not None))
        for name, value in (("holdout_seed", self.seed), ("patience", self.patience)):
            if value and not given:
                raise InputError(f"{name} {value} needs holdout")
        return given

    @property
    def iterations(self) -> int:
        """The number of iterations without improvement after which a run stops."""
        return PATIENCE if self.patience is None else self.patience


class HoldoutSource(NamedTuple):
    """The observed elements of a tensor that a decomposition fits, and those on which it is evaluated."""

    fitted: ObservedSource
    held_out: HeldOut
    note: str


def all_observed(source: DescribedSource, comm: Comm) -> ObservedParams:
    """Return parameters by which all elements of a dense tensor are observed; NaN is an error. Collective."""
    if source.kind == "sparse":
        cause = f"{parameter('holdout')} needs {setting('mask', STORED)} or another mask for a sparse tensor"
        raise InputError(f"{cause}: elements that are not stored are zeros, not unknown", path=source.path)
    source.value_range  # noqa: B018 - raises if an element is NaN
    return ObservedParams(NAN if comm.rank == 0 else None)


def hold_out(observed: ObservedSource, params: HoldoutParams, comm: Comm, memory: DeviceMemory | None) -> HoldoutSource:
    """Split the observed elements. Collective.

    Raises
    ------
    InputError
        If the mask has another shape, or all or none of the elements are held out.
    """
    elements, placed = observed.source.tensor(), observed.placed.tensor()
    chosen = on_root(comm, lambda: None if elements is None else _chosen(elements, params))

    def part(tensor: SparseTensor | None, complement: bool) -> SparseTensor | None:
        return None if tensor is None or chosen is None else part_of(tensor, ~chosen if complement else chosen)

    source: SparseSource = TensorSource(part(elements, True), comm, observed.source.path, memory)
    weighted, total, terms = observed.placed is not observed.source, float(source.nnz), observed.terms
    fitted = TensorSource(part(placed, True), comm, memory=memory) if weighted else source
    held, weights = part(elements, False), None
    count = comm.bcast(0 if held is None else held.nnz)
    held_total = float(count)
    if (scales := terms.scales) is not None:
        weights = None if placed is None or chosen is None else np.square(scales[placed.columns[-1][chosen]])
        held_total = comm.bcast(0.0 if weights is None else float(weights.sum()))
        total = terms.total - held_total
    facts = {"holdout": comm.bcast(_name(params, held)), "held_out": count}
    note = f"{count:,} observed elements are held out ({count / (count + source.nnz):.2%})"
    offsets = equal_parts(count, comm.size)

    def own(array: HostArray | None, dtype: np.dtype[Element]) -> NDArray[Element]:
        return comm.scatter(array, offsets, dtype)

    columns = [
        own(None if held is None else held.columns[mode], np.dtype(np.int32)) for mode in range(len(source.shape))
    ]
    values = own(None if held is None else held.values, np.dtype(np.float64))
    own_weights = None if scales is None else own(weights, np.dtype(np.float64))
    return HoldoutSource(
        ObservedSource(source, fitted, terms._replace(total=total)),
        HeldOut(columns, values, own_weights, held_total, facts),
        note,
    )


def _chosen(elements: SparseTensor, params: HoldoutParams) -> NDArray[np.bool_]:
    """Return which elements are held out, on rank 0."""
    given = params.elements
    if isinstance(given, float):
        chosen = drawn(elements.columns, given, params.seed)
    else:
        assert given is not None
        chosen = selected(elements, elementwise("holdout", given, elements.labels))
    if not chosen.any():
        raise InputError(f"holdout selects none of the {elements.nnz:,} observed elements")
    if chosen.all():
        raise InputError(f"holdout selects all {elements.nnz:,} observed elements: none is left to fit")
    if not elements.values[~chosen].any():
        raise InputError("holdout selects all observed elements that are not zero: none of them is left to fit")
    return chosen


def _name(params: HoldoutParams, held: SparseTensor | None) -> str:
    """Return a description of the elements for records and checkpoints."""
    if isinstance(params.elements, float):
        return f"{params.elements:g}, seed {params.seed}"
    return "" if held is None else fingerprint(held.columns)
