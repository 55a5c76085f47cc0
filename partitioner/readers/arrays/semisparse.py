"""Semi-sparse tensors (sCOO) in NumPy archives, as written by ``ttm``, read as sparse tensors.

An archive contains ``indices`` (fibres, sparse modes), ``values`` (fibres, length, ...), ``mode`` (the dense mode, or
several in the order of the axes of ``values``), and ``shape``.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from os import PathLike

import numpy as np

from ...errors import InputError
from ...sorting.tables import Nonzeros
from ...tensors.ingest import MAX_ORDER, check_order
from .npz import DAMAGED, ROWS, ArchivePart, kept_as, small_integers


def is_semisparse(path: str | PathLike[str]) -> bool:
    """Return whether an archive contains a semi-sparse tensor, according to the names of its arrays."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {"indices.npy", "values.npy", "mode.npy"} <= set(archive.namelist())
    except DAMAGED:
        return False  # the reader raises the error


class SemiSparsePart(ArchivePart):
    """The nonzeros of a semi-sparse archive, all in part 0. See `FilePart`; zeros are dropped."""

    _plain = False

    def _check_forms(self, archive: zipfile.ZipFile) -> None:
        indices, values = self._indices, self._values
        modes = small_integers(archive, "mode", MAX_ORDER)
        if len(indices.shape) != 2 or indices.dtype.kind not in "iu":
            raise InputError(f"'indices' is {indices}, expected (fibres, sparse modes) integers")
        if len(values.shape) != 1 + len(modes) or values.dtype.kind not in "iuf" or not modes:
            raise InputError(
                f"'values' is {values}, expected (fibres, length, ...) real numbers, an axis for each 'mode'"
            )
        if indices.shape[0] != values.shape[0]:
            raise InputError(f"{values.shape[0]} values for {indices.shape[0]} rows of indices")
        if not math.prod(values.shape):
            raise InputError("no nonzeros")
        self.order = indices.shape[1] + len(modes)
        check_order(self.order)
        if sorted({*modes} & {*range(self.order)}) != sorted(modes):
            raise InputError(f"'mode' is {modes}, expected different modes from 0 to {self.order - 1}")
        self._modes, self._axes, self.dtype = modes, values.shape[1:], kept_as(values.dtype)
        values.shape = (values.shape[0], math.prod(self._axes))
        self._rows = max(1, ROWS // values.shape[1])

    def _check_lengths(self) -> None:
        if self.lengths is None:
            raise InputError("no array 'shape' in the archive of a semi-sparse tensor")
        for mode, length in zip(self._modes, self._axes, strict=True):
            if self.lengths[mode] != length:
                raise InputError(f"'values' has {length} numbers in mode {mode}, 'shape' says {self.lengths[mode]}")

    def _read(self) -> Iterator[Nonzeros]:
        sparse, fibres = [m for m in range(self.order) if m not in self._modes], 0
        with self._files:
            try:
                for indices, values in zip(self._indices.rows(self._rows), self._values.rows(self._rows), strict=True):
                    fibre, number = np.nonzero(values.T)
                    columns = np.empty((self.order, fibre.size), np.int64)
                    columns[sparse] = indices[:, fibre]
                    columns[self._modes] = np.unravel_index(number, self._axes, "F" if self._values.by_columns else "C")
                    piece = self._checked(columns, values.T[fibre, number], self._nonzeros) if fibre.size else None
                    fibres, self._nonzeros = fibres + values.shape[1], self._nonzeros + fibre.size
                    if self._progress:
                        self._progress(self._total * fibres // self._values.shape[0], self._total)
                    if piece is not None:
                        yield piece
            except InputError as error:
                self._fault = error
