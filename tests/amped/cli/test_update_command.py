"""The verb ``update``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import refused, run_amped, succeeded

import amped

ROWS = ["who,day,count", "a,1,3", "b,1,1", "a,2,2", "b,2,2", "c,3,4"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> amped.KruskalTensor:
    monkeypatch.chdir(tmp_path)
    Path("events.csv").write_text("\n".join(ROWS))
    keys = "--key", "who", "--key", "day", "--value", "sum(count)"
    succeeded(run_amped("cpd", "events.csv", *keys, "--rank", 1, "--output", "first", "--precision", "fp64"))
    for day in (4, 5):
        Path(f"day{day}.csv").write_text(f"who,day,count\na,{day},5\nd,{day},1\n")
    loaded = amped.load("first")
    assert isinstance(loaded, amped.KruskalTensor)
    return loaded


def test_days_of_a_table(model: amped.KruskalTensor) -> None:
    how = "--mode", 1, "--precision", "fp64", "--forgetting", 0.9
    succeeded(run_amped("update", "first", "day4.csv", "day5.csv", *how, "--metrics", "m.jsonl"))
    succeeded(run_amped("update", "first", "day4.csv", "--mode", "day", "--output", "by-name"))
    found = amped.load("first-updated")
    want = model.update(iter(["day4.csv", "day5.csv"]), 1, forgetting=0.9, precision="fp64")
    assert isinstance(found, amped.KruskalTensor)
    assert found.labels is not None
    assert [each.tolist() for each in found.labels] == [list("abcd"), [1, 2, 3, 4, 5]]
    np.testing.assert_allclose(found.full(), want.full(), rtol=1e-10)
    assert found.slice_weights is not None
    np.testing.assert_allclose(found.slice_weights.weights, [0.81, 0.81, 0.81, 0.9, 1.0])
    record = json.loads(Path("first-updated/run.json").read_text())
    assert (record["updates"], record["mode"], record["new"]) == (2, 1, ["day4.csv", "day5.csv"])
    assert json.loads(Path("m.jsonl").read_text().splitlines()[-1])["updates"] == 2
    again = succeeded(run_amped("update", "first-updated", "day5.csv", "--mode", 1, "--output", "more")).out
    assert "4 x 5, after 3 updates 4 x 5" in again


def test_checkpoints(model: amped.KruskalTensor) -> None:
    data = "day4.csv", "day5.csv"
    how = "--mode", 1, "--checkpoint", "saved"
    succeeded(run_amped("update", "first", *data, *how, "--output", "one"))
    refused(run_amped("update", "first", *data, *how, "--output", "two"), "saved/updates.npz: exists already; ")
    succeeded(run_amped("update", "first", *data, *how, "--output", "two", "--resume"))
    one, two = amped.load("one"), amped.load("two")
    np.testing.assert_allclose(one.factors[0], two.factors[0], atol=1e-6)
    refused(run_amped("update", "first", *data, *how, "--output", "one", "--resume"), "one/model.npz: exists already")
    Path("first/model.npz").write_bytes(Path("one/model.npz").read_bytes())
    refused(run_amped("update", "first", *data, *how, "--output", "x", "--resume"), "began with another model")


def test_refused(model: amped.KruskalTensor) -> None:
    np.save("wrong.npy", np.ones((2, 3, 4)))
    np.save("unnamed.npy", np.ones((3, 1)))
    amped.tucker(np.ones((3, 4, 2)), (1, 1, 1)).save("tucker.npz")
    for words, cause in (
        (("first", "none.csv"), "none.csv: no such file"),
        (("first", "wrong.npy", "--mode", 1), "wrong.npy: X is of order 3, the model of order 2"),
        (("first", "unnamed.npy", "--mode", 1), "unnamed.npy: X has no labels"),
        (("first", "day4.csv", "--mode", 2), "mode 2 is outside 0..1"),
        (("first", "day4.csv", "--mode", "month"), "mode: 'month' is none of 'who', 'day'"),
        (("first", "day4.csv", "--mode", 1, "--forgetting", 0), "forgetting is 0.0"),
        (("first", "day4.csv", "--step", 1), "step requires mode"),
        (("first", "day4.csv", "--resume"), "--resume needs --checkpoint DIR"),
        (("first", "day4.csv", "--key", "who"), "the keys of a table are those of the model"),
        (("tucker.npz", "wrong.npy"), "tucker.npz: is a Tucker model: only CP models can be updated; decompose all"),
        (("first", "day4.csv", "--mode", 1, "--output", "first"), "first/model.npz: is both MODEL and model.npz"),
        (("nothing", "day4.csv"), "nothing"),
    ):
        refused(run_amped("update", *words), cause)
    assert not Path("first-updated").exists()
