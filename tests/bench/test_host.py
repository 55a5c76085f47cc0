"""The benchmarks of the host side, all very small."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.host_reading import VALUES
from bench.workers import workers


def test_workers_have_the_cores_that_they_are_given() -> None:
    before = os.sched_getaffinity(0), dict(os.environ)
    with workers([1, len(before[0])]) as started:
        assert [len(worker(os.sched_getaffinity, 0)) for worker in started] == [1, len(before[0])]
        assert [worker(os.getenv, "NUMBA_NUM_THREADS") for worker in started] == ["1", str(len(before[0]))]
    assert (os.sched_getaffinity(0), dict(os.environ)) == before


@pytest.mark.exhaustive
def test_reading(tmp_path: Path) -> None:
    main(["host-reading", *"--lines 500 --shape uber --cores 1 --repeats 2 --output".split(), str(tmp_path)])
    found = json.loads((tmp_path / "host-reading.json").read_text())
    assert [case["values"] for case in found["cases"]] == list(VALUES)
    for case in found["cases"]:
        assert case["values_off"]["amped"] == 0
        assert case["megabytes_a_second"]["numpy"]["median"] > 0
        assert case["amped_times_as_fast"]["amped"] == 1
        assert case["megabytes_a_second"]["amped"]["runs"] == 2


@pytest.mark.exhaustive
def test_mttkrp(tmp_path: Path) -> None:
    flags = "--shapes uber --columns 16 --nonzeros 3000 --cores 1 --repeats 2 --output".split()
    main(["host-mttkrp", *flags, str(tmp_path)])
    found = json.loads((tmp_path / "host-mttkrp.json").read_text())
    (case,), (tool,) = found["cases"], found["tools"]
    assert set(case["milliseconds"]) == {"amped", "permuted", "plain", "gather"}
    assert case["milliseconds"]["amped"]["runs"] == 2
    assert case["gain"]["amped"] == 1
    assert tool["tool"] == "scipy"
    assert tool["million_nonzeros_by_columns_a_second"]["scipy"]["median"] > 0
