"""The benchmarks: the tensors that they draw, what they measure, and the pictures of it, all very small."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ROOT, finish, mpirun_line, succeeded
from forms import exhaustive
from oracle import coo_mttkrp

from amped.backend.cuda import probe
from amped.backend.cuda.source import compile_options
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs.assembly import bring_up, place
from bench import ceilings, counter_rng, figures, losses, measure, rows, sweeps, yardstick
from bench.__main__ import BENCHMARKS, main
from bench.cases import read_cases
from bench.counter_rng import WHOLE, HostRng, Recipe
from bench.groups import on_groups
from bench.synthetic import SHAPES, SyntheticSource, recipe
from partitioner.shards.partition import BALANCE, Cut, cut_mode, mode_order

FP32 = np.dtype(np.float32)
RECIPES = {
    "uniform": Recipe((46, 300, 70), 6000, 0.0),
    "skewed": Recipe((46, 300, 70), 6000, 0.6, integers=True),
    "very skewed": Recipe((9, 50, 70, 3), 6000, 1.0, seed=7),
    "one heavy row": Recipe((100, 30, 20), 6000, 0.6, heavy=0.6),
    "one row": Recipe((1, 300, 40), 6000, 0.6),
    "fewer nonzeros than rows": Recipe((5000, 20), 37, 0.6),
}
SMALL = ["--shape", "uber", "--nonzeros", "3000", "--device", "cpu", "--sweeps", "2"]


@dataclass(frozen=True)
class Part:
    """One of several ranks, as far as a source asks."""

    rank: int
    size: int


def drawn(made: Recipe, mode: int) -> np.ndarray:
    """Return all nonzeros, in the order of a mode copy's columns and then the values, as rows of numbers."""
    host, numbers = HostRng(made), range(made.nonzeros)
    columns = [host.indices(m, numbers) for m in mode_order(len(made.lengths), mode)]
    return np.stack([*columns, host.values(numbers, np.dtype(np.float64))])


def in_order(columns: np.ndarray) -> np.ndarray:
    return columns[:, np.lexsort(columns[::-1])]


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize("name", RECIPES)
def test_the_ranks_share_the_same_tensor(name: str, parts: int) -> None:
    """Each nonzero once, sorted, with cuts as of any other tensor, whatever is drawn and sorted together."""
    made = RECIPES[name]
    for mode, block, bucket in [
        (m, b, k) for m in range(len(made.lengths)) for b, k in ((1 << 20, 1 << 20), (999, 500))
    ]:
        source, want = SyntheticSource(made, Part(0, parts), np, block, bucket), drawn(made, mode)  # type: ignore[arg-type]
        cut = source.cut(mode, parts)
        shares = [list(source.on(Part(r, parts)).load(mode, cut, FP32)) for r in range(parts)]  # type: ignore[arg-type]
        for share, count in zip(shares, np.diff(cut.nonzeros), strict=True):
            assert [column.size for column in share] == [count] * len(share)
            assert np.all(
                np.diff(share[0].astype(np.int64) * made.lengths[mode_order(len(made.lengths), mode)[1]] + share[1])
                >= 0
            )
        got = np.concatenate([np.stack([column.astype(np.float64) for column in share]) for share in shares], axis=1)
        assert np.array_equal(got[0], np.sort(want[0]))
        assert np.array_equal(in_order(got), in_order(want))


@pytest.mark.parametrize("name", RECIPES)
def test_cuts_are_those_of_sorted_nonzeros(name: str) -> None:
    made = RECIPES[name]
    source = SyntheticSource(made, Part(0, 4), np)  # type: ignore[arg-type]
    for mode, length in enumerate(made.lengths):
        rows = np.sort(HostRng(made).indices(mode, range(made.nonzeros)))
        got, want = source.cut(mode, 4), cut_mode(rows, length, 4)
        for part in Cut.__dataclass_fields__:
            assert np.array_equal(getattr(got, part), getattr(want, part)), part


