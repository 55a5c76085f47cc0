"""Which elements of a tensor a decomposition takes as observed: `mask` and `weights` of `cp_als`."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType, Floats
from partitioner.readers import ReadOptions
from partitioner.tensors.dense import DenseTensor, indices_of
from partitioner.tensors.interop import AnyTensor
from partitioner.tensors.observed import NAN, STORED, Observed, check_stored, observed_elements, with_weights
from partitioner.tensors.present import PresentElements
from partitioner.tensors.sparse import SparseTensor

from ..errors import InputError
from ..methods.observed_als import ObservedTerms
from ..models.align import elementwise, observes_zeros, read_if_path
from ..operators.dense.gaps import ElementList, RowElements
from ..operators.dense.observed import MaskedArray
from ..operators.sources.present import PresentSource
from ..operators.sources.protocols import DescribedSource, DeviceMemory, SparseSource
from ..operators.sources.sparse import TensorSource
from ..parallel.mpi import Comm, on_root, together

Mask = Literal["nan", "stored"] | AnyTensor | Floats | str | os.PathLike[str]


class ObservedParams(NamedTuple):
    """The observed elements as requested; see `cp_als`. Rank 0's tensors are used."""

    mask: AnyTensor | str | None = None  # `NAN`, `STORED`, a tensor or its path
    weights: AnyTensor | str | None = None

    def given(self, comm: Comm) -> bool:
        """Return whether any is given. Collective."""
        return bool(comm.bcast(self.mask is not None or self.weights is not None))

    def form(self, form: ReadOptions, comm: Comm) -> ReadOptions:
        """Return the options for reading a tensor, with its explicit zeros if they are observed. Collective."""
        return replace(form, keep_zeros=True) if comm.bcast(observes_zeros(self.mask, None)) else form


class FilledTensor(NamedTuple):
    """A dense tensor with zeros at its missing elements, their indices (order, n), and its observed elements."""

    tensor: DenseTensor
    missing: NDArray[np.int32]
    observed: RowElements


class ObservedSource(NamedTuple):
    """The observed elements of a tensor.

    Attributes
    ----------
    source : SparseSource
        The elements without weights.
    placed : SparseSource
        The elements to be placed; with weights it has one more mode, see `partitioner.tensors.observed.with_weights`.
    terms : ObservedTerms
    """

    source: SparseSource
    placed: SparseSource
    terms: ObservedTerms

    @property
    def note(self) -> str:
        """A line about the observed elements."""
        elements = math.prod(map(float, self.source.shape))
        empty = [self.source.shape[mode] - self.source.used(mode) for mode in range(len(self.source.shape))]
        rows = f"; without observations: {', '.join(map(str, empty))} indices of the modes" if any(empty) else ""
        return f"{self.source.nnz:,} elements are observed ({self.source.nnz / elements:.2%}){rows}"

    def filled(self, dtype: FloatDType, comm: Comm) -> FilledTensor | None:
        """Return the elements and the missing ones, on rank 0; None elsewhere. Collective."""
        if isinstance(self.source, PresentSource):
            present = self.source.elements
            return on_root(comm, lambda: None if present is None else _without_nan(present, dtype))
        tensor = self.source.tensor()
        return on_root(comm, lambda: None if tensor is None else _filled(tensor, dtype))

    def weighted(self, comm: Comm) -> SparseSource:
        """Return `placed` without scaled values: with weights it has the additional mode. Collective."""
        if self.terms.scales is None:
            return self.source
        values, placed = self.source.tensor(), self.placed.tensor()

        def elements() -> SparseTensor | None:
            if values is None or placed is None:
                return None
            return SparseTensor.from_columns(placed.columns, values.values, placed.shape, keep_zeros=True)

        return TensorSource(on_root(comm, elements), comm)

    def masked_array(self) -> MaskedArray:
        """Return the elements as a dense array, on a single rank."""
        tensor = self.placed.tensor()
        assert tensor is not None
        return self.array_of(tensor)

    def array_of(self, tensor: SparseTensor) -> MaskedArray:
        """Return the elements of `placed` as a dense array."""
        scales = self.terms.scales
        if scales is None:
            return MaskedArray.of_elements(self.source.shape, tensor.columns, tensor.values)
        roots = scales[tensor.columns[-1]]
        return MaskedArray.of_elements(self.source.shape, tensor.columns, tensor.values / roots, roots**2)


