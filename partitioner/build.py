"""Build a store from a file, on one process or all ranks, in bounded memory.

One process sorts a tensor that fits in memory directly. Otherwise, nonzeros become sorted runs (see `runs`), which
are merged into canonical order; pieces of that order are then the runs of each further mode. The store has the same
bytes either way, on any number of ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from .distributed_reading import READING, NonzeroCounts, Reading, Renumbering
from .errors import InputError, OutputError
from .host import checksums
from .host.jit import load_compiler
from .host.ranks import Ranks, SingleRank, agree, on_root, together
from .host.stages import STAGES
from .host.threads import side_by_side
from .readers import PLAIN, Progress, ReadOptions, is_table, read_sparse
from .shards.partition import mode_order
from .shards.sorted_runs import Runs
from .shards.sorters import DeviceName, Sorter, make_sorter
from .sorting.sort import Sort, sort_bytes
from .sorting.tables import DiskTable, Nonzeros
from .store import format as store
from .store.shared_fs import check_draft, check_same
from .store.staging import drafted
from .tensors.sparse import BLOCK, SparseTensor, ValueRange, norm, squares
from .tensors.used_indices import distinct

FREE_SHARE = 0.7  # of free memory: the default budget
LEAST = 1 << 18  # nonzeros sorted together at least, whatever the budget


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
        See `readers.read`; a store is read whole.
    target : path
        The folder to make, visible to all ranks' hosts. It gets this name only when it is complete.
    memory : int, optional
        Resident bytes allowed per rank; by default an equal share of 70 % of the free memory. Nonzeros that exceed
        it are spilled to files beside the store.
    force : bool
        Replace a store that is there already.
    ranks : Ranks, optional
        By default this process alone.
    progress : callable, optional
        See `readers.read`.
    device : {"cpu", "cuda", "auto"}
        Where nonzeros are sorted; "auto": on GPUs, if every rank finds one.
    form : ReadOptions
        See `readers.read`.

    Returns
    -------
    Store
        Opened.

    Raises
    ------
    InputError
        On every rank, if the file is at fault, the store cannot be written (another run writes there, say), or there
        is no such device.
    """
    ranks = ranks or SingleRank()
    if form.dense:
        raise InputError("a store holds nonzeros alone: --dense (dense=True) is for reading", path=path)
    given = {"path": path, "target": target, "memory": memory, "force": force, "device": device, **asdict(form)}
    agree(ranks, "partition()", lambda: {name: str(value) for name, value in given.items()})
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
                budget, how = _budget(memory, ranks), dict[str, Any]()
                if is_table(path, form):
                    how = {"memory": budget // 2, "folder": draft}
                reading = Reading(path, ranks, progress, form, **how)
                if not (how and reading.packed(draft, budget)):
                    _Build(reading, draft, budget - how.get("memory", 0), sorter).run()
        except OSError as error:
            raise OutputError(f"cannot write the store: {error.strerror or error}", path=folder) from None
        ranks.allgather(None)  # all ranks have finished writing
        on_root(ranks, stack.close)  # the draft becomes the store
    return together(ranks, lambda: store.Store(folder))


def _on_all(ranks: Ranks, action: Callable[[], Path]) -> Path:
    """Return on every rank what `action` returned on rank 0, as `on_root`."""
    given = ranks.allgather(on_root(ranks, action))[0]
    assert given is not None
    return given


class _Build:
    """The work of one rank on a store. Methods are collective."""

    def __init__(self, reading: Reading, folder: Path, budget: int, sorter: Sorter) -> None:
        self._reading, self._folder, self._sort = reading, folder, _counted(sorter.sort)
        self._ranks, self._order, self._threads = reading.ranks, reading.order, reading.threads
        limit = _limit(budget, 4 * self._order + reading.dtype.itemsize, self._ranks.size)
        self._limit = min(limit, sorter.most(self._order, reading.dtype))
        self._used = [np.empty(0, np.int32)] * self._order  # indices of this rank's nonzeros, if they are renumbered
        self._renumbering: Renumbering | None = None

    def run(self) -> None:
        """Write the files of the store."""
        runs = self._runs(range(self._order), self._reading.dtype)
        coming = STAGES.over("read", self._reading.chunks(self._limit))
        first = next(coming, None)
        told = self._ranks.allgather(None if first is None else first[2])
        if told[0] is False and not any(more is not None for more in told[1:]):
            # All is in rank 0's memory, as it read a file alone: dealing would take longer than writing.
            return self._write_alone(first)
        while first is not None:
            columns, values, more = first
            first = None  # it is freed before the next one is read
            runs.add(columns, values, spill=more or runs.count > 0)
            del columns, values
            first = next(coming, None)
        shape = self._reading.shape()
        with STAGES.of("sort"):
            scratch, by_rank = self._canonical(runs)
        facts = self._reading.facts(by_rank)
        self._renumbering = self._reading.renumbering(self._used)
        if self._renumbering is not None:
            shape = self._renumbering.shape
        with STAGES.of("write"):
            self._write(shape, facts, scratch, [each.nnz for each in by_rank])

    def _write_alone(self, nonzeros: tuple[NDArray[np.int32], NDArray[np.floating], bool] | None) -> None:
        """Have rank 0 write a file whose nonzeros are all in its memory."""
        shape = self._reading.shape()

        def write() -> None:
            assert nonzeros is not None
            tensor = self._whole(*nonzeros[:2], shape)
            with STAGES.of("write"):
                store.write_files(tensor, self._folder, sort=self._sort)

        on_root(self._ranks, write)

    def _whole(self, columns: NDArray[np.int32], values: NDArray[np.floating], shape: tuple[int, ...]) -> SparseTensor:
        """Return the tensor of a file that is in memory as a whole."""
        reading = self._reading
        tensor = SparseTensor.from_columns(columns, values, shape, path=reading.path, sort=self._sort)
        reading.warn(tensor.duplicates, tensor.value_range)
        tensor.labels = reading.labels
        return tensor.compacted(reading.base) if reading.form.compact else tensor

    def _runs(self, modes: Sequence[int], dtype: np.dtype[Any]) -> Runs:
        files = self._files("run", dtype)
        return Runs(modes, self._order, dtype, self._limit, self._ranks, self._threads, files, self._sort)

    def _files(self, name: str, dtype: np.dtype[Any]) -> DiskTable:
        """Return scratch files of this rank."""
        return DiskTable([self._folder / f"{name}{self._ranks.rank}.{k}" for k in range(self._order + 1)], dtype)

    def _canonical(self, runs: Runs) -> tuple[DiskTable, list[NonzeroCounts]]:
        """Merge the runs into this rank's scratch files; return these and the facts of each rank's."""
        facts, scratch = NonzeroCounts(), self._files("sorted", self._reading.dtype)
        for columns, values in runs.pieces(runs.shares(), merge=True):
            scratch.write(facts.nnz, columns, values)
            facts.add(values)
            if self._reading.form.compact:
                used = [distinct(column, int(column.max()) + 1) if column.size else column for column in columns]
                self._used = [np.union1d(*each) for each in zip(self._used, used, strict=True)]
            del columns, values
        facts.duplicates, facts.zeros = runs.duplicates, runs.zeros
        runs.remove()
        return scratch, self._ranks.allgather(facts)

    def _write(self, shape: tuple[int, ...], facts: NonzeroCounts, scratch: DiskTable, by_rank: Sequence[int]) -> None:
        on_root(self._ranks, lambda: store.make_files(self._folder, self._order, facts.nnz, facts.dtype))
        kind = facts.nnz, facts.dtype
        copies = [store.stored_nonzeros(self._folder, self._order, mode, *kind) for mode in range(self._order)]
        first, mine = sum(by_rank[: self._ranks.rank]), by_rank[self._ranks.rank]
        at = first
        for columns, values in self._read(scratch, 0, mine, self._reading.dtype):
            if self._renumbering is not None:
                self._renumbering.apply(columns)
            copies[0].write(at, columns, values)
            at += values.size
        scratch.remove()
        for mode in range(1, self._order):
            runs = self._runs([mode], facts.dtype)
            for columns, values in self._read(copies[0], first, mine, facts.dtype):
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
        self._finish(shape, facts)

    def _read(self, files: DiskTable, begin: int, nonzeros: int, dtype: np.dtype[Any]) -> Iterator[Nonzeros]:
        for start in range(0, nonzeros, self._limit):
            size = min(self._limit, nonzeros - start)
            columns, values = np.empty((self._order, size), np.int32), np.empty(size, dtype)
            files.read(begin + start, columns, values)
            yield columns, values
            del columns, values

    def _finish(self, shape: tuple[int, ...], facts: NonzeroCounts) -> None:
        """Sync the files to disk and write the manifest; each rank checksums an equal share of the blocks."""
        ranks = self._ranks
        names = [name for mode in range(self._order) for name in store.file_names(self._order, mode)]
        labels = self._reading.labels if self._renumbering is None else self._renumbering.labels
        label_files, kinds = on_root(ranks, lambda: store.write_labels(self._folder, labels)) or ({}, None)
        ranks.allgather(None)  # all ranks have finished writing
        blocks = [(name, block) for name in names for block in range(checksums.count_blocks(self._folder / name))]
        mine = blocks[_share(len(blocks), ranks)]
        sums = side_by_side(lambda block: checksums.checksum(self._folder / block[0], block[1]), mine, self._threads)
        checksums.sync_files([self._folder / name for name in names])
        entries: dict[str, checksums.Entry] = {
            name: {"bytes": (self._folder / name).stat().st_size, "crc32": []} for name in names
        }
        for (name, _), crc in zip(blocks, chain.from_iterable(ranks.allgather(sums)), strict=True):
            entries[name]["crc32"].append(crc)
        length = norm(facts.ends, list(chain.from_iterable(ranks.allgather(self._squares(facts)))))
        counts = {"nnz": facts.nnz, "duplicates": facts.duplicates, "zeros": facts.zeros}
        entries |= label_files
        found = {"shape": shape, "norm": length, "value_range": ValueRange(*facts.ends, facts.grain), "labels": kinds}
        on_root(ranks, lambda: store.write_manifest(self._folder, entries, facts.dtype, **found, **counts))

    def _squares(self, facts: NonzeroCounts) -> list[float]:
        """Return the sums of squares of this rank's share of the blocks, cut as those of a tensor in memory."""
        copy = store.stored_nonzeros(self._folder, self._order, 0, facts.nnz, facts.dtype)
        blocks, sums = _share(-(-facts.nnz // BLOCK), self._ranks), list[float]()
        for block in range(blocks.start, blocks.stop):
            part = np.empty(min(BLOCK, facts.nnz - block * BLOCK), facts.dtype)
            copy.read_values(block * BLOCK, part)
            sums += squares(part, facts.ends)
        return sums


def _counted(sort: Sort) -> Sort:
    """Return the sort with its seconds counted."""

    def counted(*arguments: Any, **how: Any) -> Any:
        with STAGES.of("sort"):
            return sort(*arguments, **how)

    return counted


def _share(items: int, ranks: Ranks) -> slice:
    return slice(items * ranks.rank // ranks.size, items * (ranks.rank + 1) // ranks.size)


def _budget(memory: int | None, ranks: Ranks) -> int:
    """Return this rank's limit of resident bytes."""
    node = os.uname().nodename
    sharing = ranks.allgather(node).count(node)
    return memory or int(FREE_SHARE * psutil.virtual_memory().available) // sharing


def _limit(budget: int, each: int, ranks: int) -> int:
    """Return how many nonzeros of `each` bytes a rank may sort together."""
    load_compiler()
    copies = 2 if ranks == 1 else 3  # as read, sorted, and in exchange with other ranks
    room = budget - int(psutil.Process().memory_info().rss) - READING
    return max(LEAST, room // (copies * each + sort_bytes(1, each)))
