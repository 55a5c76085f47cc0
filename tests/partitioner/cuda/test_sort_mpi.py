"""Stores sorted on GPUs by several ranks: the same files as those made by one with its CPU."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from tensors import files_of, hard_nonzeros, write_store

from amped.parallel.mpi import Comm
from partitioner import build
from partitioner.build import partition
from partitioner.errors import InputError
from partitioner.host.ranks import world
from partitioner.shards import sorted_runs, sorters
from partitioner.shards.sorters import make_sorter, probe
from partitioner.sorting.sort import sort_nonzeros
from partitioner.tensors.sparse import SparseTensor

pytestmark = pytest.mark.mpi
CASES = hard_nonzeros()


@pytest.mark.gpu
@pytest.mark.skipif(bool(probe()), reason=probe())
@pytest.mark.parametrize("limit", [600, 10**6])
@pytest.mark.parametrize("name", CASES)
def test_the_store_is_the_same_on_any_number_of_gpus(comm: Comm, tmp_path: Path, name: str, limit: int) -> None:
    folder = comm.bcast(tmp_path)
    columns, values = CASES[name]
    if comm.rank == 0:
        np.savez(folder / "t.npz", indices=columns.T, values=values)
        write_store(SparseTensor(columns.T, values), folder / "one")
    comm.allgather(None)
    with mock.patch.object(build, "_limit", return_value=limit), mock.patch.object(sorted_runs, "SAMPLES", 16):
        partition(folder / "t.npz", folder / "all", ranks=world(), device="cuda")
    assert files_of(folder / "all") == files_of(folder / "one")
    comm.allgather(None)


def test_a_rank_without_a_gpu_is_told_on_all_ranks(comm: Comm) -> None:
    last = comm.size - 1
    with mock.patch.object(sorters, "probe", return_value="no GPU found" if comm.rank == last else ""):
        with pytest.raises(InputError, match=r"cuda'?: no GPU found") as caught:
            make_sorter("cuda", world())
        assert str(caught.value).endswith(f"(rank {last})" if last else "found")
        assert make_sorter("auto", world()).sort is sort_nonzeros