def _filled(tensor: SparseTensor, dtype: FloatDType) -> FilledTensor:
    """Return the elements of a sparse tensor."""
    filled, missing = np.zeros(tensor.shape, dtype), np.ones(tensor.shape, bool)
    places = np.ravel_multi_index(tuple(tensor.columns), tensor.shape)
    filled.reshape(-1)[places] = tensor.values
    missing.reshape(-1)[places] = False
    return FilledTensor(DenseTensor(filled), indices_of(missing), ElementList(tensor.columns, tensor.values).of_rows)


def _without_nan(present: PresentElements, dtype: FloatDType) -> FilledTensor:
    """Return the elements of a dense tensor."""

    def of_rows(mode: int, chosen: NDArray[np.bool_]) -> ElementList:
        return ElementList(*present.of_rows(mode, chosen))

    filled = present.tensor.array().astype(dtype)
    missing = np.isnan(filled)
    filled[missing] = 0
    return FilledTensor(DenseTensor(filled), indices_of(missing), of_rows)


def observed_source(
    source: DescribedSource, params: ObservedParams, comm: Comm, memory: DeviceMemory | None
) -> ObservedSource | None:
    """Return the observed elements of a tensor, or None if all elements are observed. Collective.

    Raises
    ------
    InputError
        If mask and weights do not fit the tensor; see `partitioner.tensors.observed.observed_elements`.
    """
    if not params.given(comm) and not _has_gaps(source, comm):
        return None
    mask = comm.bcast(params.mask if params.mask in (None, NAN, STORED) else "tensor")
    weighted = comm.bcast(params.weights is not None)
    if mask == STORED and not weighted:
        together(comm, lambda: _check_stored(source))
        elements = source.sparse(memory)
        return ObservedSource(elements, elements, ObservedTerms(float(elements.nnz), None, {"mask": STORED}))
    tensor, facts = source.unchecked(), {"mask": mask or ("weights" if weighted else NAN)}
    if facts["mask"] == NAN and not weighted and source.kind == "dense":
        present = on_root(comm, lambda: PresentElements(_loaded(tensor)) if isinstance(tensor, DenseTensor) else None)
        unlisted = PresentSource(present, comm, source.path, memory)
        return ObservedSource(unlisted, unlisted, ObservedTerms(float(unlisted.nnz), None, facts))
    chosen = on_root(comm, lambda: None if tensor is None else _chosen(tensor, params))
    elements = TensorSource(None if chosen is None else chosen.tensor, comm, source.path, memory)
    if not comm.bcast(chosen is not None and chosen.weights is not None):
        return ObservedSource(elements, elements, ObservedTerms(float(elements.nnz), None, facts))
    expanded = on_root(comm, lambda: None if chosen is None else with_weights(chosen))
    scales, total = comm.bcast((expanded.scales, expanded.total) if expanded else (np.empty(0), 0.0))
    placed = TensorSource(expanded.tensor if expanded else None, comm, memory=memory)
    facts["weights"] = f"{placed.digest():016x}"
    return ObservedSource(elements, placed, ObservedTerms(total, scales, facts))


def _has_gaps(source: DescribedSource, comm: Comm) -> bool:
    """Return whether a dense tensor in memory declares its NaN as missing, and has any. Collective."""
    if source.kind != "dense" or source.path is not None:
        return False
    tensor = source.unchecked()
    return bool(comm.bcast(tensor is not None and tensor.has_gaps))


def _check_stored(source: DescribedSource) -> None:
    try:
        check_stored(source.kind, source.zeros)
    except InputError as error:
        raise InputError(error.cause, path=source.path) from None


def _loaded(tensor: DenseTensor) -> DenseTensor:
    """Return a dense tensor in memory, with NaN where its file declares elements missing."""
    return tensor.with_gaps().in_memory()


def _chosen(tensor: AnyTensor, params: ObservedParams) -> Observed:
    """Return the observed elements on rank 0."""
    mask, weights = params
    if mask is not None and mask not in (NAN, STORED):
        mask = elementwise("mask", _opened_mask(mask), tensor.labels)
    weights = None if weights is None else elementwise("weights", weights, tensor.labels)
    return observed_elements(tensor, mask, weights)


def _opened_mask(mask: AnyTensor | str) -> AnyTensor:
    try:
        return read_if_path(mask, "mask")
    except InputError as error:
        raise InputError(f"{error}; expected {NAN!r}, {STORED!r}, an array, a tensor or its path") from None
