"""The benchmark of products, on small tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amped.backend.choose import choose
from amped.operators.sources.described import SparseProduct
from amped.operators.sources.sparse import TensorSource
from amped.parallel.mpi import SingleComm
from bench import ceilings, spttm
from bench.__main__ import main
from bench.fibres import DrawnSource, Fibres, peers
from bench.synthetic import SyntheticSource, recipe


def test_nonzeros_are_those_of_the_other_benchmarks() -> None:
    drawn, device = recipe("nips", 2000), choose("cpu", SingleComm(), 1)
    source = DrawnSource(drawn, device)
    whole = TensorSource(SyntheticSource(drawn, SingleComm(), np).tensor(), SingleComm())
    for mode in source.sparse:
        found = source.by_fibre(mode, np.dtype(np.float32))
        want = SparseProduct(whole).by_fibre(mode, np.dtype(np.float32))
        for one, other in zip(found[:-1], want[:-1], strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(found[-1], want[-1], rtol=1e-6)


def test_others_compute_the_same() -> None:
    device = choose("cpu", SingleComm(), 1)
    source, matrix = DrawnSource(recipe("uber", 3000), device), np.random.default_rng(0).random((24, 5))
    fibres = Fibres.of(source, 1, np.dtype(np.float64), np)
    found: Any = {name: work() for name, work in peers(fibres, matrix, device).items()}
    want = np.add.reduceat(fibres.values[:, None] * matrix[fibres.indices], fibres.starts[:-1])
    assert {*found} == {"scipy"}
    np.testing.assert_allclose(found["scipy"], want)


def test_times(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spttm, "PAUSE", 0)
    monkeypatch.setattr(ceilings, "measure", lambda *_: {"copy": [10.0], "gather": {"0.001": 20.0, "1": 5.0}})
    flags = ["--shapes", "uber", "brainq", "--nonzeros", "3000", "--ranks", "4", "16", "--repeats", "2"]
    main(["spttm", *flags, "--ceilings", "--threads", "1", "--output", str(folder)])
    cases = json.loads((folder / "spttm-cpu.json").read_text())["cases"]
    assert [(c["shape"], c["mode"], c["rank"]) for c in cases] == [
        (shape, mode, rank)
        for shape, order in (("uber", 4), ("brainq", 3))
        for mode in range(order)
        for rank in (4, 16)
    ]
    for case in cases:
        assert {*case["milliseconds"]} == {"amped", "scipy"}
        assert case["milliseconds"]["amped"]["runs"] == 2
        assert case["error"] < 1e-6
        assert case["fibres"] <= case["nonzeros"] <= 3000
    first = cases[0]
    moved, gathered = 8 * first["nonzeros"] + 16 * first["fibres"], 16 * first["nonzeros"]
    assert first["flops_a_byte"] == pytest.approx(2 * 4 * first["nonzeros"] / (moved + gathered))
    assert first["gigaflops"] == pytest.approx(8 * first["nonzeros"] / first["milliseconds"]["amped"]["median"] / 1e6)
    assert first["floor_milliseconds"] == pytest.approx(moved / 1e7 + gathered / 5e6)


def test_a_wrong_result_would_be_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spttm, "PAUSE", 0)
    monkeypatch.setattr(spttm.TtmOperator, "compute", lambda self: self._out.fill(1))
    main(["spttm", "--shapes", "uber", "--nonzeros", "500", "--ranks", "4", "--modes", "0", "--repeats", "1",
          "--no-peers", "--output", str(folder)])  # fmt: skip
    assert json.loads((folder / "spttm-cpu.json").read_text())["cases"][0]["error"] > 0.1