@pytest.mark.parametrize("name", ["one heavy row", "one row"])
def test_heavy_rows_are_balanced(name: str) -> None:
    source = SyntheticSource(RECIPES[name], Part(0, 4), np)  # type: ignore[arg-type]
    cut = source.cut(0, 4)
    assert cut.imbalance <= 2 * BALANCE
    assert cut.split_rows.size == 1


@pytest.mark.parametrize("skew", [0.0, 0.6, 1.0])
def test_skews(skew: float) -> None:
    """The most popular index has its share of a bounded Zipf distribution, and all indices are in range."""
    length, nonzeros = 1000, 200_000
    index = HostRng(Recipe((length, 2), nonzeros, skew)).indices(0, range(nonzeros))
    counts = np.bincount(index, minlength=length)
    assert counts.size == length
    share = np.log(2) / np.log(length) if skew == 1 else (2 ** (1 - skew) - 1) / (length ** (1 - skew) - 1)
    if skew == 0:
        share = 1 / length
        assert counts.max() < 1.5 * share * nonzeros
    else:
        assert counts.argmax() == counter_rng.OFFSET % length
    assert counts[counter_rng.OFFSET % length] == pytest.approx(share * nonzeros, rel=0.1 if skew else 0.3)


def test_values_and_norm() -> None:
    numbers = range(50_000)
    real = HostRng(Recipe((3, 4), len(numbers))).values(numbers, FP32)
    assert 0 < real.min() < 0.01
    assert 0.99 < real.max() <= 1
    assert real.mean() == pytest.approx(0.5, abs=0.01)
    made = Recipe((3, 4), len(numbers), integers=True)
    whole = HostRng(made).values(numbers, FP32)
    assert set(whole) == set(range(1, WHOLE + 1))
    source = SyntheticSource(made, Part(0, 1), np, 7000)  # type: ignore[arg-type]
    assert source.norm == pytest.approx(np.linalg.norm(whole.astype(float)))
    assert source.value_range == (1, WHOLE, 1)


def test_seeds_differ_and_names_are_known() -> None:
    one, other = (HostRng(Recipe((1000, 3), 10, seed=seed)).indices(0, range(10)) for seed in (1, 2))
    assert not np.array_equal(one, other)
    assert recipe("heavy-row").heavy == 0.6
    assert {"amazon", "patents", "reddit", "twitch", "nell2", "enron", "uber", "delicious", "lbnl"} <= set(SHAPES)


def test_the_engine_computes_it(comm: Comm) -> None:
    source, options = SyntheticSource(RECIPES["very skewed"], comm, np), Options("cpu", "fp64")
    operator = place(source, 5, bring_up(options, comm), options)
    measure.fill_factors(operator)
    tensor = source.tensor()
    assert tensor is not None
    assert tensor.duplicates > 0
    factors = [operator.factor(m) for m in range(4)]
    for mode in range(4):
        want = coo_mttkrp(tensor.columns, tensor.values, factors, mode)
        np.testing.assert_allclose(operator.gathered(mode, operator.mttkrp(mode)), want, rtol=1e-12)


@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_measure(comm: Comm, placement: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "LEAST_SECONDS", 0)
    source = SyntheticSource(recipe("uber", 5000), comm, np)
    link = {"link": {"at once": [10.0]}}
    facts = measure.measure(source, 5, Options("cpu", "fp64", placement), comm, 5, link, ["yardstick", "errors"])
    assert facts["seconds_a_sweep"]["runs"] == 5
    assert facts["errors"]["norm-wise"] < 1e-6
    assert facts["errors"]["row-wise"] < 1e-6
    assert "yardstick" not in facts
    assert facts["balance"] == 0
    assert sum(facts["seconds_by_kind"]["compute by mode"][2]) > 0
    assert facts["seconds_to_load"]["all"] >= facts["seconds_to_load"]["sort"] > 0
    assert [mode["nonzeros"] for mode in facts["in_place"]] == [5000] * 4
    if placement == "stream":
        (nbytes,) = facts["link"]["bytes_a_sweep"]
        assert 4 * 5000 * 20 <= nbytes < 1.1 * 4 * 5000 * 20  # and the pieces of rows
        assert facts["link"]["fraction_of_link"] > 0
        assert facts["link"]["ceiling"] == 10
    else:
        assert facts["link"] is None
    json.dumps(facts)


