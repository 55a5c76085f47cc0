"""Estimators, as scikit-learn would use them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from densecases import low_rank
from forms import exhaustive

import amped
from amped.errors import InputError

ROOT = Path(amped.__file__).parents[1]
ARRAY = abs(low_rank((12, 9, 8), 3))
OPTIONS = {"device": "cpu", "precision": "fp64"}


@pytest.mark.parametrize("mode", [0, 2])
@pytest.mark.parametrize("how", [{}, {"nonnegative": True}], ids=str)
def test_rows_of_samples_are_those_of_the_model(mode: int, how: dict[str, Any]) -> None:
    found = amped.CP(3, mode=mode, max_iters=200, tol=1e-9, options=OPTIONS, **how)
    rows = found.fit_transform(ARRAY)
    assert rows.shape == (ARRAY.shape[mode], 3)
    assert np.allclose(found.transform(ARRAY), rows, atol=2e-3 * abs(rows).max())
    whole = [rows if m == mode else f for m, f in enumerate(found.model_.factors)]
    assert np.allclose(amped.KruskalTensor(np.ones(3), whole).full(), found.model_.full())
    assert found.score(ARRAY) == pytest.approx(found.model_.fits[-1], abs=1e-9)
    few = np.moveaxis(np.moveaxis(ARRAY, mode, 0)[:5], 0, mode)
    assert np.allclose(found.transform(few), found.transform(ARRAY)[:5], atol=1e-9)
    assert found.n_features_in_ == ARRAY.size // ARRAY.shape[mode]


def test_counts() -> None:
    counts = np.random.default_rng(0).poisson(ARRAY)
    tensor = amped.SparseTensor(np.argwhere(counts), counts[counts > 0], counts.shape)
    found = amped.CP(2, loss="poisson", method="pdnr", max_iters=5, options=OPTIONS).fit(tensor)
    assert found.model_.series["loglikelihood"]
    assert found.model_.run["method"] == "pdnr"
    assert (found.transform(tensor) >= 0).all()


@pytest.mark.parametrize("mode", [0, 2])
@pytest.mark.parametrize("how", [{"rank": (3, 3, 3)}, {"error": 0.2}, {"rank": (2, 2, 2), "method": "hosvd"}], ids=str)
def test_tucker_rows_of_samples_are_those_of_the_model(mode: int, how: dict[str, Any]) -> None:
    found = amped.Tucker(mode=mode, max_iters=200, tol=1e-12, options=OPTIONS, **how)
    rows = found.fit_transform(ARRAY)
    assert rows.shape == (ARRAY.shape[mode], found.model_.ranks[mode])
    again = found.transform(ARRAY)
    assert np.allclose(again, rows, atol=1e-4) or how.get("method") == "hosvd"
    assert np.allclose(again, found.model_.transform(ARRAY, mode, **OPTIONS))
    few = np.moveaxis(np.moveaxis(ARRAY, mode, 0)[:5], 0, mode)
    assert np.allclose(found.transform(few), again[:5], atol=1e-9)
    score = found.score(ARRAY)
    assert score == pytest.approx(found.model_.fits[-1], abs=1e-9) or how.get("method") == "hosvd"
    assert score >= found.model_.fits[-1] - 1e-9, "rows of the least distance"
    assert found.n_features_in_ == ARRAY.size // ARRAY.shape[mode]


def test_tucker_parameters() -> None:
    found = amped.Tucker((4, 3, 2), seed=1)
    assert repr(found) == "Tucker(rank=(4, 3, 2), seed=1)"
    assert amped.Tucker(**found.get_params()).get_params() == found.get_params()
    with pytest.raises(InputError, match="this Tucker is not fitted yet"):
        found.transform(ARRAY)
    with pytest.raises(InputError, match="pass rank or error"):
        amped.Tucker().fit(ARRAY)
    with pytest.raises(InputError, match="Tucker has no parameter 'ranks'"):
        found.set_params(ranks=3)


@pytest.mark.parametrize(
    "estimator", [amped.CP(3, options=OPTIONS), exhaustive(amped.Tucker((3, 3, 3), options=OPTIONS))], ids=repr
)
def test_scikit_learn_takes_them(estimator: Any) -> None:
    sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.base import clone
    from sklearn.cluster import KMeans
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.utils.validation import check_is_fitted

    assert sklearn.__version__
    with pytest.raises(Exception, match="not fitted"):
        check_is_fitted(clone(estimator))
    fitted = clone(estimator).fit(ARRAY)
    check_is_fitted(fitted)
    assert clone(fitted).get_params() == estimator.get_params()
    assert not hasattr(clone(fitted), "model_")
    line = make_pipeline(clone(estimator), KMeans(2, n_init=1))
    assert line.fit(ARRAY).predict(ARRAY).shape == (len(ARRAY),)
    name = line.steps[0][0]
    grid = GridSearchCV(line, {f"{name}__seed": [0, 1]}, cv=2).fit(ARRAY)
    assert set(grid.best_params_) == {f"{name}__seed"}


ESTIMATORS = pytest.mark.parametrize(
    ("estimator", "prefix"),
    [(amped.CP(3, options=OPTIONS), "cp"), (amped.Tucker((3, 3, 3), options=OPTIONS), "tucker")],
    ids=["CP", "Tucker"],
)


@ESTIMATORS
@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_frames_with_names_of_columns(estimator: Any, prefix: str, kind: str) -> None:
    frames = pytest.importorskip(kind)
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.base import clone

    found = clone(clone(estimator).set_output(transform=kind))  # it goes with clones
    rows = found.fit_transform(ARRAY)
    names = [f"{prefix}{number}" for number in range(3)]
    assert isinstance(rows, frames.DataFrame)
    assert list(rows.columns) == names == found.get_feature_names_out(["a", "b"]).tolist()
    assert isinstance(found.transform(ARRAY[:4]), frames.DataFrame)
    plain = found.set_output(transform="default").transform(ARRAY)
    assert isinstance(plain, np.ndarray)
    np.testing.assert_array_equal(found.set_output().set_output(transform=kind).transform(ARRAY).to_numpy(), plain)
    assert not hasattr(clone(estimator).set_output(), "_sklearn_output_config")


@ESTIMATORS
def test_frames_through_pipelines_and_unions(estimator: Any, prefix: str) -> None:
    pandas = pytest.importorskip("pandas")
    sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.base import clone
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import FeatureUnion, make_pipeline
    from sklearn.preprocessing import StandardScaler

    names = [f"{prefix}{number}" for number in range(3)]
    line = clone(make_pipeline(clone(estimator), StandardScaler()).set_output(transform="pandas"))
    assert list(line.fit_transform(ARRAY).columns) == names == line.get_feature_names_out().tolist()
    chosen = ColumnTransformer([("scaled", StandardScaler(), names[1:])], verbose_feature_names_out=False)
    assert make_pipeline(clone(line[:1]), chosen).fit_transform(ARRAY).shape == (len(ARRAY), 2)
    frame = pandas.DataFrame(ARRAY[:, :, 0], index=list("abcdefghijkl"), columns=list("ABCDEFGHI"))
    matrix = amped.CP(2, options=OPTIONS)
    found = ColumnTransformer([("cp", matrix, list("ABC"))]).set_output(transform="pandas").fit_transform(frame)
    assert list(found.columns) == ["cp__cp0", "cp__cp1"]
    assert found.index.equals(frame.index)
    union = FeatureUnion([("a", clone(estimator)), ("b", clone(estimator))]).set_output(transform="pandas")
    assert list(union.fit_transform(ARRAY).columns) == [f"{each}__{name}" for each in "ab" for name in names]
    with sklearn.config_context(transform_output="pandas"):
        assert isinstance(clone(estimator).fit_transform(ARRAY), pandas.DataFrame)
        assert isinstance(clone(estimator).set_output(transform="default").fit_transform(ARRAY), np.ndarray)


def test_what_set_output_refuses() -> None:
    with pytest.raises(InputError, match="transform='arrow': expected one of 'default', 'pandas', 'polars'"):
        amped.CP(2).set_output(transform="arrow")
    with pytest.raises(InputError, match="not fitted yet"):
        amped.CP(2).get_feature_names_out()


def test_parameters_are_kept_as_they_are() -> None:
    found = amped.CP(4, nonnegative=True)
    assert repr(found) == "CP(rank=4, nonnegative=True)"
    assert found.get_params()["starts"] == 1
    assert amped.CP(**found.get_params()).get_params() == found.get_params()
    assert found.set_params(rank=7, seed=2).rank == 7


def test_what_is_wrong_is_refused() -> None:
    with pytest.raises(InputError, match="not fitted yet"):
        amped.CP(2).transform(ARRAY)
    with pytest.raises(InputError, match="no parameter 'ranks'"):
        amped.CP(2).set_params(ranks=3)
    with pytest.raises(InputError, match="loss 'l1'"):
        amped.CP(2, loss="l1").fit(ARRAY)
    with pytest.raises(InputError, match="mode 3"):
        amped.CP(2, mode=3, options=OPTIONS).fit(ARRAY)


@pytest.mark.parametrize("cv", [exhaustive(2), 3])
def test_cross_validation_compares_samples_with_their_own_rows(cv: int) -> None:
    selection = pytest.importorskip("sklearn.model_selection", reason="scikit-learn is not installed")
    rng = np.random.default_rng(2)
    array = low_rank((24, 15, 12), 3) + 0.01 * rng.standard_normal((24, 15, 12))
    sparse = amped.SparseTensor(np.argwhere(array), array.ravel(), array.shape)
    how = {"device": "cpu", "precision": "fp64"}
    ranks = {"rank": [1, 2, 3]}, {"rank": [(1, 1, 1), (2, 2, 2), (3, 3, 3)]}
    for given in (array, sparse):
        scores = []
        for estimator, each in zip((amped.CP(starts=2, options=how), amped.Tucker(options=how)), ranks, strict=True):
            search = selection.GridSearchCV(estimator, each, cv=cv, error_score="raise").fit(given)
            assert search.best_params_["rank"] in (3, (3, 3, 3))
            scores.append(search.best_score_)
        assert scores[1] > 0.95


def test_the_score_is_that_of_projected_rows() -> None:
    found = amped.CP(2, mode=1, max_iters=50, options=OPTIONS).fit(ARRAY)
    few = ARRAY[:, :4] + 0.1
    rows = found.transform(few)
    factors = [rows if mode == 1 else factor for mode, factor in enumerate(found.model_.factors)]
    want = 1 - np.linalg.norm(few - amped.KruskalTensor(np.ones(2), factors).full()) / np.linalg.norm(few)
    assert found.score(few) == pytest.approx(want, abs=1e-9)


def test_fit_transform_and_transform_agree_on_counts() -> None:
    counts = np.random.default_rng(0).poisson(5 * ARRAY)
    found = amped.CP(2, loss="poisson", max_iters=500, tol=1e-6, options=OPTIONS)
    rows = found.fit_transform(counts)
    np.testing.assert_allclose(found.transform(counts), rows, atol=2e-3 * rows.max())
    assert (found.transform(counts[:3]) >= 0).all()


@pytest.mark.parametrize(
    "estimator", [amped.CP(2, options=OPTIONS), amped.Tucker(error=0.1, options=OPTIONS)], ids=repr
)
def test_the_checks_of_scikit_learn(estimator: Any) -> None:
    checks = pytest.importorskip("sklearn.utils.estimator_checks", reason="scikit-learn is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # small arrays of noise have low fits
        results = checks.check_estimator(estimator, on_fail=None, on_skip=None)
    failed = {each["check_name"]: each["exception"] for each in results if each["status"] not in ("passed", "skipped")}
    assert failed == {}
    assert sum(each["status"] == "passed" for each in results) > 35


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize(
    "estimator", [amped.CP(3, options=OPTIONS), amped.Tucker((3, 2, 2), options=OPTIONS)], ids=repr
)
def test_components(estimator: Any, mode: int) -> None:
    found = type(estimator)(**estimator.get_params() | {"mode": mode})
    assert not hasattr(found, "components_")
    rows = found.fit_transform(ARRAY)
    others = [length for m, length in enumerate(ARRAY.shape) if m != mode]
    assert found.components_.shape == (rows.shape[1], *others)
    if isinstance(found, amped.Tucker):
        rows = found.model_.factors[mode]
    want = np.moveaxis(found.model_.full(), mode, 0)
    np.testing.assert_allclose(np.tensordot(rows, found.components_, 1), want, atol=1e-10)
    assert found.n_iter_ == len(found.model_.fits)


def test_random_states() -> None:
    def fits(**how: Any) -> tuple[float, ...]:
        fitted = amped.CP(2, max_iters=2, options=OPTIONS, **how).fit(ARRAY)
        return tuple(fitted.model_.fits)

    assert fits(random_state=5) == fits(seed=5) != fits(seed=6)
    state = np.random.RandomState(0)
    assert fits(random_state=state) != fits(random_state=state), "each fit draws another seed"
    assert fits(random_state=np.random.default_rng(0)) == fits(random_state=np.random.default_rng(0))
    with pytest.raises(InputError, match="random_state -1: expected an integer of at least 0"):
        fits(random_state=-1)


def test_features_are_those_of_the_fit() -> None:
    found = amped.CP(2, options=OPTIONS).fit(ARRAY)
    with pytest.raises(InputError, match="X has 36 features, but CP is expecting 72 features as input"):
        found.transform(ARRAY[:, :, :4])
    with pytest.raises(InputError, match="Reshape your data"):
        found.score(ARRAY[0, 0])
    with pytest.raises(InputError, match=r"0 sample\(s\) \(shape=\(0, 9, 8\)\)"):
        found.transform(ARRAY[:0])
    with pytest.raises(InputError, match="X contains NaN or inf: element"):
        found.transform(np.where(ARRAY.max() - 1e-9 < ARRAY, np.nan, ARRAY))
    np.testing.assert_array_equal(found.transform(ARRAY.tolist()), found.transform(ARRAY))


def test_the_example_of_the_guide_runs() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    guide = (ROOT / "docs" / "guide" / "python.md").read_text().split("## scikit-learn")[1]
    names: dict[str, Any] = {}
    exec(guide.split("```python\n")[1].split("```")[0], names)
    assert names["scores"].mean() > 0.95
    assert names["search"].best_params_ == {"rank": 3}
    assert names["best"].components_.shape == (3, 20, 15)
    assert len(set(names["groups"])) == 3
