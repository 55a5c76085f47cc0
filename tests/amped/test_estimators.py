"""Estimators, as scikit-learn would use them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from densecases import low_rank

import amped
from amped.errors import InputError

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
    found = amped.CP(2, loss="poisson", max_iters=5, options=OPTIONS).fit(tensor)
    assert found.model_.series["loglikelihood"]
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
    with pytest.raises(InputError, match="rank or error: one of them"):
        amped.Tucker().fit(ARRAY)
    with pytest.raises(InputError, match="Tucker has no parameter 'ranks'"):
        found.set_params(ranks=3)


@pytest.mark.parametrize(
    "estimator", [amped.CP(3, options=OPTIONS), amped.Tucker((3, 3, 3), options=OPTIONS)], ids=repr
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


@pytest.mark.parametrize("cv", [2, 3])
def test_cross_validation_compares_samples_with_their_own_rows(cv: int) -> None:
    selection = pytest.importorskip("sklearn.model_selection", reason="scikit-learn is not installed")
    rng = np.random.default_rng(2)
    array = low_rank((24, 15, 12), 3) + 0.01 * rng.standard_normal((24, 15, 12))
    sparse = amped.SparseTensor(np.argwhere(array), array.ravel(), array.shape)
    how = {"device": "cpu", "precision": "fp64"}
    ranks = {"rank": [1, 2, 3]}, {"rank": [(1, 1, 1), (2, 2, 2), (3, 3, 3)]}
    for given in (array, sparse):
        scores = []
        for estimator, each in zip((amped.CP(starts=5, options=how), amped.Tucker(options=how)), ranks, strict=True):
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
