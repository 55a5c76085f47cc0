"""Plans of how ranks share a sparse tensor, here and on machines that are not at hand."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from command import on_ranks, refused, run_amped, run_partitioner, succeeded

import amped
from amped.operators.distributions.traffic import RankDistribution, RowFormat, exchange_bytes
from partitioner.shards.partition import counted_rows, cut_mode

SHAPE = (300, 200, 3000)
RANK = 16
ABSENT = ["--ranks", 64, "--ranks-per-node", 8]


@pytest.fixture
def tensor(folder: Path) -> amped.SparseTensor:
    """A tensor with a heavy row, in t.npz."""
    rng = np.random.default_rng(0)
    columns = np.stack([np.minimum(rng.zipf(1.2, 20_000), n).astype(np.int32) - 1 for n in SHAPE])
    columns[2] = rng.integers(0, SHAPE[2], 20_000)
    columns = np.unique(columns, axis=1)
    values = np.ones(columns.shape[1])
    np.savez("t.npz", indices=columns.T, values=values, shape=np.array(SHAPE))
    return amped.SparseTensor.from_columns(columns, values, SHAPE)


def _rows(text: str) -> dict[str, list[str]]:
    """Return the candidates that a plan prints: the cells of each by name."""
    lines = text.splitlines()
    (head,) = [k for k, line in enumerate(lines) if line.split()[:1] == ["distribution"]]
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines[head:]]
    return {row[0]: row for row in cells}


def _exact(tensor: amped.SparseTensor, distribution: RankDistribution, rows: RowFormat) -> list[int]:
    """Return the bytes of each rank from the tensor's own cuts."""
    cuts = [
        cut_mode(counted_rows(column, length), length, distribution.parts_of(mode))
        for mode, (column, length) in enumerate(zip(tensor.columns, SHAPE, strict=True))
    ]
    return exchange_bytes(distribution, cuts, rows)


def test_a_plan_for_absent_gpus_has_exact_bytes(tensor: amped.SparseTensor) -> None:
    found = amped.plan(tensor, 10, ranks=64, ranks_per_node=8, network=25e9, gpu="h200", device="cpu")
    assert found is not None
    assert {each.distribution.name for each in found.candidates} == {"all-gather", "replicated", "grid"}
    for each in found.candidates:  # rows of 10 numbers are padded to 12
        assert each.bytes == _exact(tensor, each.distribution, RowFormat(10, 12, 4))
    assert found.seconds == found.candidates[0].seconds.total
    assert found.device_bytes == ()
    assert "64 x NVIDIA H200 on 8 nodes, 25 GB/s" in found.text


def test_a_store_has_the_candidates_of_its_tensor(tensor: amped.SparseTensor) -> None:
    succeeded(run_partitioner("t.npz", "--output", "s"))
    texts = [succeeded(run_amped("plan", each, "--rank", RANK, *ABSENT)).out for each in ("t.npz", "s")]
    assert _rows(texts[0]) == _rows(texts[1])
    assert len(_rows(texts[0])) > 3


def test_absent_gpus_need_no_cupy(tensor: amped.SparseTensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "NVIDIA H100" in succeeded(run_amped("plan", "t.npz", "--rank", RANK, "--gpu", "h100", "--ranks", 4)).out


def test_a_slow_network_makes_replication_the_best(tensor: amped.SparseTensor) -> None:
    slow, fast = (
        amped.plan(tensor, 16, ranks=64, ranks_per_node=8, network=network, device="cpu") for network in (1e6, 50e9)
    )
    assert slow is not None
    assert fast is not None
    assert slow.candidates[0].distribution.name == "replicated"
    assert [c.bytes for c in slow.candidates if c.distribution.name == "all-gather"] == [
        c.bytes for c in fast.candidates if c.distribution.name == "all-gather"
    ]
    times = [next(c.seconds.total for c in p.candidates if c.distribution.name == "all-gather") for p in (slow, fast)]
    assert times[0] > 10 * times[1]


def test_a_plan_here_prints_the_candidates_of_several_ranks(tensor: amped.SparseTensor) -> None:
    one = succeeded(run_amped("plan", "t.npz", "--rank", RANK, "--device", "cpu")).out
    assert "distribution" not in one
    four = succeeded(run_amped("plan", "t.npz", "--rank", RANK, "--device", "cpu", "--ranks", 4)).out
    rows = _rows(four)
    assert "all-gather" in rows
    assert "grid 1x1x4" in rows
    assert "replicated" not in rows  # all ranks share the cores
    assert min(float(row[-1]) for name, row in rows.items() if name != "distribution") == 1.0


def test_started_ranks_agree_on_the_candidates(tensor: amped.SparseTensor) -> None:
    result = on_ranks(2, "plan", "t.npz", "--rank", RANK, "--device", "cpu", "--deterministic")
    assert result.code == 0, result.err
    alone = succeeded(
        run_amped("plan", "t.npz", "--rank", RANK, "--device", "cpu", "--deterministic", "--ranks", 2, "--threads", 1)
    )
    assert _rows(result.out).keys() == _rows(alone.out).keys()
    assert [row[1] for row in _rows(result.out).values()] == [row[1] for row in _rows(alone.out).values()]


def test_candidates_are_a_frame_and_metrics(tensor: amped.SparseTensor) -> None:
    found = amped.plan(tensor, RANK, ranks=4, device="cpu")
    assert found is not None
    frame = found.to_frame(candidates=True)
    assert frame["distribution"].tolist() == [str(each.distribution) for each in found.candidates]
    assert frame["exchange_bytes"].tolist() == [max(each.bytes) for each in found.candidates]
    assert len(found.to_frame()) == 4
    succeeded(run_amped("plan", "t.npz", "--rank", RANK, *ABSENT, "--metrics", "m.jsonl"))
    event = next(e for e in map(json.loads, Path("m.jsonl").read_text().splitlines()) if e["event"] == "plan")
    assert event["ranks"] == 64
    assert all(len(each["exchange_bytes"]) == 64 for each in event["candidates"])


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (["--ranks-per-node", 0], "ranks per node 0"),
        (["--network", -1], "network -1.0"),
        (["--gpu", "h100", "--ranks", 65_536], "at most 65,535 can be planned"),
        (["--gpu", "h100", "--mode", 0], "--mode plans a product"),
        (["--gpu", "h100", "--loss", "poisson"], "for CP-ALS of sparse tensors only"),
    ],
)
def test_impossible_machines(tensor: amped.SparseTensor, flags: list[object], cause: str) -> None:
    assert cause in refused(run_amped("plan", "t.npz", "--rank", RANK, *flags))


def test_dense_tensors_have_one_distribution(folder: Path) -> None:
    np.save("d.npy", np.ones((4, 5, 6)))
    assert "for CP-ALS of sparse tensors only" in refused(run_amped("plan", "d.npy", "--rank", 2, "--gpu", "h100"))
    assert "distribution" not in succeeded(run_amped("plan", "d.npy", "--rank", 2, "--ranks", 2, "--device", "cpu")).out
