"""The result of a decomposition: its norm, its arrangement, its file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import amped
from amped.errors import InputError
from amped.models.kruskal import KruskalTensor


@st.composite
def models(draw: st.DrawFn) -> KruskalTensor:
    """Orders 2 to 6; components that are zero, weights of both signs."""
    shape = draw(st.lists(st.integers(1, 5), min_size=2, max_size=6))
    rank = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    factors = [rng.standard_normal((length, rank)) for length in shape]
    factors[0][:, rng.random(rank) < 0.2] = 0
    return KruskalTensor(rng.standard_normal(rank) * 10, factors)


def dense(model: KruskalTensor) -> np.ndarray:
    letters = "abcdefgh"[: len(model.factors)]
    return np.einsum(f"z,{','.join(c + 'z' for c in letters)}->{letters}", model.weights, *model.factors)


@given(models())
def test_full_and_norm(model: KruskalTensor) -> None:
    full = dense(model)
    np.testing.assert_allclose(model.full(), full, rtol=1e-12, atol=1e-12)
    assert model.norm() == pytest.approx(np.linalg.norm(full), rel=1e-9, abs=1e-6)
    assert (model.shape, model.rank) == (full.shape, model.weights.size)


@given(models())
def test_arranged_is_the_same_tensor_in_order(model: KruskalTensor) -> None:
    before = [f.copy() for f in (model.weights, *model.factors)]
    arranged = model.arranged()
    np.testing.assert_allclose(arranged.full(), dense(model), rtol=1e-10, atol=1e-10)
    assert np.all(np.diff(arranged.weights) <= 0)
    for factor in arranged.factors:
        norms = np.linalg.norm(factor, axis=0)
        assert np.all((np.abs(norms - 1) < 1e-12) | (norms == 0))
    assert np.all(np.isfinite(arranged.full())), "a component that is zero stays zero"
    again = arranged.arranged()
    np.testing.assert_allclose(again.weights, arranged.weights, rtol=1e-12)
    assert all(np.array_equal(a, b) for a, b in zip(before, (model.weights, *model.factors), strict=True))


@given(models())
def test_arranged_with_unit_1_norms(model: KruskalTensor) -> None:
    arranged = model.arranged(norm=1)
    np.testing.assert_allclose(arranged.full(), dense(model), rtol=1e-10, atol=1e-10)
    assert np.all(np.diff(arranged.weights) <= 0)
    for factor in arranged.factors:
        norms = np.abs(factor).sum(axis=0)
        assert np.all((np.abs(norms - 1) < 1e-12) | (norms == 0))


def test_arranged_keeps_precision_and_history() -> None:
    model = KruskalTensor(np.array([1.0, 5.0]), [np.full((3, 2), 1e-30, np.float32)] * 2, [0.1, 0.2], converged=True)
    arranged = model.arranged()
    assert [f.dtype for f in arranged.factors] == [np.float32] * 2
    np.testing.assert_allclose(arranged.weights, [15e-60, 3e-60], rtol=1e-6)
    assert (arranged.fits, arranged.converged) == ((0.1, 0.2), True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_save_and_load(tmp_path: Path, dtype: type) -> None:
    factors = [np.arange(6).reshape(3, 2).astype(dtype), np.ones((4, 2), dtype)]
    KruskalTensor(np.array([2.5, 0.1]), factors).save(tmp_path / "model.npz")
    model = KruskalTensor.load(tmp_path / "model.npz")
    assert model.weights.tolist() == [2.5, 0.1]
    for factor, given_factor in zip(model.factors, factors, strict=True):
        assert factor.dtype == dtype
        assert np.array_equal(factor, given_factor)
    assert sorted(np.load(tmp_path / "model.npz").files) == ["factor_0", "factor_1", "weights"]
    assert os.listdir(tmp_path) == ["model.npz"]


def test_save_replaces_a_file_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.npz"
    KruskalTensor(np.ones(1), [np.ones((2, 1))] * 2).save(path)
    before = path.read_bytes()

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(InputError, match="No space left"):
        KruskalTensor(np.ones(1), [np.ones((9, 1))] * 2).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.npz"]


def test_a_file_without_weights_has_weights_of_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", factor_0=np.ones((2, 3)), factor_1=np.ones((4, 3)))
    assert KruskalTensor.load(tmp_path / "m.npz").weights.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "arrays",
    [
        {"weights": np.ones(2)},
        {"factor_0": np.ones((2, 2)), "factor_1": np.ones((2, 3))},
        {"factor_0": np.ones((2, 2)), "weights": np.ones(3)},
        {"factor_0": np.ones((2, 2)), "weights": np.array(["a", "b"])},
        {"factor_0": np.ones(2)},
        {"factor_0": np.ones((2, 2), complex)},
        {"factor_0": np.array([[None]])},
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.raises(InputError):
        KruskalTensor.load(tmp_path / "m.npz")


def test_any_damage_to_a_file_is_named_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    model = KruskalTensor(np.arange(2.0), [np.arange(6.0).reshape(3, 2)] * 2)
    model.save(path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]):
            path.write_bytes(damaged)
            try:
                back = KruskalTensor.load(path)
            except InputError:
                continue
            assert np.array_equal(back.factors[0], model.factors[0])
            assert len(back.factors) in (1, 2)


@pytest.mark.parametrize("content", [None, b"", b"not an archive", b"PK\x03\x04", b"\x93NUMPY"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"model\.npz"):
        KruskalTensor.load(path)


def test_factors_must_have_a_column_for_each_weight() -> None:
    with pytest.raises(InputError):
        amped.KruskalTensor(np.ones(2), [np.ones((3, 2)), np.ones((3, 1))])
    with pytest.raises(InputError):
        amped.KruskalTensor(np.ones(2), [np.ones(2)])


def test_labels_are_kept(tmp_path: Path) -> None:
    model = KruskalTensor(np.arange(2.0), [np.ones((3, 2)), np.ones((2, 2))])
    labels = np.array([5, 7, 2**40]), np.array([1.5, 2.5])
    model.labelled(labels).arranged().save(tmp_path / "model.npz")
    for found in (KruskalTensor.load(tmp_path / "model.npz"), amped.load(tmp_path), amped.load(tmp_path / "model.npz")):
        assert found.labels is not None
        for mode in range(2):
            assert np.array_equal(found.labels[mode], labels[mode])
    with pytest.raises(InputError, match="labels of shapes"):
        model.labelled(labels[::-1])


def test_wrong_labels_in_a_file(tmp_path: Path) -> None:
    path, factors = tmp_path / "model.npz", {"factor_0": np.ones((3, 2)), "factor_1": np.ones((2, 2))}
    np.savez(path, **factors, labels_0=np.arange(3))
    with pytest.raises(InputError, match="contains no 'labels_1'"):
        amped.load(path)
    np.savez(path, **factors, labels_0=np.arange(3), labels_1=np.arange(3))
    with pytest.raises(InputError, match="labels of shapes"):
        amped.load(path)


@pytest.mark.usefixtures("without_compiled_code")
def test_history_is_kept(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    array = rng.random((4, 3, 2))
    for made in (amped.cp_als(array, 2, max_iters=3, device="cpu"), amped.cp_apr(array, 2, max_iters=3, device="cpu")):
        made.save(tmp_path / "m.npz")
        for found in (KruskalTensor.load(tmp_path / "m.npz"), amped.load(tmp_path / "m.npz")):
            assert isinstance(found, KruskalTensor)
            assert (found.fits, found.converged, found.series) == (made.fits, made.converged, made.series)
            assert found.run == made.run
            assert found.run["rank"] == 2
            assert found.loss == made.loss


@pytest.mark.parametrize(
    "arrays",
    [
        {"fits": np.zeros((2, 2)), "converged": np.zeros(3), "run": np.frombuffer(b"{", np.uint8)},
        {"fits": np.array(["a"]), "run": np.frombuffer(b"[1]", np.uint8), "series_kkt": np.zeros(0)},
        {"run": np.frombuffer(b"[" * 100_000, np.uint8), "converged": np.array(2.5)},
        {"run": np.zeros(4), "series_": np.zeros(2, np.int64)},
        {"run": np.frombuffer(b'{"fits": "high", "iterations": [1], "nonnegative": {"a": 1}}', np.uint8)},
    ],
)
def test_what_is_no_history_is_ignored(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "m.npz", weights=np.ones(1), factor_0=np.ones((2, 1)), factor_1=np.ones((3, 1)), **arrays)
    found = amped.load(tmp_path / "m.npz")
    assert (found.fits, found.series, found.run) == ((), {}, {})


def test_conversions_share_no_memory() -> None:
    rng = np.random.default_rng(0)
    model = KruskalTensor(rng.random(2), [rng.random((length, 2)) for length in (4, 3, 2)])
    before = [model.weights.copy(), *(f.copy() for f in model.factors)]
    for name in ("tensorly", "pyttb"):
        pytest.importorskip(name)
        other = getattr(model, f"to_{name}")()
        other.weights[...] = -1
        for factor in getattr(other, "factors", getattr(other, "factor_matrices", None)):
            factor[...] = -1
        again = getattr(KruskalTensor, f"from_{name}")(other)
        again.weights[...] = 7
        assert other.weights[0] == -1
    pandas = pytest.importorskip("pandas")
    assert pandas.__version__
    weights, frames = model.to_frames()
    weights[...] = -1
    for frame in frames:
        frame.iloc[:, :] = -1
    for now, then in zip([model.weights, *model.factors], before, strict=True):
        assert np.array_equal(now, then)


def test_a_file_of_another_kind_of_model(tmp_path: Path) -> None:
    amped.TuckerTensor(np.ones((1, 1)), [np.ones((3, 1)), np.ones((4, 1))]).save(tmp_path / "core.npz")
    amped.KruskalTensor(np.ones(1), [np.ones((3, 1)), np.ones((4, 1))]).save(tmp_path / "cp.npz")
    with pytest.raises(amped.InputError, match=r"core\.npz: is a Tucker model: use amped\.load or TuckerTensor\.load"):
        amped.KruskalTensor.load(tmp_path / "core.npz")
    with pytest.raises(amped.InputError, match=r"cp\.npz: contains no core"):
        amped.TuckerTensor.load(tmp_path / "cp.npz")