def test_groups(comm: Comm) -> None:
    seen: list[int] = []
    on_groups(comm, [1], lambda group: seen.append(group.size))
    assert seen == [1]
    with pytest.raises(Exception, match="2 ranks: 1 were started"):
        on_groups(comm, [2], lambda group: seen.append(group.size))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure little of anything."""
    monkeypatch.setattr(sweeps, "LEAST_SECONDS", 0)
    for name, small in (("FOOTPRINTS", (10, 100)), ("GATHERED", 1000), ("COPIED", 4000)):
        monkeypatch.setitem(getattr(ceilings, name), "cpu", small)


def test_the_list_of_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    out = capsys.readouterr().out
    assert all(name in out for name in BENCHMARKS)


def test_results_go_to_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"File exists: .*file"):
        main(["mttkrp", *SMALL, "--output", str(tmp_path / "file")])
    assert not capsys.readouterr().out, "nothing was measured"


def test_an_unknown_number_of_ranks(quick: None) -> None:
    with pytest.raises(SystemExit, match="3 ranks: 1 were started"):
        main(["mttkrp", *SMALL, "--ranks", "3"])


def test_results_figures_and_table(quick: None, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tiny run of each benchmark; with cases made up of it for what one rank lacks, every figure is drawn."""
    flags = ["--rank", "4", "8", "--placement", "auto", "stream", "--kernel", "auto", "segmented", "--errors"]
    main(["mttkrp", *SMALL, *flags, "--name", "mttkrp-small", "--output", str(folder)])
    main(["mttkrp", *SMALL, "--kernel", "none", "--name", "refused", "--output", str(folder)])
    main(["ceilings", "--device", "cpu", "--output", str(folder)])
    out = capsys.readouterr().out
    assert out.count(" ms (") == 8
    assert "kernel 'none'" in out
    path = folder / "mttkrp-small.json"
    result = json.loads(path.read_text())
    assert {"date", "machine", "versions", "ceilings"} <= set(result)
    assert len(result["cases"]) == 8
    result["cases"] += [others for case in result["cases"] for others in made_up(case)]
    result["ceilings"]["4"] = result["ceilings"]["1"]
    path.write_text(json.dumps(result))
    main(["readme", "--input", str(folder), "--device", "cpu", "--rank", "8"])
    head, _, resident, streamed = cells(capsys.readouterr().out)
    assert head == [
        "tensor", "nonzeros", "1 rank, ms", "× yardstick", "4 ranks, ms", "speed-up", "bytes per nonzero",
        "norm-, row-wise error", "balance", "loaded, s",
    ]  # fmt: skip
    assert resident[0] == "uber: 183 × 24 × 1140 × 1717, skew 0.6"
    assert streamed[0] == resident[0] + ", streamed"
    assert [row[3:6:2] for row in (resident, streamed)] == [["3.00", "2.00"]] * 2
    assert all(float(number) < 1e-6 for number in resident[7].split(", "))
    main(["readme", "--input", str(folder), "--device", "cpu", "--ranks-table"])
    assert cells(capsys.readouterr().out)[::2] == [["columns", "4", "8"], ["uber, skew 0.6", "3.00", "3.00"]]
    pytest.importorskip("matplotlib", reason="Matplotlib is not installed (extra: bench)")
    main(["figures", "--input", str(folder)])
    assert "skipped" not in capsys.readouterr().out
    assert (folder / "ceilings-cpu-1.json").exists()
    for name in figures.FIGURES:
        assert (folder / f"{name}.png").stat().st_size > 2000, name


