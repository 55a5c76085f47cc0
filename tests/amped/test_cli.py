"""The verbs and their flags: what each one changes, on the screen and in the result."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from command import (
    entries,
    finish,
    in_process,
    on_ranks,
    python_line,
    random_tensor,
    refused,
    run_amped,
    run_partitioner,
    small_tns,
    succeeded,
    write_factors,
    write_tns,
)
from oracle import dense_als

import amped
from amped.cli.example import NEXT
from amped.methods.initial import random_factor
from amped.operators.sparse import operator as sparse
from amped.report import page

RANK = 3
SHAPE = (9, 7, 5)
CPU = ["--device", "cpu"]
FLAGS = {
    "cpd": "--rank --max-iters --tol --seed --init --output --report --checkpoint --every --resume",
    "mttkrp": "--rank --mode --seed --init --repeat --output",
    "ttm": "--rank --mode --seed --init --repeat --output",
    "plan": "--rank --ranks --mode",
    "info": "",
}
SHARED = "--device --precision --placement --device-memory --kernel --deterministic --gather --threads --metrics "
SHARED += "--deadline --no-verify --force --quiet"


def fits_of(*arguments: object) -> list[float]:
    """Run `cpd` and return the fits of its iterations."""
    succeeded(run_amped("cpd", *arguments, "--output", "fits", "--force", *CPU))
    return [float(fit) for fit in json.loads(Path("fits/run.json").read_text())["fits"]]


def arrays(path: Path | str) -> dict[str, np.ndarray]:
    """Return all arrays of an archive."""
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def same(left: Path | str, right: Path | str) -> bool:
    """Return whether two archives are bitwise equal."""
    one, two = arrays(left), arrays(right)
    return one.keys() == two.keys() and all(one[n].tobytes() == two[n].tobytes() for n in one)


# ------------------------------------------------------------------------------------------------- the whole


def test_no_arguments_tell_the_example(folder: Path) -> None:
    result = succeeded(in_process(cwd=folder, env={"AMPED_COMMAND": "launch/quickstart"}))
    place = folder / "uber_pickups-rank6"
    record = json.loads((place / "run.json").read_text())
    assert (record["rank"], record["nonnegative"], record["converged"]) == (6, [0, 1, 2], True)
    assert record["fits"][-1] > 0.83
    assert result.out.startswith("uber_pickups.npz: 7 x 24 x ")
    assert "model in uber_pickups-rank6/model.npz" in result.out
    for number in range(1, 7):
        words = r"weekday: \w.*; hour: \d.*; place: 40\.\d+ -7[34]\."
        assert re.search(rf"(?m)^{number}\. \d+% of the model: {words}", result.out)
    assert "weekday: Mon to Fri; hour: 6 to 8; place:" in result.out, "the way to work"
    last = result.out.splitlines()[-1].split()
    assert last[:2] == ["launch/quickstart", "cpd"]
    model = amped.load(place)
    assert isinstance(model, amped.KruskalTensor)
    assert model.labels is not None
    assert model.labels.names == ("weekday", "hour", "place")
    if page.missing() is None:
        assert sorted(each.name for each in place.iterdir()) == [
            "components.png",
            "model.npz",
            "report.html",
            "run.json",
        ]
    again = succeeded(run_amped())
    assert "model in uber_pickups-rank6-2/model.npz" in again.out


def test_what_the_example_says_to_type_next_works(folder: Path) -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("jinja2")
    rows = [f"user {n % 7},item {n % 5},2024-05-01 {n % 24:02}:10:00" for n in range(300)]
    (folder / "events.csv").write_text("\n".join(["user,item,time", *rows]) + "\n")
    succeeded(run_amped(*shlex.split(NEXT)))
    assert (folder / "events-rank6" / "report.html").exists()


@pytest.mark.exhaustive
def test_the_example_on_two_ranks_takes_flags(folder: Path) -> None:
    result = on_ranks(2, "--max-iters", 2, "--rank", 4, "--tol", 0, *CPU, "--output", folder / "out")
    assert result.code == 0, result.err
    record = json.loads((folder / "out" / "run.json").read_text())
    assert (record["ranks"], record["iterations"], record["rank"]) == (2, 2, 4)
    assert result.progress.count("iteration ") == 2  # by rank 0 only
    assert result.out.count("model in") == 1
    labels = amped.load(folder / "out").labels
    assert labels is not None
    assert labels[0].tolist() == ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]


def test_help_names_every_verb_and_flag() -> None:
    top = run_amped("--help")
    assert (top.code, top.err) == (0, "")
    for verb, own in FLAGS.items():
        assert verb in top.out
        page = run_amped(verb, "--help")
        assert (page.code, page.err) == (0, "")
        missing = [flag for flag in f"{own} {SHARED}".split() if flag not in page.out]
        assert not missing, verb
        assert "example: " in page.out
        assert re.search(rf"example: .*amped(.run)? {verb} ", page.out)
    assert "example: amped cpd" in top.out
    assert "partition" in top.out
    for page in (run_partitioner("--help"), run_amped("partition", "--help")):
        assert page.code == 0
        assert all(flag in page.out for flag in ("TENSOR", "--output", "--force", "--quiet", "--index-base"))
        assert "example: " in page.out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cpdd x", "cpdd: did you mean cpd?; see amped --help"),
        ("cpd x.tns --rnak 3", "required: --rank; --rnak: did you mean --rank?; see amped cpd --help"),
        (
            "cpd x.tns --rank=3 --presicion=fp32",
            "--presicion=fp32; --presicion: did you mean --precision?; see amped cpd",
        ),
        ("show m --tpo 3", "unrecognized arguments: --tpo 3; --tpo: did you mean --top?; see amped show --help"),
        ("show m --zzz", "unrecognized arguments: --zzz; see amped show --help"),
        ("show m more", "unrecognized arguments: more; see amped show --help"),
    ],
)
def test_misspelt_verbs_and_flags(line: str, message: str) -> None:
    refused(run_amped(*line.split()), message)


def test_partition_is_the_partitioner(folder: Path) -> None:
    path = small_tns(folder)
    for run in (run_amped("partition", path, "--output", "a"), run_partitioner(path, "--output", "b")):
        assert "sorted copies written" in succeeded(run).out
    assert "nonzeros" in succeeded(run_amped("info", "a")).out
    for name in sorted(each.name for each in (folder / "a").iterdir()):
        assert (folder / "a" / name).read_bytes() == (folder / "b" / name).read_bytes()
    refused(run_amped("partition", path, "--output", "a"), "a", "--force")
    refused(run_amped("partition", path), "--output", "amped partition --help")
    result = on_ranks(2, "partition", path, "--output", folder / "c")
    assert (result.code, result.out.count("sorted copies written")) == (0, 1)


def test_help_and_versions_load_neither_compiler_nor_driver() -> None:
    """They are used often, and each of these modules takes longer to load than everything else."""
    program = """
