"""The comparison of two trees: ratios and their intervals, stored tensors, and trees that take turns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from amped.errors import InputError
from bench import regression
from bench.__main__ import main
from bench.counter_rng import Recipe
from bench.regression import ALL, seconds_of, with_nonzeros
from bench.spread import ratio, summary
from bench.stored import archive, array, once
from partitioner.readers import read

TREE = '''
import json, os, sys

def main(arguments):
    """Pretend to be amped's command line: write the metrics of iterations that take {seconds} s."""
    with open({log!r}, "a") as file:
        print({seconds}, file=file)
    with open(arguments[arguments.index("--metrics") + 1], "w") as file:
        print(json.dumps({{"event": "start", "kernels": [["{seconds} s"]]}}), file=file)
        for number in range(6):
            print(json.dumps({{"event": "iteration", "seconds": {seconds} if number > 2 else 9}}), file=file)
    print("a report")
    return {code}
'''


def tree(folder: Path, seconds: float, code: int = 0) -> str:
    (folder / "amped").mkdir(parents=True)
    (folder / "amped" / "__init__.py").write_text("")
    text = TREE.format(seconds=seconds, code=code, log=str(folder.parent / "log"))
    (folder / "amped" / "run.py").write_text(text)
    return str(folder)


def compared(tmp_path: Path, old: float, new: float, code: int = 0) -> None:
    sides = ["--old", tree(tmp_path / "a", old), "--new", tree(tmp_path / "b", new, code)]
    how = ["--cases", "uber393k-cp-apr", "--repeats", "3", "--output", str(tmp_path / "found.json")]
    main(["regression", *sides, *how])


def test_two_trees_take_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compared(tmp_path, 0.5, 0.25)
    result = json.loads((tmp_path / "found.json").read_text())
    found = result["cases"]["uber393k-cp-apr"]
    assert found["old"] == {"median": 0.5, "quartile_1": 0.5, "quartile_3": 0.5, "runs": 3}
    assert found["old_over_new"] == {"ratio": 2, "low": 2, "high": 2, "confidence": 0.75, "pairs": 3}
    assert result["revisions"] == {"old": "a", "new": "b"}
    # Two processes of each: a warm-up, and then two repeats and one; who is first alternates.
    turns = (tmp_path / "log").read_text().split()
    assert turns == ["0.5", "0.25", "0.25", "0.5", "0.5", "0.25", "0.5", "0.25", "0.25", "0.5"]
    assert found["kernels"] == {"old": [["0.5 s"]], "new": [["0.25 s"]]}
    line = "old/new 2.000 (2.000 to 2.000, 75%, 3 pairs); different kernels: [['0.5 s']], [['0.25 s']]"
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ("new", "code", "fault"), [(0.6, 0, "slower than before: uber393k-cp-apr"), (0.5, 2, "exit code 2")]
)
def test_a_slower_tree_and_one_that_fails_are_faults(tmp_path: Path, new: float, code: int, fault: str) -> None:
    with pytest.raises(SystemExit, match=fault):
        compared(tmp_path, 0.5, new, code)


def test_a_folder_that_is_no_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is no tree of amped's sources"):
        main(["regression", "--old", str(tmp_path), "--output", str(tmp_path / "found.json")])


def test_what_metrics_say() -> None:
    def events(*seconds: float, name: str = "iteration", mode: int = 0) -> list[dict[str, object]]:
        return [{"event": name, "mode": mode, "seconds": each} for each in seconds]

    assert seconds_of(events(9, 9, 9, 1, 3, 1, 3, 9), "cpd", steady=True) == 2
    assert seconds_of(events(9, 9, 9, 1, 3, 5), "cpd", steady=False) == 3
    sweeps = events(1, 2, 9, name="mttkrp") + events(4, 5, 6, name="mttkrp", mode=1)
    assert seconds_of(sweeps, "mttkrp", steady=True) == 7
    assert seconds_of([{"event": "end", "seconds": {"runs": 2.0, "halves": 1.0}}], "scan", steady=True) == 3
    with pytest.raises(InputError, match="ended within 3 iterations"):
        seconds_of(events(1, 2, 3), "cpd", steady=True)


def test_the_ratio_of_pairs() -> None:
    rng = np.random.default_rng(0)
    new = rng.uniform(1, 2, 20)
    found = ratio(new * 1.1 * np.exp(rng.normal(0, 0.01, 20)), new)
    assert found["low"] < 1.1 < found["high"] < found["low"] + 0.02
    assert 0.95 <= found["confidence"] < 0.96
    disturbed = new * 1.1
    disturbed[3] *= 5
    assert ratio(disturbed, new)["ratio"] == pytest.approx(1.1)
    # Of six pairs the interval is the whole range, and of fewer its confidence is less.
    assert ratio([1, 2, 3, 4, 5, 6], [1] * 6) == pytest.approx(
        {"ratio": 12**0.5, "low": 1, "high": 6, "confidence": 1 - 2 / 64, "pairs": 6}, rel=0.1
    )
    assert ratio([2.0], [1.0]) == {"ratio": 2, "low": 2, "high": 2, "confidence": 0, "pairs": 1}


def test_the_interval_holds_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    logs = rng.standard_t(3, (1000, 8)) / 100
    found = [ratio(np.exp(each), np.ones(8)) for each in logs]
    assert np.mean([each["low"] <= 1 <= each["high"] for each in found]) == pytest.approx(0.96, abs=0.02)


def test_the_summary() -> None:
    assert summary([4, 1, 2, 3, 5]) == {"median": 3, "quartile_1": 2, "quartile_3": 4, "runs": 5}


def test_stored_tensors(tmp_path: Path) -> None:
    made = Recipe((5, 6, 7), 50, integers=True)
    archive(tmp_path / "x.npz", made)
    X = read(tmp_path / "x.npz")
    assert X.shape == made.lengths
    assert X.values.sum() == np.load(tmp_path / "x.npz")["values"].sum()
    array(tmp_path / "x.npy", (3, 4, 5))
    assert 0.4 < np.load(tmp_path / "x.npy").mean() < 0.6


def test_a_file_is_made_once_and_whole(tmp_path: Path) -> None:
    made = []

    def make(path: Path) -> None:
        made.append(path)
        path.write_text("x" * len(made))
        if len(made) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        once(tmp_path / "a" / "x", make)
    assert [once(tmp_path / "a" / "x", make).read_text() for _ in range(2)] == ["xx", "xx"]


def test_the_number_of_nonzeros_is_that_of_synthetic_sparse_tensors() -> None:
    assert with_nonzeros(ALL["nell2-sweep"], 9).tensor.nonzeros == 9
    assert with_nonzeros(ALL["dense-32"], 9) == ALL["dense-32"]
    assert with_nonzeros(ALL["uber393k-scan"], 9) == ALL["uber393k-scan"]


def test_uber393k_is_there() -> None:
    assert (regression.REPOSITORY / regression.UBER393K).is_file()