def cells(table: str) -> list[list[str]]:
    """Return what stands in the rows of a table."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def made_up(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the case of four ranks in half the time; the yardstick takes three times as long."""
    four = json.loads(json.dumps(case)) | {"ranks": 4}
    for kind in ("compute", "copy", "exchange"):
        four["seconds_by_kind"][kind] = [seconds / 2 for seconds in four["seconds_by_kind"][kind] * 4]
    four["seconds_a_sweep"] = {name: seconds / 2 for name, seconds in four["seconds_a_sweep"].items()}
    case["yardstick"] = {"seconds_a_sweep": 3 * case["seconds_a_sweep"]["median"]}
    return [four]


def result(model: str, **facts: Any) -> str:
    """Return a result of a device, as it stands on disk."""
    return json.dumps({"machine": {"devices": [f"{model} (0000:00:06.0)"]}, "ceilings": {}, "cases": []} | facts)


def test_ceilings_come_from_the_same_model(folder: Path) -> None:
    """A result without its own value."""
    facts = {"placement": "auto", "kernel": "auto", "skew": 0.6, "rank": 32, "finished": "2026-01-01", "link": None}
    facts |= dict.fromkeys(["device", "nonzeros", "values", "precision", "gather", "deterministic"])
    named = {name: [{"shape": name, "ranks": 1, **facts}] for name in ("nell2", "enron", "patents4")}
    ours, theirs = ({"1": {"copy": [speed]}} for speed in (4000.0, 3000.0))
    (folder / "a.json").write_text(result("GPU A", cases=named["enron"]))
    (folder / "b.json").write_text(result("GPU A", cases=named["nell2"], ceilings=ours))
    (folder / "c.json").write_text(result("GPU B", cases=[], ceilings=theirs))
    (folder / "d.json").write_text(result("GPU C", cases=named["patents4"]))
    found = {case["shape"]: case["ceilings"] for case in read_cases(folder)}
    assert found == {"nell2": ours["1"], "enron": ours["1"], "patents4": {}}
    assert list(found) == ["nell2", "enron", "patents4"]  # in the order of tables


def test_the_documentation_has_the_tables_and_the_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    """As the results on disk give them: where this fails, copy what `python -m bench readme` prints."""
    text = (ROOT / "docs/design/measurements.md").read_text()
    main(["readme"])
    assert capsys.readouterr().out in text
    main(["readme", "--ranks-table"])
    assert capsys.readouterr().out in (ROOT / "docs/design/kernels.md").read_text()
    assert re.findall(r"(bench/results/[\w-]+\.png)", text) == ["bench/results/amped-9-scaling.png"]


def test_figures_without_results_are_skipped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="Matplotlib is not installed (extra: bench)")
    main(["figures", "--input", str(folder)])
    assert capsys.readouterr().out.count("skipped") == len(figures.FIGURES)
    assert not list(folder.iterdir())


def test_one_launch_measures_on_one_and_two_ranks(folder: Path) -> None:
    flags = ["--ranks", "1,2", "--errors", "--no-ceilings", "--output", str(folder)]
    succeeded(finish([*mpirun_line(2), sys.executable, "-m", "bench", "mttkrp", *SMALL, *flags], cwd=ROOT))
    cases = json.loads((folder / "mttkrp-uber-cpu-2.json").read_text())["cases"]
    assert [case["ranks"] for case in cases] == [1, 2]
    assert all(case["errors"]["row-wise"] < 1e-6 for case in cases)


KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ceilings": (ceilings.text(), {}),
    **{f"counter_rng {real}": (counter_rng.text(), {"REAL": real}) for real in ("float", "double")},
    **{
        f"yardstick {order} {lanes} {real}": (yardstick.text(), dict(yardstick.macros(order, lanes, np.dtype(real))))
        for order, lanes, real in [(2, 1, "f4"), (3, 4, "f4"), (3, 8, "f4"), (4, 16, "f4"), (5, 32, "f4"), (8, 1, "f8")]
    },
}