import sys
from amped import run
run.arguments(["cpd", "x.tns", "--rank", "2"])
assert {"amped.cli.cpd", "amped.cli.scan"} & sys.modules.keys() == {"amped.cli.cpd"}, "other verbs take time to load"
for arguments in (["--help"], ["cpd", "--help"], ["--version"]):
    assert run.main(arguments) == 0, arguments
loaded = {"numba", "llvmlite", "scipy", "cupy", "rich"} & sys.modules.keys()
sys.exit(", ".join(loaded) or 0)
"""
    result = finish([sys.executable, "-c", program])
    assert (result.code, result.err) == (0, "")
    assert f"amped {amped.__version__}" in result.out


def test_help_on_ranks_is_printed_once() -> None:
    result = on_ranks(2, "--help")
    assert result.code == 0, result.err
    assert result.out.count("usage: amped") == 1


def test_partitioner_as_a_process(folder: Path) -> None:
    path = small_tns(folder)
    line = python_line(path, "--output", folder / "store")
    line[1:3] = ["-m", "partitioner"]
    assert "9 x 7 x 5, 80 nonzeros" in succeeded(finish(line)).out
    assert (folder / "store" / "manifest.json").is_file()


# ------------------------------------------------------------------------------------------------------- cpd


def test_cpd_follows_the_algorithm(folder: Path) -> None:
    """Kolda and Bader's CP-ALS on the dense tensor, from the same start, has the same fits and the same model."""
    indices, values = random_tensor()
    tensor = np.zeros(SHAPE)
    tensor[tuple(indices.T)] = values
    factors = write_factors(folder / "start.npz", SHAPE, RANK)
    model, fits = dense_als(tensor, factors, 6)
    path = write_tns(folder / "t.tns", indices, values)
    got = fits_of(path, "--rank", RANK, "--init", "start.npz", "--tol", 0, "--max-iters", 6, "--precision", "fp64")
    np.testing.assert_allclose(got, fits, atol=1e-12)
    np.testing.assert_allclose(amped.KruskalTensor.load("fits/model.npz").full(), model, atol=1e-12)


