"""The benchmark of Tucker decompositions runs, and its tensors are what it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from amped.parallel.mpi import SingleComm
from bench import tucker
from bench.__main__ import main
from bench.synthetic import recipe


@pytest.mark.exhaustive
def test_a_result_has_all_that_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--nonzeros", "4000", "--iterations", "1", "--threads", "1", "--output", str(tmp_path)]
    main(["tucker", "--cases", "uber:2,2,2,2", "--fields", "12x10x11", "--peers", "numpy", *flags])
    found = json.loads((tmp_path / "tucker-cpu.json").read_text())
    (sparse,), (dense,) = found["sparse"], found["dense"]
    assert len(sparse["modes"]) == 4
    assert all(mode["floor_ms"] > 0 and mode["compute"]["median"] > 0 for mode in sparse["modes"])
    assert set(dense["seconds"]) == {"amped", "numpy"}
    assert dense["error"] < 2e-3
    assert "TTMc" in capsys.readouterr().out


@pytest.mark.parametrize("mode", [0, 2])
def test_nonzeros_come_in_the_order_of_all_indices(mode: int) -> None:
    source = tucker.Ordered(recipe("uber", 3000), SingleComm(), np)
    *columns, values = source.load(mode, source.cut(mode, 1), np.dtype(np.float32))
    assert values.size == 3000
    np.testing.assert_array_equal(np.lexsort(columns[::-1]), np.arange(3000))
    runs = [len(np.unique(np.stack(columns[:k]), axis=1)[0]) for k in (2, 3)]
    assert source.nodes[mode] == runs
