"""Elements that are not NaN are described as their list is."""

from __future__ import annotations

import numpy as np
import pytest

from partitioner.errors import InputError
from partitioner.tensors import present
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.present import PresentElements


def with_gaps(shape: tuple[int, ...], dtype: str, numbers: str) -> np.ndarray:
    """Return an array of which some elements, an index of the first and some of the last mode are NaN."""
    rng = np.random.default_rng(3)
    kinds = {
        "real": rng.standard_normal(shape),
        "halves": rng.integers(-5, 5, shape) / 2,
        "huge": rng.random(shape) * 1e200,
    }
    array = kinds[numbers].astype(dtype)
    array[rng.random(shape) < 0.2] = np.nan
    array[1], array[..., ::2] = np.nan, np.nan
    return array


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("dtype", "numbers"), [("f8", "real"), ("f4", "halves"), ("f8", "huge")])
@pytest.mark.parametrize("shape", [(5, 6), (4, 1, 7), (3, 4, 5, 6)])
def test_the_description_is_that_of_the_list(
    shape: tuple[int, ...], dtype: str, numbers: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(present, "BLOCK", 20)  # several parts, some of them empty
    found = PresentElements(DenseTensor(np.array(with_gaps(shape, dtype, numbers), order=order)))
    listed = found.listed()
    assert (found.nnz, found.values) == (listed.nnz, listed.value_range())
    assert found.norm == pytest.approx(listed.norm(), rel=1e-14)
    for mode, length in enumerate(shape):
        np.testing.assert_array_equal(found.used_indices(mode), np.unique(listed.columns[mode]))
        chosen = np.arange(length) % 3 == 0
        columns, values = found.of_rows(mode, chosen)
        of_rows = chosen[listed.columns[mode]]
        assert sorted(zip(*columns, values, strict=True)) == sorted(
            zip(*listed.columns[:, of_rows], listed.values[of_rows], strict=True)
        )


def test_all_elements_of_whole_numbers() -> None:
    found = PresentElements(DenseTensor(np.arange(24).reshape(2, 3, 4)))
    assert (found.nnz, found.values.high, found.values.grain) == (24, 23.0, 1.0)


@pytest.mark.parametrize(
    ("number", "message"), [(np.inf, r"element \[1, 2, 3\] is observed, but is inf"), (np.nan, "no element")]
)
def test_errors_are_those_of_the_list(number: float, message: str) -> None:
    array = np.full((2, 3, 4), np.nan)
    array[1, 2, 3] = number
    with pytest.raises(InputError, match=message):
        PresentElements(DenseTensor(array))
