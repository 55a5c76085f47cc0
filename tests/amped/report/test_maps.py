"""Maps of residuals and congruences, and shares, equal what NumPy computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensors import labels_of

import amped
from amped import InputError, KruskalTensor
from amped.models.elements import Standard
from amped.models.residual_map import residual_map

pytest.importorskip("matplotlib")
RNG = np.random.default_rng(4)
SHAPE = (7, 24, 50)
MODEL = KruskalTensor(np.array([90.0, 40.0]), [RNG.dirichlet(np.ones(length), 2).T for length in SHAPE])
COUNTS = RNG.poisson(MODEL.full()).astype(float)
SPARSE = amped.SparseTensor(np.argwhere(COUNTS), COUNTS[COUNTS > 0], SHAPE)


def cells(figure: Any) -> np.ndarray:
    return np.asarray(figure.axes[0].images[0].get_array())


@pytest.mark.parametrize("modes", [(0, 1), (2, 0)])
@pytest.mark.parametrize("poisson", [False, True])
def test_residuals_of_sparse_and_dense_tensors(modes: tuple[int, int], poisson: bool) -> None:
    full = MODEL.full()
    other = 3 - sum(modes)
    sums = [array.sum(axis=other).T if modes[0] > modes[1] else array.sum(axis=other) for array in (COUNTS, full)]
    sigma = np.sqrt(np.square(COUNTS - full).mean() * SHAPE[other])
    wanted = (sums[0] - sums[1]) / (np.sqrt(sums[1]) if poisson else sigma)
    for tensor in (SPARSE, amped.DenseTensor(COUNTS)):
        found = residual_map(MODEL.weights, MODEL.factors, tensor, modes, Standard(poisson, False))
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


def test_missing_elements_do_not_count() -> None:
    observed = RNG.random(SHAPE) < 0.5
    observed[3, 4] = False
    array = np.where(observed, COUNTS, np.nan)
    errors = np.where(observed, COUNTS - MODEL.full(), 0)
    number = observed.sum(axis=2)
    sigma = np.sqrt(np.square(errors).sum() / observed.sum())
    with np.errstate(invalid="ignore"):
        wanted = np.nan_to_num(errors.sum(axis=2) / np.sqrt(number) / sigma)
    np.testing.assert_allclose(cells(MODEL.plot_residuals(array, mask="nan")), wanted, rtol=1e-9, atol=1e-9)
    assert wanted[3, 4] == 0


def test_labels(folder: Path) -> None:
    week, places = "Sun Mon Tue Wed Thu Fri Sat".split(), [f"place ${n}" for n in range(50)]
    model = KruskalTensor(MODEL.weights, MODEL.factors).labelled(
        labels_of(week, range(24), places, names=["weekday", "hour", "place"])
    )
    figure = model.plot_residuals(SPARSE.labelled(model.labels), ("weekday", "place"), "r.png")
    assert Path("r.png").stat().st_size > 1000
    axes = figure.axes[0]
    assert [each.get_text() for each in axes.get_yticklabels()] == "Mon Tue Wed Thu Fri Sat Sun".split()
    assert axes.get_xlabel() == "place (40 of 50)"
    assert len(axes.get_xticklabels()) <= 12
    assert cells(figure).shape == (7, 40)
    first = residual_map(model.weights, model.factors, SPARSE, (0, 2), Standard(False, False))
    assert np.square(cells(figure)).sum() > 0.8 * np.square(first).sum()


def test_congruences_and_shares(folder: Path) -> None:
    found = cells(MODEL.plot_congruences("c.svg"))
    columns = [factor / np.linalg.norm(factor, axis=0) for factor in MODEL.factors]
    np.testing.assert_allclose(found, np.prod([each.T @ each for each in columns], axis=0))
    np.testing.assert_allclose(cells(MODEL.plot_congruences(modes=[2])), columns[2].T @ columns[2])
    heights = [bar.get_height() / 100 for bar in MODEL.plot_shares("s.pdf", SPARSE).axes[0].patches]
    np.testing.assert_allclose(heights[:2], MODEL.shares())
    for number in range(2):
        others = KruskalTensor(MODEL.weights[[1 - number]], [factor[:, [1 - number]] for factor in MODEL.factors])
        squares = [np.square(COUNTS - model.full()).sum() for model in (others, MODEL)]
        assert heights[2 + number] == pytest.approx((squares[0] - squares[1]) / np.square(COUNTS).sum())


def test_what_is_refused() -> None:
    for modes in ((0,), (0, 0), (0, 1, 2)):
        with pytest.raises(InputError, match="expected two different modes"):
            MODEL.plot_residuals(SPARSE, modes)
    with pytest.raises(InputError, match="modes: 'day' is none of"):
        MODEL.plot_congruences(modes=["day"])
    with pytest.raises(InputError, match="modes: expected at least one"):
        MODEL.plot_congruences(modes=[])
    long = KruskalTensor(np.ones(1), [np.ones((5000, 1)), np.ones((5000, 1))])
    with pytest.raises(InputError, match="5,000 x 5,000 cells, at most"):
        long.plot_residuals(amped.SparseTensor([[1, 1]], [1.0], (5000, 5000)))
