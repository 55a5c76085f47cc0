"""Tucker models: parts, files, and other packages' forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amped
from amped.errors import InputError

SHAPE, RANKS = (7, 5, 9), (3, 2, 4)


@pytest.fixture
def model() -> amped.TuckerTensor:
    rng = np.random.default_rng(0)
    factors = [np.linalg.qr(rng.standard_normal(s))[0] for s in zip(SHAPE, RANKS, strict=True)]
    return amped.TuckerTensor(rng.standard_normal(RANKS), factors)


def dense(model: amped.TuckerTensor) -> np.ndarray:
    return np.einsum("abc,ia,jb,kc->ijk", model.core, *model.factors)


def test_the_whole_and_its_norm(model: amped.TuckerTensor) -> None:
    np.testing.assert_allclose(model.full(), dense(model), atol=1e-14)
    assert model.norm() == pytest.approx(np.linalg.norm(dense(model)))
    assert model.compression == 7 * 5 * 9 / (24 + 21 + 10 + 36)
    assert (model.shape, model.ranks) == (SHAPE, RANKS)


@pytest.mark.parametrize(
    "index", [(3,), (slice(1, 4),), (3, -1, 0), ([0, 6, 6], slice(None), [8, 2]), (slice(None, None, 2), [1]), ()]
)
def test_parts(model: amped.TuckerTensor, index: tuple[Any, ...]) -> None:
    want = dense(model)
    for mode, at in reversed(list(enumerate(index))):
        want = np.take(want, at, mode) if isinstance(at, (int, list)) else want[(slice(None),) * mode + (at,)]
    found = model.reconstruct(*index)
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, atol=1e-14)


def test_a_part_of_a_tensor_too_large_to_be_made() -> None:
    factors = [np.random.default_rng(n).random((1_000_000, 2)) for n in range(3)]
    model = amped.TuckerTensor(np.ones((2, 2, 2)), factors)
    part = model.reconstruct(slice(0, 2), 999_999, [5])
    want = [f.sum(axis=1) for f in factors]
    np.testing.assert_allclose(part[:, 0], want[0][:2] * want[1][-1] * want[2][5])


@pytest.mark.parametrize("index", [(7,), ([0, 9],), (0, 0, 0, 0), ("a",), ([[1]],)])
def test_parts_that_are_not_there(model: amped.TuckerTensor, index: Any) -> None:
    with pytest.raises(InputError):
        model.reconstruct(*index)


def test_arranged_columns_have_positive_tops(model: amped.TuckerTensor) -> None:
    want = dense(model)
    model.arrange()
    for factor in model.factors:
        assert np.all(factor[np.abs(factor).argmax(axis=0), range(factor.shape[1])] > 0)
    np.testing.assert_allclose(dense(model), want, atol=1e-14)


def test_saved_and_loaded(model: amped.TuckerTensor, tmp_path: Path) -> None:
    labels = tuple(np.array([f"{m}-{i}" for i in range(n)]) for m, n in enumerate(SHAPE))
    model.labelled(labels).save(tmp_path / "model.npz")
    for path in (tmp_path, tmp_path / "model.npz"):
        found = amped.load(path)
        assert isinstance(found, amped.TuckerTensor)
        np.testing.assert_array_equal(found.core, model.core)
        assert found.labels is not None
        for one, other in zip((*found.factors, *found.labels), (*model.factors, *labels), strict=True):
            np.testing.assert_array_equal(one, other)


def test_files_that_are_no_models(model: amped.TuckerTensor, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    np.savez(path, core=np.ones((2, 2)), factor_0=np.ones((3, 2)))
    with pytest.raises(InputError, match="for a core of"):
        amped.load(path)
    np.savez(path, core=np.array([np.nan]), factor_0=np.ones((3, 1)))
    with pytest.raises(InputError, match="no core"):
        amped.load(path)
    with pytest.raises(InputError):
        amped.TuckerTensor(np.ones((2, 2)), [np.ones((3, 2)), np.ones((3, 1))])


def test_pyttb_and_back(model: amped.TuckerTensor) -> None:
    pytest.importorskip("pyttb", reason="pyttb is not installed (extra: test)")
    theirs = model.to_pyttb()
    np.testing.assert_allclose(theirs.full().data, dense(model), atol=1e-12)
    np.testing.assert_allclose(amped.TuckerTensor.from_pyttb(theirs).full(), dense(model), atol=1e-12)


def test_tensorly_and_back(model: amped.TuckerTensor) -> None:
    pytest.importorskip("tensorly", reason="TensorLy is not installed")
    import tensorly

    theirs = model.to_tensorly()
    np.testing.assert_allclose(tensorly.tucker_to_tensor(theirs), dense(model), atol=1e-12)
    np.testing.assert_allclose(amped.TuckerTensor.from_tensorly(theirs).full(), dense(model), atol=1e-12)


def test_a_pair_is_enough(model: amped.TuckerTensor) -> None:
    np.testing.assert_allclose(amped.TuckerTensor.from_tensorly(tuple(model)).full(), dense(model), atol=1e-14)


def test_history_is_kept(tmp_path: Path) -> None:
    made = amped.tucker(np.random.default_rng(0).random((4, 3, 3)), (2, 2, 2), max_iters=3, device="cpu")
    made.save(tmp_path / "m.npz")
    found = amped.load(tmp_path / "m.npz")
    assert isinstance(found, amped.TuckerTensor)
    assert (found.fits, found.converged, found.run) == (made.fits, made.converged, made.run)
    assert found.run["rank"] == [2, 2, 2]


def test_conversions_share_no_memory(model: amped.TuckerTensor) -> None:
    before = [model.core.copy(), *(f.copy() for f in model.factors)]
    for name in ("tensorly", "pyttb"):
        pytest.importorskip(name)
        other = getattr(model, f"to_{name}")()
        (other.core if name == "tensorly" else other.core.data)[...] = -1
        for factor in getattr(other, "factors", getattr(other, "factor_matrices", None)):
            factor[...] = -1
        again = getattr(amped.TuckerTensor, f"from_{name}")(other)
        again.core[...] = again.factors[0][...] = 7
        assert (other.core if name == "tensorly" else other.core.data).max() == -1
    for now, then in zip([model.core, *model.factors], before, strict=True):
        assert np.array_equal(now, then)
