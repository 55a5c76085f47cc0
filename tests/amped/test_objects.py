"""Every kind of object through fit, score, residuals, transform, report and estimators: as the NumPy array, or refused.

Objects are recognised by one function, so each function gives for each kind what it gives for a NumPy array.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from objects import CASES, CLOSE, FIT, HOW, NAMES, array, check, data_array, frame, outcome, wide

import amped
from amped.errors import InputError


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Any]]:
    """What the NumPy array gives, and its first slice."""
    folder = tmp_path_factory.mktemp("wanted")
    whole, matrix = array(), array()[:, :, 0].copy()
    return {False: outcome(whole, whole, folder), True: outcome(matrix, matrix, folder)}


@pytest.mark.parametrize("name", CASES)
def test_all_functions_agree_with_the_array(name: str, wanted: dict[bool, dict[str, Any]], tmp_path: Path) -> None:
    check(name, wanted, tmp_path)


def test_dimensions_and_labels_in_another_order() -> None:
    whole = data_array()
    model, core = amped.cp_als(whole, 2, **FIT), amped.tucker(whole, (2, 2, 2), **FIT)
    for other in (
        whole.transpose(*NAMES[::-1]),
        whole.isel(sample=[3, 0, 1, 6, 5, 4, 2], hour=slice(None, None, -1)),
        data_array((NAMES[1], NAMES[2], NAMES[0]), sparse=True),
        frame("pandas").sample(frac=1, random_state=0),
    ):
        how = {"value": "count"} if hasattr(other, "iloc") else {}
        assert model.score(other, **how) == pytest.approx(model.fits[-1], abs=1e-9)
        assert core.score(other, **how) == pytest.approx(core.fits[-1], abs=1e-9)
    rows = model.transform(whole.isel(gene=[5, 4, 3, 2, 1, 0]), 0, **HOW)
    np.testing.assert_allclose(rows, model.transform(whole, 0, **HOW), **CLOSE)
    model = amped.cp_als(wide(), 2, **FIT)
    assert model.score(wide().iloc[::-1, ::-1]) == pytest.approx(model.fits[-1], abs=1e-9)


def test_arrays_without_names_are_matched_by_position() -> None:
    unnamed = data_array(coordinates=0).rename(dict(zip(NAMES, ("dim_0", "dim_1", "dim_2"), strict=True)))
    model = amped.cp_als(unnamed, 2, **FIT)
    assert model.labels is None
    assert model.score(unnamed) == pytest.approx(model.fits[-1], abs=1e-9)
    assert model.score(array()) == pytest.approx(model.fits[-1], abs=1e-9)


def test_equal_labels() -> None:
    tensor = amped.SparseTensor([[0, 0], [1, 1], [2, 0]], [1.0, 2.0, 3.0])
    tensor.labels = [["g1", "g1", "g2"], ["s1", "s2"]]
    model = amped.cp_als(tensor, 2, **FIT)
    assert model.score(tensor) == pytest.approx(model.fits[-1], abs=1e-6)
    other = amped.SparseTensor([[0, 0], [1, 1], [2, 0]], [1.0, 2.0, 3.0])
    other.labels = [["g2", "g1", "g1"], ["s1", "s2"]]
    for call in (model.score, model.residuals, lambda given: model.transform(given, 1, **HOW)):
        with pytest.raises(InputError, match="X: mode 0: label 'g1' stands for 2 indices of"):
            call(other)
    assert model.transform(other, 0, **HOW).shape == (3, 2), "that mode's labels are not matched"


class Both:
    """A table of some library that arrays can be made of, too."""

    def __init__(self, table: Any) -> None:
        self._table, self.columns = table, table.column_names

    def __array__(self, *how: Any, **more: Any) -> np.ndarray:
        return np.array(self._table.to_pandas())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_tables_that_are_arrays_too() -> None:
    table = frame("pyarrow")
    model = amped.cp_als(amped.from_frame(Both(table), NAMES, "count"), 2, **FIT)
    assert model.score(Both(table)) == pytest.approx(model.fits[-1], abs=1e-9)
    with pytest.raises(InputError, match=r"a table: amped\.from_frame"):
        amped.cp_als(Both(table), 2, **FIT)
    with pytest.raises(InputError, match="frame is of type DataArray: a tensor"):
        amped.from_frame(data_array(), NAMES)


def test_series_are_tables() -> None:
    counts = frame("pandas").groupby(list(NAMES))["count"].sum()
    model = amped.cp_als(amped.from_frame(counts, NAMES), 2, **FIT)
    assert model.score(counts) == pytest.approx(model.fits[-1], abs=1e-9)
    assert model.score(counts.rename("n")) == pytest.approx(model.fits[-1], abs=1e-9)
    assert model.score(frame("pandas")) == pytest.approx(model.fits[-1], abs=1e-9)
    with pytest.raises(InputError, match=r"a table: amped\.from_frame"):
        amped.cp_als(counts, 2, **FIT)
