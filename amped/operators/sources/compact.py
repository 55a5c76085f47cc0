"""Sparse tensors whose hypersparse modes are renumbered while they are placed; see `kept_rows`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType
from partitioner.shards.partition import Cut, mode_order
from partitioner.tensors.used_indices import renumbered

from ..kept_rows import Compaction, KeptRows, is_hypersparse
from ..placement import INDEX_BYTES, Loading, Setting
from .protocols import DescribedSource, ModeCopies, Offsets, SparseSource

MOST_NONZEROS = 8  # per index of a mode: with more, the time for its rows hardly matters


def kept_rows(source: SparseSource, setting: Setting) -> dict[int, KeptRows]:
    """Return the rows that matrices of the hypersparse modes keep, by mode; none unless a CPU computes. Collective."""
    compaction, result = setting.compaction, dict[int, KeptRows]()
    if compaction is None or source.stored or not setting.device.on_host:
        return result
    for mode, (length, rank) in enumerate(zip(source.shape, setting.ranks, strict=True)):
        spare = compaction.empty.spare(rank)
        if mode in compaction.whole or source.nnz > MOST_NONZEROS * length or not is_hypersparse(length, 0, spare):
            continue
        used = source.used_indices(mode)
        if is_hypersparse(length, used.size, spare):
            result[mode] = KeptRows(used, length, compaction.empty, rank)
    return result


def used_indices(source: DescribedSource, compaction: Compaction) -> dict[int, NDArray[np.int32]]:
    """Return the used indices of the modes that may be compacted, by mode; none of a dense tensor. Collective."""
    found = {mode: source.used_indices(mode) for mode in range(len(source.shape)) if mode not in compaction.whole}
    return {mode: used for mode, used in found.items() if used is not None}


def compacted(source: SparseSource, kept: Mapping[int, KeptRows], setting: Setting) -> ModeCopies:
    """Return a tensor without the rows that are not `kept`; itself if all are."""
    return CompactSource(source, kept, setting) if kept else source


class CompactSource:
    """A tensor with only the kept rows of some modes; see `ModeCopies`."""

    stored = False

    def __init__(self, source: SparseSource, kept: Mapping[int, KeptRows], setting: Setting) -> None:
        self._source, self._kept, self.path = source, kept, source.path
        self.shape = tuple(kept[m].indices.size if m in kept else n for m, n in enumerate(source.shape))
        self.norm, self.value_range, self.value_dtype = source.norm, source.value_range, source.value_dtype
        item = setting.options.dtype.itemsize
        absent = sum((kept[m].length - self.shape[m]) * setting.ranks[m] * item for m in kept)
        # The start and the model have all rows; renumbering needs a table of a mode.
        self._more = absent + sum(each.nbytes + INDEX_BYTES * each.length for each in kept.values())

    def used(self, mode: int) -> int:
        return self._source.used(mode)

    def cut(self, mode: int, parts: int, targets: Offsets | None = None) -> Cut:
        cut = self._source.cut(mode, parts, targets)
        if mode not in self._kept:
            return cut
        before = self._kept[mode].before
        return Cut(cut.nonzeros, before(cut.rows), np.where(cut.heads < 0, -1, before(cut.heads)))

    def load(self, mode: int, cut: Cut, dtype: FloatDType, keep: int | None = None) -> Iterator[Any]:
        columns = self._source.load(mode, self._original(mode, cut), dtype, keep)
        for m in mode_order(len(self.shape), mode):
            column = next(columns)
            yield renumbered(column, self._kept[m].indices) if m in self._kept else column
        yield next(columns)

    def _original(self, mode: int, cut: Cut) -> Cut:
        """Return a cut in the numbers of the source's rows."""
        if mode not in self._kept:
            return cut
        kept = self._kept[mode]
        indices = np.append(kept.indices, kept.length).astype(np.int64)
        return Cut(cut.nonzeros, indices[cut.rows], np.where(cut.heads < 0, -1, indices[cut.heads]))

    def loading(self, ranks: int, dtype: FloatDType, on_host: bool) -> Loading:
        """See `ModeCopies`: shards cannot use the tensor's columns in place."""
        loading = self._source.loading(ranks, dtype, on_host)
        others = loading.others or Loading(streamed=loading.streamed)
        return self._with_more(loading)._replace(others=self._with_more(others))

    def _with_more(self, loading: Loading) -> Loading:
        return loading._replace(tensor=loading.tensor + self._more, shareable=0)

    def placed(self) -> None:
        self._source.placed()

    def leave_device(self) -> None:
        self._source.leave_device()
