"""The benchmark of dense tensors, on a small one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import dense_mttkrp, random_factors

from bench import dense, dense_peers, dense_stream
from bench.__main__ import main


def einsum(equation: str, *operands: np.ndarray) -> Any:
    return np.einsum(equation, *operands)


@pytest.mark.parametrize("shape", [(4, 5), (6, 5, 4), (2, 3, 4, 5), (3, 2, 3, 2, 3)], ids=str)
def test_peers_compute_the_same(shape: tuple[int, ...]) -> None:
    tensor, factors = np.random.default_rng(0).random(shape), random_factors(0, shape, 3)
    for sweep in (dense_peers.every_mode(einsum, tensor, factors), dense_peers.two_products(einsum, tensor, factors)):
        found: Any = sweep()
        for mode, got in enumerate(found):
            assert np.allclose(got, dense_mttkrp(tensor, factors, mode))


def test_times_and_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "PAUSE", 0)
    monkeypatch.setattr(dense, "SQUARE", {"cpu": 64})
    flags = ["--shapes", "12x9x7", "--ranks", "4", "40", "--precision", "fp64", "--repeats", "2", "--threads", "1"]
    main(["dense", *flags, "--kernels", "split", "tile", "--output", str(folder)])
    found = json.loads((folder / "dense-cpu.json").read_text())
    small, large = found["cases"]
    assert set(small["milliseconds"]) == {"split", "tile", "einsum", "products", "copy"}
    assert "tile" not in large["milliseconds"], "slow ones are for small ranks"
    assert small["milliseconds"]["split"]["runs"] == 2
    assert small["scratch_bytes"]["split"] > 0
    assert small["cp_als_milliseconds"] > 0
    assert len(small["modes_milliseconds"]["tile"]) == 3
    assert found["products_gigaflops"]["fp64"] > 0


def test_streams_from_memory_and_from_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_stream, "SIDE", 50)
    sizes = ["--gigabytes", "0.0004", "--file-gigabytes", "0.0002", "--folder", str(folder)]
    main(["dense-stream", "--device", "cpu", *sizes, "--rank", "3", "--repeats", "2", "--output", str(folder)])
    found = json.loads((folder / "dense-stream-cpu.json").read_text())
    (memory,) = found["memory"]
    assert (memory["bytes"], memory["passes"], memory["sweeps"]["runs"]) == (20 * 50 * 50 * 8, 2, 2)
    assert [case["from"] for case in found["file"]] == ["disk", "memory"]
    for case in found["file"]:
        assert case["gigabytes_per_second"]["stream"]["runs"] == 2
        assert case["share_of_reads"]["resident"] > 0
    assert not (folder / "dense-stream.npy").exists()


@pytest.mark.exhaustive
def test_iterations_on_groups_of_ranks(folder: Path) -> None:
    flags = ["--device", "cpu", "--shapes", "12x9x7", "30x8", "--ranks", "3", "--threads", "1", "--output", str(folder)]
    main(["dense-ranks", *flags])
    found = json.loads((folder / "dense-ranks-cpu-1.json").read_text())
    assert [(case["shape"], case["precision"]) for case in found["cases"]] == [
        (shape, precision) for shape in ([12, 9, 7], [30, 8]) for precision in ("fp64", "fp32")
    ]
    for case in found["cases"]:
        assert case["milliseconds"]["1"]["median"] > 0
        assert case["times_as_fast"] == {"1": 1.0}
