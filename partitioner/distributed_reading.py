"""A file that all ranks read together: counts of its nonzeros, and renumbered indices."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .array_types import FloatDType, Floats
from .errors import InputError
from .host.memory import resident_memory
from .host.ranks import Ranks, on_root, together
from .host.stages import STAGES
from .host.threads import fair_threads, lone_threads
from .readers import (
    PLAIN,
    Progress,
    ReadOptions,
    check_labelled,
    chunks,
    is_table,
    open_part,
    settle,
    warn_of_header,
    warn_of_keys,
)
from .readers.pieces import naming
from .store import format as store
from .tensors.ingest import check_lengths
from .tensors.labels import Labels
from .tensors.used_indices import joined, labels_of, renumbered
from .tensors.value_range import ValueRange, ends, grain

READING = 48 << 20  # bytes of read buffers, in addition to the nonzeros
STREAMING = 128 << 20  # bytes that DuckDB needs to stream rows, in addition to labels


@dataclass
class NonzeroCounts:
    """Counts, range, grain and exact type of a set of nonzeros in canonical order."""

    nnz: int = 0
    duplicates: int = 0
    zeros: int = 0
    ends: tuple[float, float] = (np.inf, -np.inf)
    grain: float = 1.0
    dtype: FloatDType = store.SINGLE

    def add(self, values: Floats) -> None:
        """Add the values of further nonzeros."""
        if values.size:
            dtype = self.dtype if self.dtype != store.SINGLE else store.exact_dtype(values)
            self.join(NonzeroCounts(values.size, 0, 0, ends(values), grain(values) if self.grain else 0.0, dtype))

    def join(self, other: NonzeroCounts) -> None:
        """Add the counts of another set."""
        self.nnz += other.nnz
        self.duplicates += other.duplicates
        self.zeros += other.zeros
        self.ends = float(np.minimum(self.ends[0], other.ends[0])), float(np.maximum(self.ends[1], other.ends[1]))
        self.grain = min(self.grain, other.grain)
        self.dtype = max(self.dtype, other.dtype)


class Renumbering(NamedTuple):
    """New indices for the used indices of each mode.

    Attributes
    ----------
    used : list of arrays
        Used indices of each mode, ascending; an index's position is its new index.
    labels : Labels
        Labels of the new indices.
    """

    used: list[NDArray[np.int32]]
    labels: Labels

    @property
    def shape(self) -> tuple[int, ...]:
        """The new mode lengths."""
        return tuple(indices.size for indices in self.used)

    def apply(self, columns: NDArray[np.int32]) -> None:
        """Renumber indices, (order, n), in place."""
        for mode, column in enumerate(columns):
            columns[mode] = renumbered(column, self.used[mode])


class Reading:
    """A file that all ranks read, a part each, using `threads` on this rank. Methods are collective."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        ranks: Ranks,
        progress: Progress | None,
        form: ReadOptions = PLAIN,
        **table: object,
    ) -> None:
        self.path, self.ranks, self.form, self.base = path, ranks, form, 0
        self.labels: Labels | None = None
        self.threads = lone_threads(ranks) if is_table(path, form) else fair_threads(ranks)
        position = ranks.rank, ranks.size
        options: dict[str, Any] = {"threads": self.threads, "progress": progress, "form": form, **table}
        self._part = together(ranks, lambda: open_part(path, *position, **options))
        self.order, self.dtype = max(ranks.allgather(self._part.order)), self._part.dtype
        self._highest = np.zeros(self.order, np.int64)

    def chunks(self, limit: int) -> Iterator[tuple[NDArray[np.int32], Floats, bool]]:
        """Yield this rank's nonzeros, at most `limit` at a time, and whether more follow. Not collective."""
        for columns, values, more in chunks(self._part, limit):
            np.maximum(self._highest, columns.max(axis=1), out=self._highest)
            yield columns, values, more
            del columns, values  # free them before the next chunk is read

    def packed(self, folder: Path, budget: int) -> bool:
        """Let rank 0 write the store of a table if its packed nonzeros fit in memory. Return whether it did."""
        from .store.packed import PackedTensor, packed_bytes  # most files do not need it

        part: Any = self._part
        packable = getattr(part, "packable", False) and not self.form.compact
        available = budget - resident_memory() - STREAMING
        fits = packable and packed_bytes(part.lengths, part.expected, self.threads, part.valued) <= available
        if not self.ranks.allgather(fits)[0]:
            return False

        def write() -> None:
            with STAGES.of("read"):
                keys, values = part.packed()
            with STAGES.of("sort"), naming(self.path):
                labels, keep = part.outcome.labels, self.form.keep_zeros
                tensor = PackedTensor(keys, part.lengths, labels, self.threads, values, keep)
            del keys, values
            with STAGES.of("write"):
                tensor.write(folder, budget)

        on_root(self.ranks, write)
        return True

    def shape(self) -> tuple[int, ...]:
        """Return the mode lengths after reading. Raise the first `InputError` in the file, if there is any."""
        outcome = self._outcome = settle(self.path, self.ranks.allgather(self._part.outcome))
        self.base, self.labels = outcome.base, outcome.labels
        lengths = outcome.lengths or tuple((np.max(self.ranks.allgather(self._highest), axis=0) + 1).tolist())
        if self.form.shape is None:
            return lengths
        check_labelled(self.path, self.labels, lengths, self.form.shape)
        try:
            check_lengths(lengths, self.form.shape)
        except InputError as error:
            raise InputError(error.cause, path=self.path) from None
        return self.form.shape

    def join_counts(self, by_rank: Sequence[NonzeroCounts]) -> NonzeroCounts:
        """Join the counts of all ranks; raise `InputError` if no nonzero is left or a sum overflowed."""
        counts = NonzeroCounts()
        for each in by_rank:
            counts.join(each)
        if not counts.nnz:
            raise InputError("no nonzeros: every value is zero", path=self.path)
        if not np.all(np.isfinite(counts.ends)):
            raise InputError("sum of duplicates overflows", path=self.path)
        self.warn(counts.duplicates, lambda: ValueRange(*counts.ends, counts.grain))
        return counts

    def warn(self, duplicates: int, values: Callable[[], ValueRange]) -> None:
        """Warn, on rank 0, if the values may be keys of a table."""
        if self.ranks.rank == 0:
            warn_of_header(self.path, self._outcome.first, self._outcome.nonzeros)
            warn_of_keys(self.path, self._outcome, duplicates, values)

    def renumbering(self, used: Sequence[NDArray[np.int32]]) -> Renumbering | None:
        """Return the renumbering that joins all ranks' `used` indices, or None if the tensor is not compacted."""
        if not self.form.compact:
            return None
        union = [joined(indices, self.ranks) for indices in used]
        if self.labels is not None:
            return Renumbering(union, self.labels.taken(union))
        return Renumbering(union, Labels(labels_of(indices, self.base) for indices in union))
