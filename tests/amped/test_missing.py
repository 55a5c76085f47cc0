"""Missing values and weights: CP-ALS over observed elements, and its models."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import refused, run_amped, succeeded
from missing import observed_als, planted, stored
from oracle import load, random_factors, reference, splitmix_factors

import amped
from amped.backend.cpu.device import CpuDevice
from amped.backend.exchange import connect
from amped.operators.dense.observed import DirectObserved
from amped.parallel.mpi import world
from amped.runs import assembly, observed_runs
from partitioner.host.worth import SETTING

SHAPE = (7, 6, 5)
NOISY, EXACT, SEEN = planted(SHAPE, 2, 0.6)
GAPS = np.where(SEEN, NOISY, np.nan)
START = random_factors(0, SHAPE, 3)
CP: dict[str, Any] = {"init": START, "max_iters": 6, "tol": 0, "precision": "fp64", "device": "cpu"}


def objectives(X: object, **options: Any) -> tuple[float, ...]:
    return amped.cp_als(X, 3, **{**CP, **options}).series["objective"]


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("key", ["nycflights_5d|R5|ridge1.0", "uber393k_4d|R8|ridge0.1"])
def test_the_reference_results(device: str, key: str, precision: str) -> None:
    name, rank, ridge = key.split("|")
    tensor, want = load(name), reference("completion.json", key)
    model = amped.cp_als(
        tensor, int(rank[1:]), mask="stored", ridge=float(ridge[5:]), max_iters=len(want["rmse"]), tol=0,
        init=splitmix_factors(tensor.shape, int(rank[1:])), device=device, precision=precision,
    )  # fmt: skip
    tolerance = {"fp32": 1e-4, "fp64": 1e-9}[precision]
    np.testing.assert_allclose(model.series["objective"], want["objective"], rtol=tolerance)
    np.testing.assert_allclose(model.series["rmse"], want["rmse"], rtol=tolerance)


def test_one_path_by_every_way_to_say_what_is_missing(tmp_path: Path) -> None:
    want = observed_als(np.argwhere(SEEN).T, NOISY[SEEN], START, CP["max_iters"])
    np.save(tmp_path / "mask.npy", SEEN)
    np.save(tmp_path / "gaps.npy", GAPS)
    for X, options in (
        (GAPS, {"mask": "nan"}),
        (tmp_path / "gaps.npy", {"mask": "nan"}),
        (np.asfortranarray(GAPS), {"mask": "nan"}),
        (NOISY, {"mask": SEEN}),
        (NOISY, {"mask": SEEN.astype(int)}),
        (NOISY, {"mask": stored(SEEN.astype(float), SEEN)}),
        (NOISY, {"mask": tmp_path / "mask.npy"}),
        (NOISY, {"weights": SEEN.astype(float)}),
        (np.ma.array(NOISY, mask=~SEEN), {}),
        (stored(NOISY, SEEN), {"mask": "stored"}),
        (stored(NOISY, SEEN), {"mask": SEEN}),
        (GAPS, {"mask": "nan", "weights": np.where(SEEN, 1.0, 5.0)}),
    ):
        np.testing.assert_allclose(objectives(X, **options), want.objective, rtol=1e-12)


def test_masked_arrays() -> None:
    masked = np.ma.array(NOISY, mask=~SEEN)
    model = amped.cp_als(masked, 3, **CP)
    assert model.score(masked) == pytest.approx(model.fits[-1], rel=1e-12)
    rows = model.transform(masked, 0, precision="fp64", device="cpu")
    np.testing.assert_allclose(rows, model.transform(GAPS, 0, precision="fp64", device="cpu"), rtol=1e-12)
    estimator = amped.CP(3, options={"device": "cpu", "mask": "nan"}).fit(GAPS)
    assert estimator.score(GAPS) == pytest.approx(estimator.model_.score(GAPS), abs=1e-3)
    assert amped.CP(3, options={"device": "cpu"}).fit(masked).model_.run["mask"] == "nan"
    for call in (
        lambda: amped.tucker(masked, (2, 2, 2)),
        lambda: amped.mttkrp(masked, START, 0),
    ):
        with pytest.raises(
            amped.InputError, match="is missing: only CP decompositions, scan and core_consistency accept"
        ):
            call()


@pytest.mark.parametrize("kind", ["c16", "M8[s]", "U3", "O"])
def test_masked_arrays_of_other_types_are_refused(kind: str) -> None:
    with pytest.raises(amped.InputError, match=r"X: elements are .*, expected real numbers"):
        amped.cp_als(np.ma.array((10 * NOISY).astype(int).astype(kind), mask=~SEEN), 3, **CP)


def test_nan_of_xarray_is_missing() -> None:
    xarray = pytest.importorskip("xarray")
    array = xarray.DataArray(GAPS, dims=("sample", "day", "place"), coords={"day": np.arange(SHAPE[1])})
    model = amped.cp_als(array, 3, **CP)
    np.testing.assert_allclose(model.series["objective"], objectives(GAPS, mask="nan"), rtol=0)
    assert model.labels is not None
    assert model.score(array) == pytest.approx(model.fits[-1])
    for fitted in (model, amped.cp_als(array.fillna(1.0), 3, **CP)):
        score, rows = fitted.score(array), fitted.transform(array, 0, precision="fp64", device="cpu")
        for other in (array[:, ::-1], array.transpose("place", "sample", "day")):  # labels and names are matched
            assert fitted.score(other) == pytest.approx(score)
            np.testing.assert_allclose(fitted.transform(other, 0, precision="fp64", device="cpu"), rows, rtol=1e-9)


@pytest.mark.parametrize("scaled", [False, True])
def test_fill_values_in_files_are_missing(tmp_path: Path, scaled: bool) -> None:
    h5py = pytest.importorskip("h5py")
    numbers = np.where(SEEN, np.random.default_rng(4).integers(1, 50, SHAPE), -999).astype("i2")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        array = file.create_dataset("x", data=numbers)
        array.attrs["_FillValue"] = np.int16(-999)
        if scaled:
            array.attrs["scale_factor"], array.attrs["valid_max"] = 0.5, np.int16(40)
    seen = SEEN & (numbers <= 40) if scaled else SEEN
    want = observed_als(np.argwhere(seen).T, numbers[seen] * (0.5 if scaled else 1.0), START, CP["max_iters"])
    np.testing.assert_allclose(objectives(tmp_path / "x.h5", mask="nan"), want.objective, rtol=1e-6)
    with pytest.raises(amped.InputError, match="a missing value"):
        amped.cp_als(tmp_path / "x.h5", 3, **CP)


def test_observed_elements_that_a_sparse_tensor_does_not_store_are_zeros() -> None:
    counts = np.random.default_rng(1).poisson(0.7, SHAPE).astype(float)
    tensor = amped.SparseTensor(np.argwhere(counts), counts[counts > 0], SHAPE)
    want = observed_als(np.argwhere(SEEN).T, counts[SEEN], START, CP["max_iters"])
    np.testing.assert_allclose(objectives(tensor, mask=SEEN), want.objective, rtol=1e-12)


@pytest.mark.parametrize("ridge", [0.0, 0.3, (0.1, 0.0, 0.4)])
def test_weights_and_ridges_take_the_path_of_an_oracle(ridge: Any) -> None:
    weights = SEEN * np.random.default_rng(2).integers(1, 4, SHAPE) / 2
    want = observed_als(np.argwhere(SEEN).T, NOISY[SEEN], START, CP["max_iters"], ridge, weights[SEEN])
    model = amped.cp_als(NOISY, 3, weights=weights, ridge=ridge, **CP)
    np.testing.assert_allclose(model.series["objective"], want.objective, rtol=1e-11)
    np.testing.assert_allclose(model.series["rmse"], want.rmse, rtol=1e-11)
    np.testing.assert_allclose(model.full(), np.einsum("ir,jr,kr->ijk", *want.factors), atol=1e-9)
    assert model.shape == SHAPE


@pytest.mark.parametrize(("order", "rank"), [(2, 1), (3, 7), (4, 5), (5, 3)])
def test_orders_and_ranks_take_the_path_of_an_oracle(order: int, rank: int) -> None:
    """Many rows have fewer elements than components; some have none."""
    shape = (9, 6, 5, 4, 3)[:order]
    values, _, seen = planted(shape, 2, 0.3, seed=order)
    seen[2] = False
    start = random_factors(1, shape, rank)
    want = observed_als(np.argwhere(seen).T, values[seen], start, 4)
    model = amped.cp_als(values, rank, mask=seen, **{**CP, "init": start, "max_iters": 4})
    np.testing.assert_allclose(model.series["objective"], want.objective, rtol=1e-6, atol=1e-9)
    assert not model.factors[0][2].any()


@pytest.mark.parametrize("compiled", ["never", "always"])
@pytest.mark.parametrize("ridge", [0.0, 1e-9, 0.3])
def test_rows_with_one_element(monkeypatch: pytest.MonkeyPatch, compiled: str, ridge: float) -> None:
    """Their equations have a closed form; without a ridge the solution is the shortest one."""
    monkeypatch.setenv(SETTING, compiled)
    monkeypatch.setattr(DirectObserved, "fits", lambda *_: False)
    rng, shape = np.random.default_rng(3), (30, 8, 7, 6)
    columns = np.stack([np.r_[rng.permutation(30)[:25], 3, 3, 3], *(rng.integers(0, n, 28) for n in shape[1:])])
    values, start = rng.standard_normal(28), random_factors(1, shape, 5)
    want = observed_als(columns, values, start, 2, ridge)
    how: dict[str, Any] = {**CP, "init": start, "max_iters": 2, "mask": "stored", "ridge": ridge}
    model = amped.cp_als(amped.SparseTensor(columns.T, values, shape), 5, **how)
    np.testing.assert_allclose(model.series["objective"], want.objective, rtol=1e-6, atol=1e-12)
    if ridge == 0.3:
        np.testing.assert_allclose(model.series["objective"], want.objective, rtol=1e-12)


def test_the_objective_never_rises() -> None:
    for options in ({}, {"ridge": 0.5}, {"nonnegative": True}, {"nonnegative": [1], "ridge": 0.1}):
        found = np.array(objectives(GAPS, mask="nan", max_iters=60, **options))
        assert np.all(np.diff(found) <= 1e-12 * found[:-1])


def test_non_negative_rows() -> None:
    model = amped.cp_als(GAPS, 3, mask="nan", nonnegative=True, **{**CP, "max_iters": 300})
    free = amped.cp_als(GAPS, 3, mask="nan", **{**CP, "max_iters": 300})
    assert min(f.min() for f in model.factors) >= 0
    assert free.series["objective"][-1] <= model.series["objective"][-1] <= 1.5 * free.series["objective"][-1]


def test_fixed_modes_keep_their_matrices() -> None:
    model = amped.cp_als(GAPS, 3, mask="nan", fixed_modes=[0, 2], **CP)
    for mode in (0, 2):
        kept = START[mode] / np.linalg.norm(START[mode], axis=0)
        assert np.abs(np.abs(kept.T @ model.factors[mode]).max(axis=0) - 1).max() < 1e-12


def test_permuted_modes_and_rows_give_the_permuted_model() -> None:
    order, rows = [2, 0, 1], np.random.default_rng(3).permutation(SHAPE[0])
    start, seen = [START[m] if m else START[0][rows] for m in order], SEEN[rows].transpose(order)
    options = {**CP, "max_iters": 1, "init": start}
    moved = amped.cp_als(GAPS[rows].transpose(order), 3, mask="nan", **options)
    want = observed_als(np.argwhere(seen).T, NOISY[rows].transpose(order)[seen], start, 1)
    np.testing.assert_allclose(moved.series["objective"], want.objective, rtol=1e-12)


def test_unobserved_elements_are_recovered() -> None:
    noise = 0.1
    values, exact, seen = planted((20, 18, 16), 3, 0.2, noise)
    model = amped.cp_als(values, 3, mask=seen, starts=3, max_iters=300, tol=1e-8, precision="fp64", device="cpu")
    for target, bound in ((values, 1.1 * noise), (exact, 0.5 * noise)):
        assert np.sqrt(np.mean(np.square(model.full() - target)[~seen])) <= bound


def test_models_are_compared_with_observed_elements(tmp_path: Path) -> None:
    model = amped.cp_als(GAPS, 3, mask="nan", **CP)
    assert model.run["mask"] == "nan"
    squares = ((model.full() - NOISY)[SEEN] ** 2).sum()
    fit = 1 - np.sqrt(squares / (NOISY[SEEN] ** 2).sum())
    for X, options in ((GAPS, {}), (NOISY, {"mask": SEEN}), (stored(NOISY, SEEN), {}), (GAPS, {"mask": "nan"})):
        assert model.score(X, **options) == pytest.approx(fit, rel=1e-12)
        assert model.residuals(X, **options).squared == pytest.approx(squares, rel=1e-9)
    model.save(tmp_path / "model.npz")
    assert amped.load(tmp_path / "model.npz").score(GAPS) == pytest.approx(fit, rel=1e-12)
    model.report(tmp_path / "report.html", GAPS)
    text = (tmp_path / "report.html").read_text()
    assert "Only observed elements count" in text
    assert "RMSE" in text


def shown(path: Path) -> str:
    text = re.sub(r"<(style|script|svg).*?</\1>|<[^>]*>", " ", path.read_text(), flags=re.DOTALL)
    return " ".join(unescape(text).split())


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_reports_of_a_mask_leave_out_missing_elements(kind: str, tmp_path: Path) -> None:
    """The model was fitted to all elements: the mask of the report says which ones are missing."""
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    X, mask = (GAPS, "nan") if kind == "dense" else (stored(NOISY, SEEN), "stored")
    model = amped.cp_als(np.abs(NOISY), 3, nonnegative=True, **CP)
    model.report(tmp_path / "report.html", X, mask=mask)
    text = shown(tmp_path / "report.html")
    assert f"fit {model.score(X, mask=mask):.4f}" in text
    assert "Only observed elements count" in text
    assert "% of the tensor's" not in text
    worst = model.residuals(X, mask=mask).entries[0]
    assert f"{' '.join(map(str, worst.labels))} {worst.value:,.6g}" in text
    model.report(tmp_path / "report.html", np.abs(NOISY))
    text = shown(tmp_path / "report.html")
    assert "All elements of a dense tensor" in text
    assert "% of the tensor's" in text


def test_reports_of_counts_of_a_mask_have_no_deviance(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    counts = np.random.default_rng(1).poisson(2.0, SHAPE).astype(float)
    model = amped.cp_apr(counts, 2, max_iters=3, device="cpu")
    for mask, is_complete in ((SEEN, False), (None, True)):
        model.report(tmp_path / "report.html", counts, mask=mask)
        text = shown(tmp_path / "report.html")
        assert ("explained deviance" in text) is is_complete
        assert ("% of the tensor's" in text) is is_complete


@pytest.mark.parametrize("mask", ["nan", "stored"])
def test_reports_of_the_command_line_leave_out_missing_elements(mask: str, folder: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    name, noisy = "x.npy" if mask == "nan" else "x.tns", np.where(np.median(NOISY) < NOISY, NOISY, 0)
    if mask == "nan":
        np.save(name, GAPS)
    else:  # with explicit zeros
        places = np.argwhere(SEEN).tolist()
        Path(name).write_text("".join(f"{i + 1} {j + 1} {k + 1} {noisy[i, j, k]:.17g}\n" for i, j, k in places))
    how = "--rank 2 --nonnegative --max-iters 4 --tol 0 --precision fp64 --device cpu".split()
    succeeded(run_amped("cpd", name, *how, "--mask", mask, "--output", "out", "--report", "end.html"))
    succeeded(run_amped("report", "out", "--tensor", name, "--output", "later.html"))
    python = amped.cp_als(
        amped.read(name, keep_zeros=True), 2, mask=mask, nonnegative=True, max_iters=4, tol=0, report="python.html",
        precision="fp64", device="cpu",
    )  # fmt: skip
    python.save("python.npz")
    succeeded(run_amped("report", "python.npz", "--tensor", name, "--output", "saved.html"))
    for each in ("end.html", "later.html", "python.html", "saved.html"):
        text = shown(Path(each))
        assert f"fit {python.fits[-1]:.4f}" in text, each
        assert "Only observed elements count" in text, each
        assert "Largest residuals" in text, each
        assert "% of the tensor's" not in text, each


def test_new_data_with_gaps_are_projected() -> None:
    model = amped.cp_als(GAPS, 3, mask="nan", **CP)
    others = [f * (model.weights if m == 1 else 1) for m, f in enumerate(model.factors)]
    columns = np.argwhere(SEEN).T
    v = others[1][columns[1]] * others[2][columns[2]]
    want = [np.linalg.lstsq(v[columns[0] == i], NOISY[SEEN][columns[0] == i])[0] for i in range(SHAPE[0])]
    for X, options in ((GAPS, {}), (NOISY, {"mask": SEEN}), (stored(NOISY, SEEN), {})):
        rows = model.transform(X, 0, precision="fp64", device="cpu", **options)
        np.testing.assert_allclose(rows, np.array(want) * model.weights, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["tns", "csv", "frame"])
def test_models_are_compared_with_observed_zeros(kind: str, tmp_path: Path) -> None:
    """Files and tables are read again with their explicit zeros."""
    noisy = np.where(np.median(NOISY) < NOISY, NOISY, 0)
    rows = [(*place, noisy[tuple(place)]) for place in np.argwhere(SEEN).tolist()]
    tensor, gaps = stored(noisy, SEEN), np.where(SEEN, noisy, np.nan)
    if kind == "tns":
        X: Any = tmp_path / "x.tns"
        X.write_text("".join(f"{a + 1} {b + 1} {c + 1} {x:.17g}\n" for a, b, c, x in rows))
    else:
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("duckdb")
        X = pandas.DataFrame(rows, columns=[*"abc", "x"])
        tensor = amped.from_frame(X, [*"abc"], "x", keep_zeros=True)
        if kind == "csv":
            X.to_csv(tmp_path / "x.csv", index=False, float_format="%.17g")
            X = tmp_path / "x.csv"
    model = amped.cp_als(tensor, 3, mask="stored", **CP)
    assert model.score(X) == pytest.approx(model.fits[-1], rel=1e-9)
    assert model.score(X, mask="stored") == pytest.approx(model.fits[-1], rel=1e-9)
    assert model.residuals(X).squared == pytest.approx(model.residuals(gaps).squared, rel=1e-9)
    want = model.transform(gaps, 0, precision="fp64", device="cpu")
    np.testing.assert_allclose(model.transform(X, 0, precision="fp64", device="cpu"), want, rtol=1e-9)
    model.report(tmp_path / "report.html", X)


def test_a_device_that_solves_no_rows_leaves_them_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    want = objectives(GAPS, mask="nan")
    model = amped.cp_als(GAPS, 3, mask="nan", **CP)
    rows = model.transform(GAPS, 0, precision="fp64")
    monkeypatch.setattr(observed_runs, "solves_rows", lambda *_: False)
    np.testing.assert_array_equal(model.transform(GAPS, 0, precision="fp64"), rows)
    assert objectives(GAPS, mask="nan") == want
    with pytest.raises(amped.InputError, match="only supported on a CPU so far"):
        assembly.on_host(connect(CpuDevice(world()), world()), amped.Options(device="cuda"), "missing elements")


def test_plans(tmp_path: Path) -> None:
    """The plan is that of the run: no product, and row problems."""
    lines = [f"{i + 1} {j + 1} {k + 1} {NOISY[i, j, k]:.17g}" for i, j, k in np.argwhere(SEEN).tolist()]
    (tmp_path / "seen.tns").write_text("\n".join(lines))
    succeeded(run_amped("plan", tmp_path / "seen.tns", "--rank", 3, "--mask", "stored", "--device", "cpu"))
    plan = amped.plan(tmp_path / "seen.tns", 3, mask="stored", device="cpu")
    assert plan.device_bytes[0]["row problems"] > 0
    assert "observed elements are not predicted" in plan.expectation
    assert amped.plan(GAPS, 3, mask="nan", device="cpu").device_bytes == plan.device_bytes
    refused(run_amped("plan", tmp_path / "seen.tns", "--rank", "2,2,2", "--mask", "stored"), "--mask requires cpd")


@pytest.mark.parametrize(("X", "mask"), [(GAPS, "nan"), (np.ma.array(NOISY, mask=~SEEN), None)])
def test_plans_of_methods_without_missing_elements_are_refused(X: Any, mask: Any) -> None:
    for rank, options, what in (
        ((2, 2, 2), {}, "only CP decompositions accept missing elements"),
        (2, {"loss": "poisson", "method": "pqnr"}, "method 'pqnr' supports no mask"),
    ):
        with pytest.raises(amped.InputError, match=what):
            amped.plan(X, rank, mask=mask, device="cpu", **options)  # type: ignore[arg-type]


def test_a_resumed_run_continues_the_path(tmp_path: Path) -> None:
    weights = SEEN * 2.0
    whole = amped.cp_als(NOISY, 3, weights=weights, **CP)
    amped.cp_als(NOISY, 3, weights=weights, **{**CP, "max_iters": 3}, checkpoint=tmp_path / "saved")
    rest = amped.cp_als(NOISY, 3, weights=weights, checkpoint=tmp_path / "saved", resume=True, **CP)
    np.testing.assert_array_equal(rest.series["objective"], whole.series["objective"])
    with pytest.raises(amped.InputError, match="weights"):
        amped.cp_als(NOISY, 3, weights=SEEN * 3.0, checkpoint=tmp_path / "saved", resume=True, **CP)


@pytest.mark.parametrize(
    ("X", "options", "cause"),
    [
        (GAPS, {}, "element .* is nan: every element must be finite; if NaN means missing, use mask='nan'"),
        (NOISY, {"mask": SEEN[:3]}, r"mask has shape \(3, 6, 5\), the tensor \(7, 6, 5\)"),
        (NOISY, {"mask": "stored"}, "a dense tensor stores every element; use 'nan' or a tensor"),
        (stored(NOISY, SEEN), {"mask": "nan"}, "mask 'nan' applies to dense tensors"),
        (NOISY, {"weights": -NOISY}, "weights: -.* is not a number of at least 0"),
        (NOISY, {"mask": np.zeros(SHAPE)}, "no element is observed"),
        (np.where(SEEN, np.inf, NOISY), {"mask": "nan"}, "is observed, but is inf"),
        (NOISY, {"mask": "missing.npy"}, "missing.npy: no such file; expected 'nan', 'stored', an array"),
        (NOISY, {"weights": "missing.npy"}, "weights: missing.npy: no such file$"),
        (
            amped.SparseTensor([[0, 0], [1, 1]], [0.0, 1.0], (2, 2)),
            {"mask": "stored", "init": None},
            "1 explicit zeros",
        ),
    ],
)
def test_wrong_input_is_refused(X: object, options: dict[str, Any], cause: str) -> None:
    with pytest.raises(amped.InputError, match=cause):
        amped.cp_als(X, 3, **{**CP, **options})


def test_the_command_line(tmp_path: Path) -> None:
    np.save(tmp_path / "gaps.npy", GAPS)
    np.save(tmp_path / "noisy.npy", NOISY)
    np.save(tmp_path / "seen.npy", SEEN)
    lines = [f"{i + 1} {j + 1} {k + 1} {NOISY[i, j, k]:.17g}" for i, j, k in np.argwhere(SEEN).tolist()]
    (tmp_path / "seen.tns").write_text("\n".join(lines))
    np.savez(tmp_path / "start.npz", **{f"factor_{m}": f for m, f in enumerate(START)})
    want = observed_als(np.argwhere(SEEN).T, NOISY[SEEN], START, 4)
    for name, flags in (
        ("gaps.npy", ["--mask", "nan"]),
        ("noisy.npy", ["--mask", tmp_path / "seen.npy"]),
        ("noisy.npy", ["--weights", tmp_path / "seen.npy"]),
        ("seen.tns", ["--mask", "stored", "--report"]),
    ):
        cpd = ["cpd", tmp_path / name, *"--rank 3 --max-iters 4 --tol 0 --precision fp64 --device cpu".split()]
        output = ["--output", tmp_path / "out", "--force", "--init", tmp_path / "start.npz"]
        succeeded(run_amped(*cpd, *flags, *output))
        record = json.loads((tmp_path / "out" / "run.json").read_text())
        np.testing.assert_allclose(record["objectives"], want.objective, rtol=1e-12)
        np.testing.assert_allclose(record["rmse"], want.rmse, rtol=1e-12)
    refused(run_amped("cpd", tmp_path / "seen.tns", "--rank", 3, "--mask", "nan"), "applies to dense tensors")
    counted = "--mask", "stored", "--loss", "poisson", "--method", "pqnr"
    refused(run_amped("cpd", tmp_path / "seen.tns", "--rank", 3, *counted), "method 'pqnr' supports no mask")


@pytest.mark.parametrize("compiled", ["always", "never"])
def test_components_of_very_different_sizes(compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a ridge, of rows with fewer elements than components, digits of the shortest solutions are lost."""
    monkeypatch.setenv("AMPED_COMPILE", compiled)
    for seed in (720, 1225, 2222, 2765, 3050, 3917, 4265, 4443, 5594):
        rng = np.random.default_rng(seed)
        shape = [(3, 2), (3, 1, 5), (4, 3, 2), (3, 3, 3)][seed % 4]
        bounds, precision = [[0], False, True][seed // 4 % 3], ["fp64", "fp32"][seed // 12 % 2]
        rank, seen = int(rng.integers(2, 5)), rng.random(shape) < 0.6
        seen.flat[0] = True
        array = np.where(seen, np.round(rng.normal(size=shape), 1), np.nan)
        model = amped.cp_als(
            array, rank, mask="nan", nonnegative=bounds, max_iters=12, tol=0, seed=seed, precision=precision,
            accelerate=False, device="cpu",
        )  # fmt: skip
        assert np.diff(model.series["objective"]).max() <= 1e-6 * np.nansum(array**2)