def test_max_iters_and_tol(folder: Path) -> None:
    path = small_tns(folder)
    assert len(fits_of(path, "--rank", RANK, "--max-iters", 3, "--tol", 0)) == 3
    assert len(fits_of(path, "--rank", RANK, "--tol", 0)) == 50  # the default, and 0 never stops
    assert json.loads(Path("fits/run.json").read_text())["converged"] is False
    loose = fits_of(path, "--rank", RANK, "--tol", 1e-3)
    changes = np.abs(np.diff(loose))
    assert changes[-1] < 1e-3
    assert (changes[:-1] >= 1e-3).all()
    assert json.loads(Path("fits/run.json").read_text())["converged"] is True
    assert fits_of(path, "--rank", RANK, "--tol", 1e-3, "--max-iters", 2) == loose[:2]


def test_default_tolerance(folder: Path) -> None:
    changes = np.abs(np.diff(fits_of(small_tns(folder), "--rank", 1, "--max-iters", 500)))
    assert changes[-1] < 1e-5
    assert (changes[:-1] >= 1e-5).all()


def test_seed(folder: Path) -> None:
    path = small_tns(folder)
    flags = [path, "--rank", RANK, "--max-iters", 2, "--tol", 0]
    default = fits_of(*flags)
    assert fits_of(*flags) == default
    assert fits_of(*flags, "--seed", 0) == default
    other = fits_of(*flags, "--seed", 7)
    assert other != default
    assert fits_of(*flags, "--seed", 7) == other
    start = [random_factor(n, RANK, 7, mode, np.dtype(np.float32)) for mode, n in enumerate(SHAPE)]
    np.savez("start.npz", **{f"factor_{n}": f for n, f in enumerate(start)})
    assert fits_of(*flags, "--init", "start.npz") == other


def test_init_nvecs(folder: Path) -> None:
    """Leading eigenvectors are a better start than chance, and no chance is in them."""
    path = small_tns(folder)
    flags = [path, "--rank", RANK, "--tol", 0, "--init", "nvecs"]
    once = fits_of(*flags, "--max-iters", 3)
    assert once == fits_of(*flags, "--max-iters", 3)
    assert once[0] > fits_of(path, "--rank", RANK, "--tol", 0, "--max-iters", 1)[0]
    assert json.loads(Path("fits/run.json").read_text())["init"] is None


def test_init_of_a_model_goes_on_from_it(folder: Path) -> None:
    path = small_tns(folder)
    fits = fits_of(path, "--rank", RANK, "--tol", 0, "--max-iters", 20)
    again = fits_of(path, "--rank", RANK, "--tol", 0, "--max-iters", 1, "--init", "fits/model.npz")
    assert again[0] >= fits[-1] - 1e-4


