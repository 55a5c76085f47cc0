"""What ranks say to each other: `amped.parallel.mpi` on whatever number of processes mpirun started."""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import strategies as st
from oracle import block_sizes, on_examples

from amped.errors import InputError
from amped.parallel import mpi
from amped.parallel.mpi import Comm, on_root, together
from partitioner.host import ranks

pytestmark = pytest.mark.mpi
DTYPES = st.sampled_from([np.dtype(t) for t in ("f4", "f8", "i4")])


def test_the_world_is_all_processes(comm: Comm) -> None:
    assert mpi.launched()
    assert comm.allgather(comm.rank) == list(range(comm.size))
    assert comm.local_size == comm.size, "one machine"
    assert sorted(comm.allgather(comm.local_rank)) == list(range(comm.size))


def test_bcast_and_allgather(comm: Comm) -> None:
    assert comm.bcast({"from": comm.rank}) == {"from": 0}
    assert comm.bcast("text" if comm.rank == 0 else None) == "text"
    assert comm.allgather((comm.rank, "x" * comm.rank)) == [(r, "x" * r) for r in range(comm.size)]


def test_scatter(comm: Comm) -> None:
    def check(example: Any) -> None:
        sizes, given_as, wanted, message = example
        offsets = np.cumsum([0, *sizes])
        whole = np.arange(offsets[-1], dtype=given_as)
        with mock.patch.object(ranks, "MESSAGE", message):
            mine = comm.scatter(whole if comm.rank == 0 else None, offsets, wanted)
        assert mine.dtype == wanted
        assert np.array_equal(mine, whole[offsets[comm.rank] : offsets[comm.rank + 1]])

    on_examples(comm, st.tuples(block_sizes(comm.size, 11), DTYPES, DTYPES, st.sampled_from([8, 24, 1 << 30])), check)


def test_all_reduce(comm: Comm) -> None:
    def check(example: Any) -> None:
        size, dtype, seed = example
        everyone = np.random.default_rng(seed).integers(-99, 99, (comm.size, size)).astype(dtype)
        for reduction, combine in (("sum", np.sum), ("max", np.max)):
            mine = everyone[comm.rank].copy()
            comm.all_reduce(mine, reduction)
            assert np.array_equal(mine, combine(everyone, axis=0))

    on_examples(comm, st.tuples(st.integers(0, 9), st.sampled_from(["f4", "f8"]), st.integers(0, 999)), check)


def test_ranks_that_wait_leave_their_core_if_there_are_more_ranks_than_cores(
    comm: Comm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comm, "_crowded", True)
    matrix, places, seconds = np.zeros((comm.size, 2)), np.arange(comm.size + 1), 0.3
    comm.bcast(None)
    if comm.rank == 0:
        time.sleep(seconds)
    matrix[comm.rank], total, began = comm.rank, np.ones(1), time.thread_time()
    comm.all_reduce(total, "sum")
    comm.all_gather_rows(matrix, places[:-1], places[1:])
    assert time.thread_time() - began < seconds / 2
    assert total == comm.size
    assert np.array_equal(matrix[:, 1], np.arange(comm.size))


def test_sum_on(comm: Comm) -> None:
    def check(example: Any) -> None:
        shape, dtype, message, seed = example
        everyone = np.random.default_rng(seed).integers(-99, 99, (comm.size, *shape)).astype(dtype)
        for rank in range(comm.size):
            mine = everyone[comm.rank].copy()
            with mock.patch.object(ranks, "MESSAGE", message):
                comm.sum_on(rank, mine)
            assert np.array_equal(mine, everyone.sum(axis=0) if comm.rank == rank else everyone[comm.rank])

    shapes, messages = st.sampled_from([(0, 3), (1,), (7,), (5, 4)]), st.sampled_from([8, 24, 1 << 30])
    on_examples(comm, st.tuples(shapes, st.sampled_from(["f4", "f8"]), messages, st.integers(0, 999)), check)


def faulty(comm: Comm, ranks: set[int]) -> str:
    if comm.rank in ranks:
        raise InputError(f"wrong on {comm.rank}", path="some/file", line=3)
    return "right"


@pytest.mark.parametrize("ranks", [{0}, {1}, {3}, {1, 2}, {0, 1, 2, 3}])
def test_together_raises_the_same_error_on_all_ranks(comm: Comm, ranks: set[int]) -> None:
    there = {r for r in ranks if r < comm.size}
    try:
        outcome: Any = together(comm, lambda: faulty(comm, there))
    except InputError as error:
        outcome = str(error), error.path, error.line
    first = f"some/file, line 3: wrong on {min(there, default=0)}"
    expected = (first, "some/file", 3) if there else "right"
    assert comm.allgather(outcome) == [expected] * comm.size
    assert together(comm, lambda: comm.rank) == comm.rank, "ranks are in step afterwards"


def test_on_root(comm: Comm) -> None:
    assert on_root(comm, lambda: "value") == ("value" if comm.rank == 0 else None)
    with pytest.raises(InputError, match="wrong on 0"):
        on_root(comm, lambda: faulty(comm, {0}))
    assert on_root(comm, lambda: faulty(comm, {1, 2, 3})) == ("right" if comm.rank == 0 else None)
