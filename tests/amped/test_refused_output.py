"""Output that cannot be written, or would replace something: found before the work; a refused run leaves no trace."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from command import entries, refused, run_amped, run_partitioner, small_tns, succeeded

import amped
from amped.errors import InputError

RANK = 4


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test fail if the tensor is read: output is to be checked before any work."""

    def too_late(*_: object, **__: object) -> None:
        raise AssertionError("the tensor is read before the output is checked")

    monkeypatch.setattr("amped.runs.assembly.open_path", too_late)
    for name in ("distributed_reading.open_part", "build.read_sparse"):
        monkeypatch.setattr(f"partitioner.{name}", too_late)


@pytest.mark.usefixtures("blind")
def test_existing_output_is_refused_before_the_work(folder: Path) -> None:
    path = small_tns(folder)
    for name in ("model.npz", "run.json"):
        out = folder / f"of-{name}"
        out.mkdir()
        (out / name).write_text("precious")
    (folder / "out.npz").write_text("precious")
    (folder / "metrics.jsonl").write_text("precious")
    (folder / "store").mkdir()
    before = entries(folder)
    for name in ("model.npz", "run.json"):
        out = folder / f"of-{name}"
        refused(run_amped("cpd", path, "--rank", RANK, "--output", out), out / name, "exists", "--force")
    line = refused(run_amped("mttkrp", path, "--rank", RANK, "--output", "out.npz"), "out.npz", "exists", "--force")
    assert line.startswith("amped: error: out.npz: ")
    refused(run_partitioner(path, "--output", "store"), "store", "exists", "--force", program="amped-partition")
    refused(run_amped("mttkrp", path, "--rank", RANK, "--metrics", "metrics.jsonl"), "metrics.jsonl", "--force")
    assert entries(folder) == before


@pytest.mark.usefixtures("blind")
def test_existing_checkpoint_is_refused_before_the_work(folder: Path) -> None:
    path = small_tns(folder)
    (folder / "c" / "iteration-3").mkdir(parents=True)
    (folder / "c" / "iteration-3" / "manifest.json").write_text("precious")
    before = entries(folder)
    arguments = ["cpd", path, "--rank", RANK, "--output", folder, "--checkpoint", "c"]
    refused(run_amped(*arguments), "c/iteration-3", "exists", "--resume")
    assert entries(folder) == before


@pytest.mark.usefixtures("blind")
def test_unwritable_output_is_refused_before_the_work(folder: Path) -> None:
    path = small_tns(folder)
    (folder / "file").write_text("precious")
    before = entries(folder)
    for where in ("file/out", "/proc/nowhere/out"):
        refused(run_amped("cpd", path, "--rank", RANK, "--output", where), where)
        refused(run_amped("mttkrp", path, "--rank", RANK, "--output", where), Path(where).parent)
        refused(run_amped("mttkrp", path, "--rank", RANK, "--metrics", where), where)
        refused(run_partitioner(path, "--output", where), where, program="amped-partition")
        refused(run_amped("cpd", path, "--rank", RANK, "--output", "o", "--checkpoint", where), where)
        shutil.rmtree("o", ignore_errors=True)  # another test checks whether it is left
    refused(run_amped("cpd", path, "--rank", RANK, "--output", "file"), "file")
    assert entries(folder) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.usefixtures("blind")
def test_folder_without_write_permission(folder: Path) -> None:
    path, closed = small_tns(folder), folder / "closed"
    closed.mkdir(mode=0o500)
    refused(run_amped("cpd", path, "--rank", RANK, "--output", closed), closed, "permission")
    refused(run_amped("cpd", path, "--rank", RANK, "--output", closed / "out"), closed, "permission")
    refused(run_amped("mttkrp", path, "--rank", RANK, "--output", closed / "out.npz"), closed, "permission")
    refused(run_partitioner(path, "--output", closed / "store"), closed, "writable", program="amped-partition")


@pytest.mark.usefixtures("blind")
def test_a_folder_in_place_of_the_file_is_refused_before_the_work(folder: Path) -> None:
    path = small_tns(folder)
    (folder / "taken").mkdir()
    (folder / "out" / "model.npz").mkdir(parents=True)
    refused(run_amped("mttkrp", path, "--rank", RANK, "--output", "taken", "--force"), "taken")
    refused(run_amped("mttkrp", path, "--rank", RANK, "--metrics", "taken", "--force"), "taken")
    refused(run_amped("cpd", path, "--rank", RANK, "--output", "out", "--force"), "model.npz")


