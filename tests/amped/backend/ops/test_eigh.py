"""Leading eigenvectors that a device finds without the host, against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle import BACKENDS

from amped.backend.device import Device
from amped.backend.ops.eigh import TURNS, Eigh, EighStatus, eigh_of, status_of, status_size

CURRENT = [BACKENDS[-1], ("null", 1)]  # a GPU, and the null device
SIZES = [(8, 2), (33, 4), (100, 10), (128, 64), (256, 16), (300, 32), (511, 7), (512, 8)]


def way_of(device: Device, size: int, count: int) -> Eigh:
    way = eigh_of(device, size, count)
    if way is None:
        pytest.skip("on this GPU the library computes eigenvectors")
    return way


def solved(device: Device, gram: np.ndarray, count: int) -> tuple[EighStatus, np.ndarray]:
    """Return the status of a matrix's eigenvectors, and these over the roots of their eigenvalues."""
    way = way_of(device, len(gram), count)
    vectors, facts = device.empty((len(gram), count), np.float64), device.zeros((status_size(count),), np.float64)
    way.eigenvectors(device.to_device(gram), vectors, facts)
    return status_of(np.array(device.to_host(facts))), np.array(device.to_host(vectors))


def tall(size: int, kind: str) -> np.ndarray:
    """Return a matrix; one large singular value, or columns of very different lengths, or neither."""
    rng = np.random.default_rng(size)
    matrix = rng.standard_normal((3 * size, size))
    if kind == "one large":
        matrix += 20 * rng.random((3 * size, 1)) * rng.random(size)
    return matrix * (10.0 ** -rng.integers(0, 4, size) if kind == "graded" else 1)


@pytest.mark.parametrize("kind", ["plain", "one large", "graded"])
@pytest.mark.parametrize(("size", "count"), SIZES)
@pytest.mark.parametrize("backend", CURRENT, indirect=True)
def test_eigenvectors_span_the_leading_space(backend: Device, size: int, count: int, kind: str) -> None:
    matrix = tall(size, kind)
    gram = matrix.T @ matrix
    status, vectors = solved(backend, gram, count)
    values, wanted = (each[..., ::-1] for each in np.linalg.eigh(gram))
    np.testing.assert_allclose(status.values, values[:count], atol=1e-14 * size * values[0])
    assert status.left_over.max() < 1e-13
    columns = vectors * np.sqrt(status.values)
    gap = (values[count - 1] - values[count]) / values[0]
    off = columns - wanted[:, :count] @ (wanted[:, :count].T @ columns)
    assert np.linalg.norm(off) < 1e-14 * size / gap
    np.testing.assert_allclose(np.linalg.norm(columns, axis=0), 1, atol=1e-13)


@pytest.mark.parametrize("count", [1, 2, 10, 33, 64])
@pytest.mark.parametrize("backend", CURRENT, indirect=True)
def test_columns_become_orthonormal(backend: Device, count: int) -> None:
    rng, way = np.random.default_rng(count), way_of(backend, 64, count)
    matrix = rng.standard_normal((200, count)) * 10.0 ** rng.integers(-3, 4, count)
    facts, change = backend.zeros((status_size(count),), np.float64), backend.empty((count, count), np.float64)
    for turn in range(TURNS):
        gram = matrix.T @ matrix
        way.whiten(backend.to_device(gram), change, facts, turn)
        matrix = matrix @ np.array(backend.to_host(change))
        assert status_of(np.array(backend.to_host(facts))).off[turn] == np.abs(gram - np.eye(count)).max()
    status = status_of(np.array(backend.to_host(facts)))
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(count), atol=1e-14 * count)
    assert status.off[-1] < 1e-14 * count
    assert 0 < status.pivots.min() <= status.pivots.max() <= 1 + 1e-14


@pytest.mark.parametrize("backend", CURRENT, indirect=True)
def test_what_cannot_be_whitened_is_told(backend: Device) -> None:
    """Columns that are the same, and numbers that are none."""
    for gram in (np.ones((3, 3)), np.full((3, 3), np.nan)):
        facts, change = backend.zeros((status_size(3),), np.float64), backend.empty((3, 3), np.float64)
        way_of(backend, 8, 3).whiten(backend.to_device(gram), change, facts, 0)
        assert not status_of(np.array(backend.to_host(facts))).pivots[0] > 1e-12


@pytest.mark.parametrize("backend", BACKENDS[-1:], indirect=True)
@pytest.mark.parametrize("gram", [np.zeros((40, 40)), np.full((40, 40), np.nan), np.full((40, 40), np.inf)])
def test_matrices_without_eigenvectors_have_no_large_values(backend: Device, gram: Any) -> None:
    status, _ = solved(backend, gram, 4)
    assert not np.any(status.values > 0)


@pytest.mark.parametrize("backend", BACKENDS[-1:], indirect=True)
def test_the_same_bits_every_time(backend: Device) -> None:
    gram = (matrix := tall(300, "plain")).T @ matrix
    assert solved(backend, gram, 12)[1].tobytes() == solved(backend, gram, 12)[1].tobytes()