@pytest.mark.parametrize("architecture", [exhaustive("sm_80"), "sm_90"])
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_compiles(name: str, architecture: str) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed (extra: nvrtc)")
    source, macros = KERNELS[name]
    options = [option.encode() for option in (*compile_options(macros), f"-arch={architecture}")]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = bytes(2 + nvrtc.nvrtcGetProgramLogSize(program)[1])  # written in place: one byte would be Python's only such
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()
    assert b"warning" not in log, log.decode()


@pytest.mark.exhaustive
def test_observed_elements(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--nonzeros", "500", "--rank", "5", "--precision", "fp64", "--iterations", "3", "--output", str(folder)]
    main(["observed", "uber", "9x8x7", *flags])
    starts = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    head = "random, {} missing, rank 5, fp64"
    assert starts == ["uber, rank 5, fp64", head.format("0.0%"), head.format("1.0%")]
    rows = json.loads((folder / "observed-cpu.json").read_text())["cases"]
    assert rows[0]["nonzeros"] <= 500
    assert [row.get("mask") for row in rows] == ["stored", None, "nan"]
    for row, name in product(rows, ("seconds", "processor_seconds")):
        assert row[name]["runs"] == 3
        assert row[name]["least"] <= row[name]["median"]


@pytest.mark.exhaustive
def test_losses(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyttb")
    monkeypatch.setattr(losses, "LENGTH", 6)
    monkeypatch.setattr(losses, "METHODS", {"mu": 3, "lbfgs": 3})
    counts = np.argwhere(np.ones((4, 3, 2))).astype(int)
    np.savetxt(folder / "small.tns", np.column_stack([counts + 1, np.arange(1, 25)]), fmt="%d")
    main(["losses", f"{folder / 'small.tns'}:2", "--iterations", "5", "--repeats", "2", "--output", str(folder)])
    assert "pyttb / amped" in capsys.readouterr().out
    found = json.loads((folder / "losses-cpu.json").read_text())
    assert found["cases"][0]["seconds"]["pyttb"]["runs"] == 2
    assert [row["method"] for row in found["counts"]] == ["mu", "lbfgs"]
    assert min(row["objective"] for row in found["counts"]) == found["counts"][0]["best"]


@pytest.mark.exhaustive
def test_stochastic(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyttb")
    places = np.argwhere(np.random.default_rng(0).random((40, 30, 20)) < 0.005)
    np.savetxt(folder / "small.tns", np.column_stack([places + 1, 1 + places[:, :1] % 3]), fmt="%d")
    flags = ["--rank", "2", "--samples", "30", "--steps", "2", "--repeats", "2", "--output", str(folder)]
    main(["stochastic", str(folder / "small.tns"), *flags])
    assert "pyttb / amped fp64" in capsys.readouterr().out
    (row,) = json.loads((folder / "stochastic-cpu.json").read_text())["cases"]
    assert row["seconds_per_step"]["amped fp32"]["runs"] == 2


@pytest.mark.exhaustive
def test_methods_of_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each from the same starts, with its path and how long it takes to MU's value."""
    tensor = folder / "small.tns"
    rng = np.random.default_rng(2)
    np.savetxt(
        tensor, np.column_stack([rng.integers(1, 9, (200, 4)), rng.integers(1, 5, 200) + 0.25]), fmt="%d %d %d %d %.2f"
    )
    flags = ["--starts", "2", "--mu-iterations", "8", "--iterations", "30", "--threads", "2", "--output", str(folder)]
    main(["counts", f"{tensor}:5", *flags])
    assert capsys.readouterr().out.count("| small, 5 |") == 3
    (row,) = json.loads((folder / "counts-cpu.json").read_text())["cases"]
    assert (row["tensor"], row["rank"], list(row["best"])) == ("small", 5, ["mu", "pdnr", "pqnr"])
    for best in row["best"].values():
        assert best["loglikelihood"] == max(best["loglikelihoods"])
        assert len(best["seconds_to_mu"]) == len(best["seconds"]) == best["iterations"]["runs"] == 2
    mu = row["best"]["mu"]
    assert mu["iterations"]["median"] == 8
    assert mu["seconds_to_mu"] <= mu["seconds_to_mu_within_0"] == mu["seconds"], "it climbs to its last value"


@pytest.mark.gpu
@pytest.mark.skipif(bool(probe()), reason=probe())
class TestOnGpu:
    """The same on a GPU."""

    @pytest.mark.parametrize("name", RECIPES)
    def test_draws_what_the_host_draws(self, name: str) -> None:
        """But where ``exp`` and ``pow`` differ in their last bit."""
        import cupy

        made = RECIPES[name]
        host, device = made.rng(np), made.rng(cupy)
        numbers = range(3, made.nonzeros)
        for mode in range(len(made.lengths)):
            want = host.indices(mode, numbers)
            assert np.mean(device.indices(mode, numbers).get() != want) < 1e-3
            assert np.mean(device.indices(mode, cupy.arange(3, made.nonzeros)).get() != want) < 1e-3
            assert np.abs(device.counts(mode, numbers) - host.counts(mode, numbers)).sum() < 1e-2 * made.nonzeros
        assert np.array_equal(device.values(numbers, FP32).get(), host.values(numbers, FP32))

    @pytest.mark.parametrize("block", [1 << 20, 999])
    def test_the_same_share_whatever_is_drawn_together(self, block: int) -> None:
        import cupy

        for name, made in RECIPES.items():
            source = SyntheticSource(made, Part(1, 3), cupy, block, block // 2)  # type: ignore[arg-type]
            whole = SyntheticSource(made, Part(1, 3), cupy)  # type: ignore[arg-type]
            for mode in range(len(made.lengths)):
                shares = [list(s.load(mode, s.cut(mode, 3), FP32)) for s in (source, whole)]
                for mine, other in zip(*shares, strict=True):
                    assert cupy.array_equal(mine, other), name

    @pytest.mark.parametrize("rank", [4, 16, 32])
    def test_yardstick_and_oracle(self, comm: Comm, rank: int) -> None:
        import cupy

        source = SyntheticSource(recipe("uber", 50_000), comm, cupy)
        facts = measure.measure(source, rank, Options("cuda"), comm, compare=["yardstick", "errors"])
        assert facts["errors"]["norm-wise"] < 1e-6
        assert facts["errors"]["row-wise"] < 1e-5
        assert facts["yardstick"]["seconds_a_sweep"] > 0
        operator = place(source, rank, bring_up(Options("cuda"), comm), Options("cuda"))
        measure.fill_factors(operator)
        for mode in range(4):
            columns = list(source.load(mode, source.cut(mode, 1), FP32))
            factors = [operator.work.factors[m] for m in mode_order(4, mode)[1:]]
            out = cupy.empty((operator.shape[mode], rank), np.float32)
            yardstick.best(operator, columns, factors, out)
            want = yardstick.oracle(operator, mode, columns, factors)
            assert cupy.linalg.norm(out - want) < 1e-5 * cupy.linalg.norm(want)


@pytest.mark.exhaustive
def test_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["rows", "--device", "cpu", "--rows", "300", "--ranks", "3", "5", "--repeats", "2", "--output", str(folder)])
    found = json.loads((folder / "rows-cpu.json").read_text())["cases"]
    assert [(case["problem"], case["rank"]) for case in found] == [*product(rows.PROBLEMS, (3, 5))]
    assert all(len(case["seconds"]) > 1 and case["seconds"]["copy"]["median"] > 0 for case in found)
    assert "non-negative, rank 5" in capsys.readouterr().out
