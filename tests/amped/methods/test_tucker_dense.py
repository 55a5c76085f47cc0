"""Tucker decompositions of dense tensors on one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tuckers import assert_orthonormal, assert_same_spaces, dense_hooi, dense_hosvd, relative_error

import amped
from amped.methods import hosvd
from amped.operators.dense import block as dense_block

CASES = [((9, 7), (3, 3)), ((6, 8, 7), (3, 2, 4)), ((4, 6, 5, 3), (2, 3, 2, 2)), ((1, 5, 6), (1, 3, 3))]


def smooth(shape: tuple[int, ...]) -> np.ndarray:
    """Return a field of small ranks, and a little noise."""
    axes = np.meshgrid(*(np.linspace(0, 1, n) for n in shape), indexing="ij")
    field = np.exp(-sum((axis - 0.3 * k) ** 2 for k, axis in enumerate(axes))) + 1 / (1 + sum(axes))
    return np.asarray(field + 1e-3 * np.random.default_rng(0).standard_normal(shape))


@pytest.fixture(params=[1 << 20, 16])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors in one piece, and in many."""
    monkeypatch.setattr(dense_block, "HOST_PIECE", request.param)
    monkeypatch.setattr(dense_block, "DEVICE_PIECE", request.param)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("shape", "ranks"), CASES)
@pytest.mark.usefixtures("pieces")
def test_hooi_takes_the_path_of_an_oracle(
    device: str, shape: tuple[int, ...], ranks: tuple[int, ...], order: str
) -> None:
    dense = np.asarray(np.random.default_rng(1).random(shape), order=order)  # type: ignore[call-overload]
    start = [np.random.default_rng([n, r]).random((n, r)) for n, r in zip(shape, ranks, strict=True)]
    factors, fits = dense_hooi(dense, start, 4)
    model = amped.tucker(dense, ranks, init=start, max_iters=4, tol=0, precision="fp64", device=device)
    np.testing.assert_allclose(model.fits, fits, atol=1e-12)
    assert_same_spaces(model.factors, factors, 1e-8)
    assert_orthonormal(model, 1e-12)


@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize("method", ["hosvd", "sthosvd"])
@pytest.mark.parametrize(("shape", "ranks"), CASES)
@pytest.mark.usefixtures("pieces")
def test_spectra(device: str, shape: tuple[int, ...], ranks: tuple[int, ...], method: str, placement: str) -> None:
    """Of ST-HOSVD, modes are compressed from the last one on."""
    dense, backwards = smooth(shape), method == "sthosvd"
    model = amped.tucker(dense, ranks, method=method, precision="fp64", device=device, placement=placement)
    if backwards:
        turned = dense.transpose()
        want = dense_hosvd(turned, ranks[::-1], True)[::-1]
    else:
        want = dense_hosvd(dense, ranks, False)
    assert_same_spaces(model.factors, want, 1e-6)
    assert abs(1 - relative_error(dense, model) - model.fits[0]) < 1e-7


@pytest.mark.parametrize("method", ["hosvd", "sthosvd", "hooi"])
@pytest.mark.parametrize("most", [hosvd.MOST, 3])
@pytest.mark.parametrize("error", [0.3, 0.05, 0.01])
def test_the_error_that_was_asked_for(device: str, error: float, most: int, method: str) -> None:
    dense = smooth((14, 12, 15))
    with mock.patch.object(hosvd, "MOST", most), mock.patch.object(hosvd, "FIRST", 1):
        model = amped.tucker(dense, error=error, method=method, precision="fp64", device=device)
    assert relative_error(dense, model) <= error
    assert model.compression > 10


@pytest.mark.parametrize("how", [{"error": 0.1}, {"rank": (1, 2, 2)}, {"rank": (2, 2, 2), "method": "sthosvd"}])
@pytest.mark.parametrize(
    ("value", "precision"), [(1e39, "fp32"), (1e-200, "fp32"), (1e300, "fp64"), (1e308, "fp64"), (1e-200, "fp64")]
)
def test_values_that_have_no_squares_are_refused(how: Any, value: float, precision: Any, device: str) -> None:
    dense = np.random.default_rng(0).uniform(0.5, 1, (4, 5, 6)) * value
    for placement in ("resident", "stream"):
        with pytest.raises(amped.InputError, match=r"values up to .* are beyond the range of float"):
            amped.tucker(dense, precision=precision, device=device, placement=placement, **how)


def test_a_file_in_single_precision(tmp_path: Path, device: str) -> None:
    dense = smooth((14, 12, 15)).astype(np.float32)
    np.save(tmp_path / "x.npy", dense)
    model = amped.tucker(tmp_path / "x.npy", error=0.01, method="sthosvd", device=device)
    assert relative_error(dense, model) <= 0.01
    assert_orthonormal(model, 1e-6)
