"""The benchmark of the host side, all very small."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from forms import exhaustive

from bench import host_start, host_threads
from bench.__main__ import main
from bench.host_reading import VALUES
from bench.workers import workers


def test_workers_have_the_cores_that_they_are_given() -> None:
    before = os.sched_getaffinity(0), dict(os.environ)
    with workers([1, len(before[0])]) as started:
        assert [len(worker(os.sched_getaffinity, 0)) for worker in started] == [1, len(before[0])]
        assert [worker(os.getenv, "NUMBA_NUM_THREADS") for worker in started] == ["1", str(len(before[0]))]
    assert (os.sched_getaffinity(0), dict(os.environ)) == before


def test_reading(tmp_path: Path) -> None:
    how = "--part reading --lines 500 --lines-of uber --cores 1 --repeats 2 --output".split()
    main(["host", *how, str(tmp_path)])
    found = json.loads((tmp_path / "host-reading.json").read_text())
    assert (tmp_path / "host-reading.png").exists()
    assert found["files"].keys() == VALUES.keys()
    for file in found["files"].values():
        assert file["values_off"]["amped"] == 0
        assert file["megabytes_a_second"]["1"]["numpy"]["median"] > 0
        assert file["amped_times_as_fast"]["1"]["amped"] == 1
        assert len(file["each"]["1"]["amped"]) == 2


def test_partitioning(tmp_path: Path, device: str) -> None:
    how = f"--part partition --millions 1 --spilled 1 --repeats 1 --device {device} --output {tmp_path}"
    main(["host", *how.split()])
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())
    assert path.with_suffix(".png").exists()
    million = found["in_memory"]["1"]
    assert len(million["each"]) == 1
    assert found["spilled"]["nonzeros"] == 10**6
    assert (path.stem, "cuda" in million, len(found["machine"]["devices"])) == {
        "cpu": ("host-partition", False, 1),
        "cuda": ("host-partition-cuda", True, 2),
    }[device]


@pytest.mark.parametrize("cases", [(("nell2", 3000, 16),), exhaustive(host_threads.CASES)], ids=["small", "all"])
@pytest.mark.exhaustive
def test_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: Any) -> None:
    monkeypatch.setattr(host_threads, "CASES", cases)
    main(["host", *f"--part threads --nonzeros 3000 --threads 1 2 --repeats 2 --output {tmp_path}".split()])
    found = json.loads((tmp_path / "host-threads.json").read_text())
    assert (tmp_path / "host-threads.png").exists()
    assert [case["shape"] for case in found["cases"]] == [shape for shape, *_ in cases]
    for case in found["cases"]:
        assert case["threads"]["1"]["gain"]["amped_of_gather"] == [1] * len(case["threads"]["1"]["kernels"])
        for times in case["threads"]["2"]["each"].values():
            assert [len(of_mode) for of_mode in times] == [2] * len(case["threads"]["2"]["kernels"])


@pytest.mark.parametrize("commands", [["info"], exhaustive([*host_start.COMMANDS])], ids=["one", "all"])
def test_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[str]) -> None:
    some = {name: host_start.COMMANDS[name] for name in commands}
    monkeypatch.setattr(host_start, "COMMANDS", some)
    main(["host", *f"--part start --cold 1 --repeats 1 --output {tmp_path}".split()])
    found = json.loads((tmp_path / "host-start.json").read_text())["starts"]
    assert (tmp_path / "host-start.png").exists()
    assert [*found] == commands
    for command in commands:
        assert found[command]["cold"]["compiling"]["median"] > 0
        assert [seconds for _, seconds in found[command]["each"]["warm"]] == [0]
