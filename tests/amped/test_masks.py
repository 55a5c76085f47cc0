"""Masks and weights: their labels, and numbers that select nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import amped

xarray = pytest.importorskip("xarray")

RNG = np.random.default_rng(0)
X = RNG.random((5, 4, 3))
SEEN = RNG.random(X.shape) < 0.7
COORDINATES = {"a": list("vwxyz"), "b": list("pqrs"), "c": [1, 2, 3]}
CUBE = xarray.DataArray(X, dims=["a", "b", "c"], coords=COORDINATES)
MASK = CUBE.copy(data=SEEN)
ORDER = [2, 0, 3, 1]
HOW: dict[str, Any] = {"max_iters": 3, "tol": 0, "precision": "fp64", "device": "cpu"}


def fit(**how: Any) -> float:
    return amped.cp_als(CUBE, 2, **HOW, **how).fits[-1]


@pytest.mark.parametrize("name", ["mask", "weights", "holdout"])
def test_labels_are_matched(name: str) -> None:
    mask = MASK if name != "weights" else MASK * 2.0
    want = fit(**{name: mask})
    assert fit(**{name: mask.isel(b=ORDER)}) == pytest.approx(want, rel=1e-12)
    assert fit(**{name: mask.transpose("c", "a", "b")}) == pytest.approx(want, rel=1e-12)
    assert fit(**{name: mask.values}) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("name", ["mask", "weights", "holdout"])
def test_other_labels_are_refused(name: str) -> None:
    renamed = MASK.assign_coords(b=list("pqrt"))
    with pytest.raises(amped.InputError, match=f"{name} has other labels than the tensor"):
        fit(**{name: renamed})
    with pytest.raises(amped.InputError, match=f"{name} has other labels than the tensor"):
        fit(**{name: MASK.assign_coords(b=[1, 2, 3, 4])})


def test_masks_of_tables_are_matched() -> None:
    rows = pd.DataFrame({"a": list("xxyyz"), "b": list("uvuvu"), "n": [1.0, 2.0, 3.0, 5.0, 1.0]})
    table = amped.from_frame(rows, ["a", "b"], value="n")
    seen = amped.from_frame(rows[1:], ["b", "a"], value="n")
    found = amped.cp_als(table, 1, mask=seen, **HOW)
    assert found.fits == amped.cp_als(table, 1, mask=np.array([[0, 1], [1, 1], [1, 0]]), **HOW).fits


@pytest.mark.parametrize("name", ["mask", "weights", "holdout"])
def test_nan_selects_nothing(name: str) -> None:
    """NaN is not zero, so that it would select elements."""
    for mask in (np.where(SEEN, 1.0, np.nan), MASK.where(MASK), np.ma.array(np.ones(X.shape), mask=~SEEN)):
        with pytest.raises(amped.InputError, match=f"{name}: an element is NaN"):
            fit(**{name: mask})


@pytest.mark.parametrize("method", ["score", "transform"])
def test_a_mask_refers_to_the_tensor_that_comes_with_it(method: str) -> None:
    model = amped.cp_als(CUBE, 2, **HOW)
    arguments: tuple[Any, ...] = (0,) if method == "transform" else ()
    call = getattr(model, method)
    want = call(CUBE, *arguments, mask=SEEN)
    for tensor, mask in (
        (CUBE.isel(b=ORDER), SEEN[:, ORDER]),
        (CUBE.isel(b=ORDER), MASK),
        (CUBE.transpose("c", "a", "b"), SEEN.transpose(2, 0, 1)),
        (CUBE, MASK.isel(b=ORDER)),
        (X, SEEN),
    ):
        np.testing.assert_allclose(call(tensor, *arguments, mask=mask), want, rtol=1e-5)
    with pytest.raises(amped.InputError, match="mask: an element is NaN"):
        call(CUBE, *arguments, mask=np.where(SEEN, 1.0, np.nan))