def test_force_does_not_replace_what_is_no_store(folder: Path) -> None:
    path, precious = small_tns(folder), folder / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    refused(run_partitioner(path, "--output", precious, "--force"), precious, "not a store", program="amped-partition")
    assert (precious / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("case", ["tensor", "rank", "init", "checkpoint"])
def test_a_refused_cpd_leaves_nothing_behind(folder: Path, case: str) -> None:
    path = small_tns(folder)
    arguments: list[object] = ["cpd", path, "--rank", RANK]
    if case == "tensor":
        path.write_text("1 1 1 1.0\n1 1 0 1.0\n")
        arguments += ["--metrics", "metrics.jsonl"]
    elif case == "rank":
        arguments[3] = 1025
    elif case == "init":
        arguments += ["--init", "none.npz"]
    else:
        (folder / "c" / "iteration-3").mkdir(parents=True)
        (folder / "c" / "iteration-3" / "manifest.json").write_text("damaged")
        arguments += ["--checkpoint", "c", "--resume"]
    before = entries(folder)
    refused(run_amped(*arguments))
    assert entries(folder) == before


def test_a_refused_run_with_force_keeps_what_was_there(folder: Path) -> None:
    """Permission to replace a result is not permission to delete it for a run that never began."""
    path = small_tns(folder)
    flags = ["--rank", RANK, "--output", "o", "--metrics", "m.jsonl", "--max-iters", 2, "--device", "cpu", "--force"]
    succeeded(run_amped("cpd", path, *flags))
    path.write_text("1 1 1 1.0\n1 1 0 1.0\n")
    before = entries(folder)
    refused(run_amped("cpd", path, *flags), path)
    assert entries(folder) == before


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize(("name", "other"), [("x.csv", "x.npz"), ("x.a.MAT", "x.a.npz"), ("x.npz.gz", "x.npz")])
def test_names_of_other_formats_are_refused_before_the_work(folder: Path, name: str, other: str) -> None:
    path = small_tns(folder)
    told = f"the output is an .npz file: name it {other}"
    for verb in (["mttkrp"], ["ttm", "--mode", 0]):
        refused(run_amped(verb[0], path, "--rank", RANK, *verb[1:], "--output", name), name, told)
    assert not (folder / name).exists()


@pytest.mark.parametrize(
    ("arguments", "name", "message"),
    [
        (["residuals", "m.npz", "small.tns", "--output"], "x.parquet", "a .csv file: name it x.csv"),
        (["residuals", "m.npz", "small.tns", "--slices"], "x.csv.gz", "a .csv file: name it x.csv"),
        (["compare", "m.npz", "m.npz", "--output"], "x.html", "a .csv file: name it x.csv"),
        (["show", "m.npz", "--export"], "x.csv", "text, a ktensor: name it x.ktn"),
        (["report", "m.npz", "--output"], "x.pdf", "an .html file: name it x.html"),
        (["cpd", "small.tns", "--rank", 2, "--report"], "x.md", "an .html file: name it x.html"),
    ],
)
def test_other_outputs_are_not_written_as_what_they_are_not(
    folder: Path, arguments: list[object], name: str, message: str
) -> None:
    small_tns(folder)
    amped.KruskalTensor(np.ones(1), [np.ones((length, 1)) for length in (9, 7, 5)]).save("m.npz")
    refused(run_amped(*arguments, name), name, message)
    assert sorted(entries(folder)) == ["m.npz", "small.tns"]


@pytest.mark.parametrize("name", ["x.csv", "x.mat", "x.npy", "x.tns", "x.h5", "x.TXT", "x.npz.gz"])
def test_models_are_not_saved_as_what_they_are_not(folder: Path, name: str) -> None:
    models = [
        amped.KruskalTensor(np.ones(1), [np.ones((2, 1))] * 3),
        amped.TuckerTensor(np.ones((1, 1, 1)), [np.ones((2, 1))] * 3),
        amped.SemiSparseTensor(np.array([[0, 1]]), np.ones((1, 3)), 2, (2, 2, 3)),
    ]
    for model in models:
        with pytest.raises(InputError, match=r"name it x\.npz$"):
            model.save(folder / name)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["x", "x.NPZ", "rank-0.5", "x.v2"])
def test_other_names_are_taken(folder: Path, name: str) -> None:
    amped.KruskalTensor(np.ones(1), [np.ones((2, 1))] * 3).save(folder / name)
    assert amped.load(folder / name).shape == (2, 2, 2)


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_no_name_of_a_file(name: str) -> None:
    model = amped.KruskalTensor(np.ones(1), [np.ones((2, 1))] * 3)
    for write in (model.save, model.export):
        with pytest.raises(InputError, match="cannot write: a folder, or no name"):
            write(name)


def test_numpy_names_what_saves_a_model(folder: Path) -> None:
    model = amped.KruskalTensor(np.ones(1), [np.ones((2, 1))] * 3)
    with pytest.raises(TypeError, match=r"use \.full\(\), or \.save\(path\) to write an \.npz file"):
        np.savez(folder / "x.npz", model)
