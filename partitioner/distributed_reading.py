"""A file that all ranks read together: what is known of its nonzeros, and how they are numbered anew."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from .errors import InputError
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
from .tensors.labels import Labels
from .tensors.sparse import ValueRange, check_lengths, ends, grain
from .tensors.used_indices import joined, labels_of, renumbered

READING = 48 << 20  # bytes of read buffers, beside the nonzeros
STREAMING = 128 << 20  # bytes that DuckDB takes to stream rows, beside labels


@dataclass
class NonzeroCounts:
    """Counts, range, grain and exact type of some nonzeros in canonical order."""

    nnz: int = 0
    duplicates: int = 0
    zeros: int = 0
    ends: tuple[float, float] = (np.inf, -np.inf)
    grain: float = 1.0
    dtype: np.dtype[Any] = store.SINGLE

    def add(self, values: NDArray[np.floating]) -> None:
        """Include more values."""
        if values.size:
            dtype = self.dtype if self.dtype != store.SINGLE else store.exact_dtype(values)
            self.join(NonzeroCounts(values.size, 0, 0, ends(values), grain(values) if self.grain else 0.0, dtype))

    def join(self, other: NonzeroCounts) -> None:
        """Include the facts of other nonzeros."""
        self.nnz += other.nnz
        self.duplicates += other.duplicates
        self.zeros += other.zeros
        self.ends = float(np.minimum(self.ends[0], other.ends[0])), float(np.maximum(self.ends[1], other.ends[1]))
        self.grain = min(self.grain, other.grain)
        self.dtype = max(self.dtype, other.dtype)


class Renumbering(NamedTuple):
    """The used indices of each mode, ascending, whose positions are the new ones; and what they were in the file."""

    used: list[NDArray[np.int32]]
    labels: Labels

    @property
    def shape(self) -> tuple[int, ...]:
        """The new mode lengths."""
        return tuple(indices.size for indices in self.used)

    def apply(self, columns: NDArray[np.int32]) -> None:
        """Number indices, (order, n), anew, in place."""
        for mode, column in enumerate(columns):
            columns[mode] = renumbered(column, self.used[mode])


class Reading:
    """A file read by all ranks, one part each, by `threads` of this rank. Methods are collective."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        ranks: Ranks,
        progress: Progress | None,
        form: ReadOptions = PLAIN,
        **table: Any,
    ) -> None:
        self.path, self.ranks, self.form, self.base = path, ranks, form, 0
        self.labels: Labels | None = None
        self.threads = lone_threads(ranks) if is_table(path, form) else fair_threads(ranks)
        where = ranks.rank, ranks.size
        how: dict[str, Any] = {"threads": self.threads, "progress": progress, "form": form, **table}
        self._part = together(ranks, lambda: open_part(path, *where, **how))
        self.order, self.dtype = max(ranks.allgather(self._part.order)), self._part.dtype
        self._highest = np.zeros(self.order, np.int64)

    def chunks(self, limit: int) -> Iterator[tuple[NDArray[np.int32], NDArray[np.floating], bool]]:
        """Yield this rank's nonzeros, `limit` at a time, and whether there are more. Not collective."""
        for columns, values, more in chunks(self._part, limit):
            np.maximum(self._highest, columns.max(axis=1), out=self._highest)
            yield columns, values, more
            del columns, values  # free them before the next chunk is read

    def packed(self, folder: Path, budget: int) -> bool:
        """Have rank 0 write the store of a table, if all fit its memory as numbers; tell whether it did."""
        from .store.packed import PackedTensor, packed_bytes  # not needed for most files

        part: Any = self._part
        mine = getattr(part, "packable", False) and not self.form.compact
        room = budget - int(psutil.Process().memory_info().rss) - STREAMING
        fits = mine and packed_bytes(part.lengths, part.expected, self.threads, part.valued) <= room
        if not self.ranks.allgather(fits)[0]:
            return False

        def write() -> None:
            with STAGES.of("read"):
                keys, values = part.packed()
            with STAGES.of("sort"), naming(self.path):
                tensor = PackedTensor(keys, part.lengths, part.outcome.labels, self.threads, values)
            del keys, values
            with STAGES.of("write"):
                tensor.write(folder, budget)

        on_root(self.ranks, write)
        return True

    def shape(self) -> tuple[int, ...]:
        """Return the mode lengths after reading; raise the file's first `InputError`, if there is one."""
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

    def facts(self, by_rank: Sequence[NonzeroCounts]) -> NonzeroCounts:
        """Join the facts of all ranks; raise `InputError` if no nonzero is left or a sum overflowed."""
        facts = NonzeroCounts()
        for each in by_rank:
            facts.join(each)
        if not facts.nnz:
            raise InputError("no nonzeros: every value is zero", path=self.path)
        if not np.all(np.isfinite(facts.ends)):
            raise InputError("duplicates sum past the largest number", path=self.path)
        self.warn(facts.duplicates, lambda: ValueRange(*facts.ends, facts.grain))
        return facts

    def warn(self, duplicates: int, values: Callable[[], ValueRange]) -> None:
        """Warn, on rank 0, if what is taken for values may be keys."""
        if self.ranks.rank == 0:
            warn_of_header(self.path, self._outcome.first, self._outcome.nonzeros)
            warn_of_keys(self.path, self._outcome, duplicates, values)

    def renumbering(self, used: Sequence[NDArray[np.int32]]) -> Renumbering | None:
        """Join the indices that ranks use, if the tensor is to be compact."""
        if not self.form.compact:
            return None
        whole = [joined(indices, self.ranks) for indices in used]
        if self.labels is not None:
            return Renumbering(whole, self.labels.taken(whole))
        return Renumbering(whole, Labels(labels_of(indices, self.base) for indices in whole))