def test_precision(folder: Path) -> None:
    path = small_tns(folder)
    flags = [path, "--rank", RANK, "--tol", 0, "--max-iters", 5]
    single = fits_of(*flags, "--precision", "fp32")
    assert arrays("fits/model.npz")["factor_0"].dtype == np.float32
    double = fits_of(*flags, "--precision", "fp64")
    assert arrays("fits/model.npz")["factor_0"].dtype == np.float64
    assert single != double
    np.testing.assert_allclose(single, double, atol=1e-5)
    assert fits_of(*flags) == single  # the default


@pytest.mark.parametrize("flags", [["--placement", "stream"], ["--placement", "resident"], ["--threads", "1"],
                                   ["--kernel", "segmented"], ["--device-memory", "1M"]])  # fmt: skip
def test_flags_that_leave_the_result_as_it_is(folder: Path, flags: list[str]) -> None:
    path = small_tns(folder)
    common = [path, "--rank", RANK, "--tol", 0, "--max-iters", 4, "--precision", "fp64"]
    np.testing.assert_allclose(fits_of(*common, *flags), fits_of(*common), atol=1e-12)


def test_small_device_memory_streams_and_gives_the_same(folder: Path) -> None:
    indices, values = random_tensor((60, 50, 40), 20_000)
    path = folder / "t.npz"
    np.savez(path, indices=indices, values=values)
    common = ["mttkrp", path, "--rank", RANK, "--precision", "fp64", *CPU]
    succeeded(run_amped(*common, "--output", "free.npz"))
    succeeded(run_amped(*common, "--output", "tight.npz", "--device-memory", "200K", "--metrics", "tight.jsonl"))
    events = [json.loads(line) for line in Path("tight.jsonl").read_text().splitlines()]
    planned = next(e for e in events if e["event"] == "start")["planned_bytes"][0]
    assert planned["stream slots"] > 0
    assert sum(v for k, v in planned.items() if k != "host") <= 200 * 1024
    runs = [e for e in events if e["event"] == "mttkrp"]
    assert len(runs) == 3
    assert all(s["copy"] > 0 for e in runs for s in e["split"] if s["mode"] == e["mode"])
    for name, whole in arrays("free.npz").items():
        np.testing.assert_allclose(arrays("tight.npz")[name], whole, rtol=1e-12)


def test_deterministic_is_bitwise(folder: Path) -> None:
    """On one rank with all its threads, and on two ranks that split rows."""
    indices, values = random_tensor((40, 30, 3), 3_000)
    path = folder / "t.npz"
    np.savez(path, indices=indices, values=values)
    common = ["cpd", path, "--rank", 5, "--tol", 0, "--max-iters", 6, "--deterministic", *CPU]
    for name in ("a", "b"):
        succeeded(run_amped(*common, "--output", folder / name))
        assert on_ranks(2, *common, "--output", folder / f"{name}-ranks").code == 0
    assert same("a/model.npz", "b/model.npz")
    assert same("a-ranks/model.npz", "b-ranks/model.npz")
    for left, right in (("a", "b"), ("a-ranks", "b-ranks")):
        one, two = (json.loads(Path(f, "run.json").read_text())["fits"] for f in (left, right))
        assert one == two


