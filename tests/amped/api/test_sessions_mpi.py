"""Checkpoints and metrics of the Python functions under ``mpirun``: rank 0 writes them, all ranks agree."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import amped
from amped import InputError
from amped.parallel.mpi import Comm

HOW: dict[str, Any] = {"tol": 0, "device": "cpu", "precision": "fp64", "threads": 1}


def test_ranks_resume_together(comm: Comm) -> None:
    with TemporaryDirectory() as mine:
        place = comm.bcast(mine)
        rng = np.random.default_rng(1)
        tensor = amped.DenseTensor(rng.random((5, 4, 3))) if comm.rank == 0 else None
        metrics = f"{place}/m.jsonl"
        whole = amped.cp_als(tensor, 3, max_iters=4, **HOW)
        amped.cp_als(tensor, 3, max_iters=2, checkpoint=f"{place}/c", metrics=metrics, **HOW)
        with pytest.raises(InputError, match="exists already"):
            amped.cp_als(tensor, 3, max_iters=2, checkpoint=f"{place}/c", **HOW)
        with pytest.raises(InputError, match="began with seed 0, not seed 1"):
            amped.cp_als(tensor, 3, checkpoint=f"{place}/c", resume=True, seed=1, **HOW)
        with pytest.raises(InputError, match="checkpoint"):
            amped.cp_als(tensor, 3, checkpoint=f"{place}/c{comm.rank}", **HOW)
        rest = amped.cp_als(tensor, 3, max_iters=4, checkpoint=f"{place}/c", resume=True, metrics=metrics, **HOW)
        np.testing.assert_allclose(rest.run["fits"], whole.run["fits"], rtol=1e-12)
        lines = [json.loads(line) for line in Path(metrics).read_text().splitlines()]
        assert [each["ranks"] for each in lines if each["event"] == "start"] == [comm.size] * 2
        comm.allgather(None)  # before rank 0 removes the folder


def test_a_callback_of_one_rank_stops_all(comm: Comm) -> None:
    tensor = np.random.default_rng(1).random((5, 4, 3))
    last = comm.size - 1
    model = amped.cp_als(tensor, 3, callback=lambda number, _: number == 2 and comm.rank == last, **HOW)
    assert len(model.fits) == 2
    np.testing.assert_array_equal(model.full(), amped.cp_als(tensor, 3, max_iters=2, **HOW).full())


def test_a_callback_that_only_one_rank_has(comm: Comm) -> None:
    tensor = np.random.default_rng(1).random((5, 4, 3))
    mine = comm.rank == comm.size - 1
    model = amped.cp_als(tensor, 3, callback=(lambda number, _: number == 2) if mine else None, **HOW)
    assert len(model.fits) == 2
    tried: list[int] = []
    watch = (lambda each: tried.append(each.rank)) if mine else None
    amped.scan(tensor, "1-3", starts=1, max_iters=5, callback=watch, device="cpu")
    assert tried == [1, 2, 3] * mine
