"""The benchmarks of dense tensors that several ranks share, on small ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from amped.operators.dense.operator import DenseOperator
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs.assembly import bring_up, place
from bench.__main__ import main
from bench.dense_blocks import RandomSource


@pytest.fixture
def shared_folder(tmp_path: Path, comm: Comm) -> Path:
    return Path(comm.bcast(str(tmp_path)))


@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_each_rank_makes_its_own_block(comm: Comm, placement: str) -> None:
    options = Options(device="cpu", precision="fp64", threads=1, placement=placement)  # type: ignore[arg-type]
    machine = bring_up(options, comm)
    source = RandomSource((6, 5, 4), np.dtype(np.float64), machine)
    operator = place(source, 2, machine, options)
    assert isinstance(operator, DenseOperator)
    blocks = comm.allgather(source.mine)
    assert sum(block.size for block in blocks) == 120
    assert np.isclose(operator.norm, np.sqrt(sum((block**2).sum() for block in blocks)))
    if comm.size > 1:
        assert not np.array_equal(blocks[0].reshape(-1)[:20], blocks[1].reshape(-1)[:20])


def test_streams_side_by_side(comm: Comm, shared_folder: Path) -> None:
    sizes = ["--gigabytes", "0.024", "--rank", "3", "--repeats", "2", "--output", str(shared_folder)]
    main(["dense-stream", "--device", "cpu", "--file-gigabytes", "0", *sizes, "--name", "streamed"])
    comm.allgather(None)
    found = json.loads((shared_folder / "streamed.json").read_text())
    (memory,) = found["memory"]
    assert memory["ranks"] == comm.size
    assert memory["share_of_copies"] > 0
    assert len(found["machine"]["devices"]) == comm.size


def test_iterations_on_groups(comm: Comm, shared_folder: Path) -> None:
    flags = ["--shapes", "12x9x7", "--ranks", "3", "--precision", "fp64", "--threads", "1"]
    main(["dense-ranks", "--device", "cpu", *flags, "--output", str(shared_folder)])
    comm.allgather(None)
    (case,) = json.loads((shared_folder / f"dense-ranks-cpu-{comm.size}.json").read_text())["cases"]
    assert sorted(case["milliseconds"]) == sorted({"1", str(comm.size)})