def test_quiet_prints_nothing(folder: Path) -> None:
    path = small_tns(folder)
    for arguments in (
        ["cpd", path, "--rank", RANK, "--output", "model", "--checkpoint", "c", "--metrics", "m.jsonl"],
        ["mttkrp", path, "--rank", RANK, "--output", "out.npz", "--repeat", 2],
    ):
        result = run_amped(*arguments, *CPU, "--quiet")
        assert (result.code, result.out, result.err) == (0, "", "")
    assert (folder / "model" / "model.npz").exists()
    assert (folder / "m.jsonl").stat().st_size
    result = run_partitioner(path, "--output", "store", "--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_a_store_gives_what_its_tensor_gives(folder: Path) -> None:
    path = small_tns(folder)
    succeeded(run_partitioner(path, "--output", "store"))
    flags = ["--rank", RANK, "--tol", 0, "--max-iters", 4, "--precision", "fp64", "--threads", 1]
    assert fits_of("store", *flags) == fits_of(path, *flags)
    assert fits_of("store", *flags, "--init", "nvecs") == fits_of(path, *flags, "--init", "nvecs")


def test_report_of_cpd(folder: Path) -> None:
    path = small_tns(folder)
    result = succeeded(run_amped("cpd", path, "--rank", RANK, "--tol", 0, "--max-iters", 3, *CPU))
    lines = result.out.splitlines()
    fits = json.loads(Path("small-rank3/run.json").read_text())["fits"]
    assert lines[0].startswith("small.tns: 9 x 7 x 5, 80 nonzeros")
    assert "1 rank" in lines[1]
    shown = [line for line in result.progress.splitlines() if line.startswith("iteration ")]
    assert [line.split()[:4] for line in shown] == [
        ["iteration", str(k + 1), "fit", f"{f:.6f}"] for k, f in enumerate(fits)
    ]
    assert "change" not in shown[0]
    assert f"change {fits[1] - fits[0]:+.1e}" in shown[1]
    assert "compute" in lines[-3]
    assert lines[-2].startswith("iterations took ")
    ended = "after 3 iterations (not converged: the limit of 3 iterations (--max-iters) is reached)"
    assert lines[-1] == f"fit {fits[-1]:.6f} {ended}; model in small-rank3/model.npz"


# ---------------------------------------------------------------------------------------------------- mttkrp


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_one_mode(folder: Path, mode: int) -> None:
    path = small_tns(folder)
    common = ["mttkrp", path, "--rank", RANK, "--threads", 1, *CPU]
    succeeded(run_amped(*common, "--output", "all.npz"))
    result = succeeded(run_amped(*common, "--mode", mode, "--output", "one.npz"))
    assert list(arrays("one.npz")) == [f"mode_{mode}"]
    assert np.array_equal(arrays("one.npz")[f"mode_{mode}"], arrays("all.npz")[f"mode_{mode}"])
    assert re.findall(r"^mode (\d)", result.out, re.MULTILINE) == [str(mode)]


def test_mode_all_is_the_default(folder: Path) -> None:
    path = small_tns(folder)
    for name, flags in (("a.npz", []), ("b.npz", ["--mode", "all"])):
        result = succeeded(run_amped("mttkrp", path, "--rank", RANK, *CPU, *flags, "--output", name))
        assert re.findall(r"^mode (\d)", result.out, re.MULTILINE) == ["0", "1", "2"]
    assert same("a.npz", "b.npz")


def test_repeat_computes_again_and_does_not_add_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = sparse.SparseOperator.mttkrp

    def counted(self: sparse.SparseOperator, mode: int, then: list[int]) -> object:
        calls.append(mode)
        return real(self, mode, then=then)

    monkeypatch.setattr(sparse.SparseOperator, "mttkrp", counted)
    path = small_tns(folder)
    common = ["mttkrp", path, "--rank", RANK, "--precision", "fp64", *CPU]
    succeeded(run_amped(*common, "--output", "once.npz"))
    assert calls == [0, 1, 2]
    calls.clear()
    succeeded(run_amped(*common, "--repeat", 4, "--metrics", "m.jsonl", "--output", "often.npz"))
    assert calls == [0] * 4 + [1] * 4 + [2] * 4
    assert same("once.npz", "often.npz")
    events = [json.loads(line) for line in Path("m.jsonl").read_text().splitlines()]
    assert [e["mode"] for e in events if e["event"] == "mttkrp"] == calls


def test_mttkrp_without_output_writes_nothing(folder: Path) -> None:
    path = small_tns(folder)
    before = entries(folder)
    result = succeeded(run_amped("mttkrp", path, "--rank", RANK, "--precision", "fp64", *CPU))
    assert entries(folder) == before
    succeeded(run_amped("mttkrp", path, "--rank", RANK, "--precision", "fp64", *CPU, "--output", "out.npz"))
    norms = [np.linalg.norm(m) for m in arrays("out.npz").values()]
    shown = [float(n) for n in re.findall(r"norm (\S+)$", result.out.split("1 rank")[1], re.MULTILINE)]
    np.testing.assert_allclose(shown, norms, rtol=1e-8)


@pytest.mark.exhaustive
def test_mttkrp_on_ranks_equals_one(folder: Path) -> None:
    path = small_tns(folder)
    common = ["mttkrp", path, "--rank", RANK, "--seed", 5, "--precision", "fp64", *CPU]
    succeeded(run_amped(*common, "--output", "one.npz"))
    result = on_ranks(3, *common, "--output", folder / "three.npz")
    assert result.code == 0, result.err
    assert result.out.count("mode 0:") == 1
    for name, whole in arrays("one.npz").items():
        np.testing.assert_allclose(arrays("three.npz")[name], whole, rtol=1e-12)


# ------------------------------------------------------------------------------------------------------ info


def test_info(folder: Path) -> None:
    """Mode 0 has one row with 3 of 4 nonzeros and an empty one; values lie between -2 and 4."""
    path = folder / "t.tns"
    path.write_text("# a comment\n1 1 1 1.0\n1 2 1 -2.0\n1 3 1 4.0\n3 3 1 0.5\n")
    before = entries(folder)
    text = succeeded(run_amped("info", path)).out
    assert entries(folder) == before
    lines = text.splitlines()
    assert lines[0].startswith("t.tns: 3 x 3 x 1, 4 nonzeros (density 4.4e-01), norm 4.609")
    assert lines[1] == "values from -2 to 4; 0 duplicates summed, 0 zeros dropped"
    rows = [line.split() for line in lines[3:]]
    assert [row[:6] for row in rows] == [
        ["0", "3", "1", "1.3", "3", "75.0%"],
        ["1", "3", "0", "1.3", "2", "50.0%"],
        ["2", "1", "0", "4.0", "4", "100.0%"],
    ]
    np.savez("t.npz", indices=[[0, 0, 0], [0, 1, 0], [0, 2, 0], [2, 2, 0]], values=[1.0, -2.0, 4.0, 0.5])
    assert succeeded(run_amped("info", "t.npz")).out.splitlines()[1:] == lines[1:]


@pytest.mark.exhaustive
def test_info_on_ranks_prints_once(folder: Path) -> None:
    result = on_ranks(2, "info", small_tns(folder))
    assert result.code == 0, result.err
    assert result.out.count("9 x 7 x 5, 80 nonzeros") == 1


def test_info_and_plan_write_metrics(folder: Path) -> None:
    path = small_tns(folder)
    for verb, *flags in (["info"], ["plan", "--rank", RANK, "--ranks", 3, *CPU]):
        line = [verb, path, *flags, "--metrics", "m.jsonl"]
        succeeded(run_amped(*line))
        refused(run_amped(*line), "m.jsonl", "exists", "--force")
        succeeded(run_amped(*line, "--force"))
        (event,) = [json.loads(line) for line in Path("m.jsonl").read_text().splitlines()]
        assert (event["event"], event["shape"], event["nonzeros"]) == (verb, list(SHAPE), 80)
        if verb == "info":
            assert [mode["length"] for mode in event["modes"]] == list(SHAPE)
        else:
            assert len(event["planned_bytes"]) == event["ranks"] == 3
            assert event["seconds"] is None, "as there is one rank here"
        Path("m.jsonl").unlink()


@pytest.mark.parametrize("verb", [["info"], ["plan"], ["cpd", "--max-iters", 1], ["mttkrp"]])
def test_no_verify_reads_a_store_that_is_damaged(folder: Path, verb: list[object]) -> None:
    succeeded(run_partitioner(small_tns(folder), "--output", "store"))
    for file in Path("store").glob("*values.npy"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1  # a sign or an exponent of the last value
        file.write_bytes(content)
    line = [verb[0], "store", *verb[1:], *([] if verb == ["info"] else ["--rank", RANK]), *CPU]
    if verb != ["plan"]:  # which reads no values
        refused(run_amped(*line), "store", "damaged")
    succeeded(run_amped(*line, "--no-verify"))
