"""Build a store from a file, on one process or all ranks, in bounded memory.

A tensor that fits in the memory of one process is sorted directly. Otherwise the nonzeros become sorted runs (see
`sorted_runs`), which are merged into canonical order; pieces of that order are the runs of each further mode. The store
has the same bytes either way, on any number of ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from .array_types import FloatDType, Floats
from .distributed_reading import READING, NonzeroCounts, Reading, Renumbering
from .errors import InputError, OutputError
from .host import checksums
from .host.jit import load_compiler
from .host.memory import available_memory, resident_memory
from .host.ranks import Ranks, SingleRank, agree, on_root, together
from .host.stages import STAGES
from .host.threads import parallel_map
from .readers import PLAIN, Progress, ReadOptions, is_table, read_sparse
from .shards.partition import mode_order
from .shards.sorted_runs import Runs
from .shards.sorters import DeviceName, Sorter, make_sorter
from .sorting.sort import Sort, Sorted, SortOptions, sort_bytes
from .sorting.tables import DiskTable, Indices, Nonzeros, Values
from .store import format as store
from .store.shared_fs import check_draft, check_same
from .store.staging import drafted
from .tensors.sparse import SparseTensor
from .tensors.used_indices import distinct
from .tensors.value_range import BLOCK, ValueRange, norm, squares
from .wording import setting

FREE_SHARE = 0.7  # fraction of free memory, the default budget
LEAST = 1 << 18  # minimum number of nonzeros sorted at once, whatever the budget
THREAD = 2 << 20  # bytes per thread: its buffers for reading and sorting, and what its memory pool keeps


def partition(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    memory: int | None = None,
    force: bool = False,
    ranks: Ranks | None = None,
    progress: Progress | None = None,
    device: DeviceName = "cpu",
    form: ReadOptions = PLAIN,
) -> store.Store:
    """Partition the tensor in a file and write it as a store. Collective.

    Parameters
    ----------
    path : path
        See `readers.read`. A store is read completely.
    target : path
        The folder to create, visible to all hosts. It gets this name only when it is complete.
    memory : int, optional
        Resident bytes allowed per rank; by default an equal share of 70 % of the free memory. Nonzeros that exceed it
        are spilled to files beside the store.
    force : bool
        Replace an existing store.
    ranks : Ranks, optional
        The ranks; by default only this process.
    progress : callable, optional
        See `readers.read`.
    device : {"cpu", "cuda", "auto"}
        Device that sorts nonzeros; "auto" uses GPUs if every rank has one.
    form : ReadOptions
        See `readers.read`.

    Returns
    -------
    Store
        The new store, opened.

    Raises
    ------
    InputError
        On every rank, if the file is faulty, the store cannot be written (another run writes it, for example), or the
        device is not available.
    """
    ranks = ranks or SingleRank()
    if form.dense:
        raise InputError(f"a store holds only nonzeros: remove {setting('dense')}", path=path)
    arguments = {"path": path, "target": target, "memory": memory, "force": force, "device": device, **asdict(form)}
    agree(ranks, "partition()", lambda: {name: str(value) for name, value in arguments.items()})
    check_same(ranks, path)
    sorter = make_sorter(device, ranks)
    folder = Path(os.path.realpath(target))
    with ExitStack() as stack:
        draft = _on_all(ranks, lambda: stack.enter_context(drafted(folder, force)))
        check_draft(ranks, draft, folder)
        try:
            if Path(path).is_dir():
                on_root(
                    ranks,
                    lambda: store.write_files(read_sparse(path, form), draft, sort=sorter.sort),
                )
            else:
                budget, table_options = _budget(memory, ranks), dict[str, Any]()
                if is_table(path, form):
                    table_options = {"memory": budget // 2, "folder": draft}
                reading = Reading(path, ranks, progress, form, **table_options)
                if not (table_options and reading.packed(draft, budget)):
                    _Build(reading, draft, budget - table_options.get("memory", 0), sorter).run()
        except OSError as error:
            raise OutputError(f"cannot write the store: {error.strerror or error}", path=folder) from None
        ranks.allgather(None)  # all ranks have finished writing
        on_root(ranks, stack.close)  # renames the draft
    return together(ranks, lambda: store.Store(folder))


def _on_all(ranks: Ranks, action: Callable[[], Path]) -> Path:
    """Run `action` on rank 0 and return its result on every rank, with errors as in `on_root`."""
    result = ranks.allgather(on_root(ranks, action))[0]
    assert result is not None
    return result


class _Build:
    """The part of one rank in building a store. Methods are collective."""

    def __init__(self, reading: Reading, folder: Path, budget: int, sorter: Sorter) -> None:
        self._reading, self._folder, self._sort = reading, folder, _timed(sorter.sort)
        self._ranks, self._order, self._threads = reading.ranks, reading.order, reading.threads
        limit = _limit(budget, 4 * self._order + reading.dtype.itemsize, self._ranks.size, self._threads)
        self._limit = min(limit, sorter.most(self._order, reading.dtype))
        self._used = [np.empty(0, np.int32)] * self._order  # indices that this rank uses, if they are renumbered
        self._renumbering: Renumbering | None = None

    def run(self) -> None:
        """Read the file and write the files of the store."""
        runs = self._runs(range(self._order), self._reading.dtype)
        chunks = STAGES.over("read", self._reading.chunks(self._limit))
        first = next(chunks, None)
        has_more = self._ranks.allgather(None if first is None else first[2])
        if has_more[0] is False and not any(more is not None for more in has_more[1:]):
            # Rank 0 has read everything: distributing the nonzeros would take longer than writing them.
            return self._write_on_root(first)
        while first is not None:
            columns, values, more = first
            first = None  # free it before the next one is read
            runs.add(columns, values, spill=more or runs.count > 0)
            del columns, values
            first = next(chunks, None)
        shape = self._reading.shape()
        with STAGES.of("sort"):
            scratch, by_rank = self._canonical(runs)
        counts = self._reading.join_counts(by_rank)
        self._renumbering = self._reading.renumbering(self._used)
        if self._renumbering is not None:
            shape = self._renumbering.shape
        with STAGES.of("write"):
            self._write(shape, counts, scratch, [each.nnz for each in by_rank])

    def _write_on_root(self, nonzeros: tuple[NDArray[np.int32], Floats, bool] | None) -> None:
        """Write the store of a tensor that is completely in rank 0's memory."""
        shape = self._reading.shape()

        def write() -> None:
            assert nonzeros is not None
            tensor = self._whole(*nonzeros[:2], shape)
            with STAGES.of("write"):
                store.write_files(tensor, self._folder, sort=self._sort)

        on_root(self._ranks, write)

    def _whole(self, columns: NDArray[np.int32], values: Floats, shape: tuple[int, ...]) -> SparseTensor:
        """Return the tensor of a file that is completely in memory."""
        reading = self._reading
        options: dict[str, Any] = {"path": reading.path, "sort": self._sort, "keep_zeros": reading.form.keep_zeros}
        tensor = SparseTensor.from_columns(columns, values, shape, **options)
        reading.warn(tensor.duplicates, tensor.value_range)
        tensor.labels = reading.labels
        return tensor.compacted(reading.base) if reading.form.compact else tensor

    def _runs(self, modes: Sequence[int], dtype: FloatDType) -> Runs:
        files = self._files("run", dtype)
        keep = self._reading.form.keep_zeros
        return Runs(modes, self._order, dtype, self._limit, self._ranks, self._threads, files, self._sort, keep)

    def _files(self, name: str, dtype: FloatDType) -> DiskTable:
        """Return scratch files for this rank."""
        return DiskTable([self._folder / f"{name}{self._ranks.rank}.{k}" for k in range(self._order + 1)], dtype)

    def _canonical(self, runs: Runs) -> tuple[DiskTable, list[NonzeroCounts]]:
        """Merge the runs into scratch files of this rank; return these and the counts of each rank."""
        counts, scratch = NonzeroCounts(), self._files("sorted", self._reading.dtype)
        for columns, values in runs.pieces(runs.shares(), merge=True):
            scratch.write(counts.nnz, columns, values)
            counts.add(values)
            if self._reading.form.compact:
                used = [distinct(column, int(column.max()) + 1) if column.size else column for column in columns]
                self._used = [np.union1d(*each) for each in zip(self._used, used, strict=True)]
            del columns, values
        counts.duplicates, counts.zeros = runs.duplicates, runs.zeros
        runs.remove()
        return scratch, self._ranks.allgather(counts)

    def _write(self, shape: tuple[int, ...], counts: NonzeroCounts, scratch: DiskTable, by_rank: Sequence[int]) -> None:
        on_root(self._ranks, lambda: store.make_files(self._folder, self._order, counts.nnz, counts.dtype))
        size = counts.nnz, counts.dtype
        copies = [store.stored_nonzeros(self._folder, self._order, mode, *size) for mode in range(self._order)]
        first, mine = sum(by_rank[: self._ranks.rank]), by_rank[self._ranks.rank]
        at = first
        for columns, values in self._read(scratch, 0, mine, self._reading.dtype):
            if self._renumbering is not None:
                self._renumbering.apply(columns)
            copies[0].write(at, columns, values)
            at += values.size
        scratch.remove()
        for mode in range(1, self._order):
            runs = self._runs([mode], counts.dtype)
            for columns, values in self._read(copies[0], first, mine, counts.dtype):
                runs.add(columns, values, spill=mine > self._limit)
                del columns, values
            shares = runs.shares()
            at = sum(part.size for share in shares[: self._ranks.rank] for part in share)
            for columns, values in runs.pieces(shares):
                for k, m in enumerate(mode_order(self._order, mode)):
                    copies[mode].write_column(k, at, columns[m])
                copies[mode].write_column(self._order, at, values)
                at += values.size
                del columns, values
            runs.remove()
        self._finish(shape, counts)

    def _read(self, files: DiskTable, begin: int, nonzeros: int, dtype: FloatDType) -> Iterator[Nonzeros]:
        for start in range(0, nonzeros, self._limit):
            size = min(self._limit, nonzeros - start)
            columns, values = np.empty((self._order, size), np.int32), np.empty(size, dtype)
            files.read(begin + start, columns, values)
            yield columns, values
            del columns, values

    def _finish(self, shape: tuple[int, ...], counts: NonzeroCounts) -> None:
        """Sync the files to disk and write the manifest. Each rank checksums an equal share of the blocks."""
        ranks = self._ranks
        names = [name for mode in range(self._order) for name in store.file_names(self._order, mode)]
        labels = self._reading.labels if self._renumbering is None else self._renumbering.labels
        label_files, kinds = on_root(ranks, lambda: store.write_labels(self._folder, labels)) or ({}, None)
        ranks.allgather(None)  # all ranks have finished writing
        blocks = [(name, block) for name in names for block in range(checksums.count_blocks(self._folder / name))]
        mine = blocks[_share(len(blocks), ranks)]
        sums = parallel_map(lambda block: checksums.checksum(self._folder / block[0], block[1]), mine, self._threads)
        checksums.sync_files([self._folder / name for name in names])
        entries: dict[str, checksums.Entry] = {
            name: {"bytes": (self._folder / name).stat().st_size, "crc32": []} for name in names
        }
        for (name, _), crc in zip(blocks, chain.from_iterable(ranks.allgather(sums)), strict=True):
            entries[name]["crc32"].append(crc)
        length = norm(counts.ends, list(chain.from_iterable(ranks.allgather(self._squares(counts)))))
        numbers = {"nnz": counts.nnz, "duplicates": counts.duplicates, "zeros": counts.zeros}
        entries |= label_files
        attributes = {
            "shape": shape,
            "norm": length,
            "value_range": ValueRange(*counts.ends, counts.grain),
            "labels": kinds,
        }
        on_root(ranks, lambda: store.write_manifest(self._folder, entries, counts.dtype, **attributes, **numbers))

    def _squares(self, counts: NonzeroCounts) -> list[float]:
        """Return the sums of squares of this rank's share of the blocks, which are those of a tensor in memory."""
        copy = store.stored_nonzeros(self._folder, self._order, 0, counts.nnz, counts.dtype)
        blocks, sums = _share(-(-counts.nnz // BLOCK), self._ranks), list[float]()
        for block in range(blocks.start, blocks.stop):
            part = np.empty(min(BLOCK, counts.nnz - block * BLOCK), counts.dtype)
            copy.read_values(block * BLOCK, part)
            sums += squares(part, counts.ends)
        return sums


def _timed(sort: Sort) -> Sort:
    """Return the sort function with its time counted as a stage."""

    def timed_sort(
        columns: Indices, values: Values, modes: Sequence[int], lengths: Sequence[int], **options: Unpack[SortOptions]
    ) -> Sorted:
        with STAGES.of("sort"):
            return sort(columns, values, modes, lengths, **options)

    return timed_sort


def _share(items: int, ranks: Ranks) -> slice:
    return slice(items * ranks.rank // ranks.size, items * (ranks.rank + 1) // ranks.size)


def _budget(memory: int | None, ranks: Ranks) -> int:
    """Return the maximum resident memory of this rank in bytes."""
    node = os.uname().nodename
    sharing = ranks.allgather(node).count(node)
    return memory or int(FREE_SHARE * available_memory()) // sharing


def _limit(budget: int, each: int, ranks: int, threads: int) -> int:
    """Return the maximum number of nonzeros of `each` bytes that a rank sorts at once."""
    load_compiler()
    copies = 2 if ranks == 1 else 3  # as read, sorted, and in exchange with other ranks
    available = budget - resident_memory() - READING - threads * THREAD
    return max(LEAST, available // (copies * each + sort_bytes(1, each)))
