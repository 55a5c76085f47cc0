"""SpTTM of fibres: chunks, and the kernels of each device."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from forms import some_of
from hypothesis import given
from hypothesis import strategies as st

from amped.backend import fibres
from amped.backend.cpu.ops import ttm as cpu_ttm
from amped.backend.device import Device
from amped.backend.fibres import count_fibres, cut_chunks, fibre_starts
from amped.backend.ops.ttm import TTM, ProductForm

pytestmark = pytest.mark.in_turn

SLACK = 5
F4, F8 = np.float32, np.float64
KINDS = {
    "short": lambda rng, count: rng.integers(1, 4, count),
    "of one nonzero": lambda rng, count: np.ones(count, int),
    "long": lambda rng, count: rng.integers(300, 900, count),
    "one has nearly all": lambda rng, count: np.where(np.arange(count) == count // 2, 9000, 1),
    "mixed": lambda rng, count: rng.choice([1, 2, 20, 40, 3000], count),
}


@given(st.integers(0, 2**32 - 1), st.sampled_from([11, 40, 256]), st.sampled_from(list(KINDS)), st.integers(1, 60))
def test_chunks(seed: int, size: int, kind: str, count: int) -> None:
    """Each nonzero is in one chunk, and what is carried is added up to the sums of fibres."""
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(KINDS[kind](rng, count))])
    nonzeros, values = int(starts[-1]), rng.random(int(starts[-1]))
    with mock.patch.object(fibres, "FAN_IN", 3):
        chunks = cut_chunks(starts, nonzeros, size, SLACK)
    begin, end = chunks.table[:, 0], chunks.table[:, 1]
    assert begin[0] == 0
    assert end[-1] == nonzeros
    np.testing.assert_array_equal(begin[1:], end[:-1])
    assert np.all(end - begin <= size + 2 * SLACK)
    out, carries = np.full(count, np.nan), np.full(chunks.slots, np.nan)
    for first, last, fibre, slot in chunks.table:
        for at in range(first, last):
            if at == first or at == starts[fibre]:
                total = 0.0
            total += values[at]
            if at + 1 == starts[fibre + 1]:
                out[fibre] = total
                fibre += 1
        if slot >= 0:
            carries[slot] = total
    for items in chunks.levels:
        for first, last, fibre, slot in items:
            total = carries[first:last].sum()
            if fibre >= 0:
                out[fibre] += total
            else:
                carries[slot] = total
    np.testing.assert_allclose(out, np.add.reduceat(values, starts[:-1]), rtol=1e-12)


def test_slots_are_as_many_as_foreseen() -> None:
    for nonzeros in (1, 100, 10_000, 1_000_000):
        chunks = cut_chunks(np.array([0, nonzeros]), nonzeros, 64, 16)
        assert chunks.slots <= fibres.most_slots(-(-nonzeros // 64))


def test_fibres_begin_where_an_index_differs() -> None:
    columns = [np.array([0, 0, 0, 1, 1]), np.array([2, 2, 3, 3, 3])]
    assert fibre_starts(columns, 5).tolist() == [0, 2, 3, 5]
    assert fibre_starts([], 5).tolist() == [0, 5]
    assert fibre_starts([np.zeros(0, int)], 0).tolist() == [0]


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
def test_fibres_are_counted_in_blocks(block: int) -> None:
    rng = np.random.default_rng(block)
    columns = [np.sort(rng.integers(0, 30, 200)), np.zeros(200, int)]
    with mock.patch.object(fibres, "COUNTED", block):
        assert count_fibres(columns, 200, fibre_starts) == np.unique(columns[0]).size
        assert count_fibres([], 200, fibre_starts) == 1
        assert count_fibres([np.zeros(0, int)], 0, fibre_starts) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rank", "width", "dtype"),
    some_of(
        [(1, 1, F4), (7, 3, F4), (7, 1, F8), (33, 1, F8), (40, 64, F8)],
        [
            (*each, dtype)
            for each in ((1, 1), (7, 1), (16, 1), (33, 1), (64, 1), (300, 1), (16, 5), (7, 3), (40, 64))
            for dtype in (F4, F8)
        ],
    ),
)
def test_a_product(backend: Device, monkeypatch: Any, kind: str, rank: int, width: int, dtype: Any) -> None:
    """Every row of the result is written, whatever it held."""
    monkeypatch.setattr(cpu_ttm, "SMALLEST", 70)
    monkeypatch.setattr(cpu_ttm, "CACHED", 0)
    rng, kind_of = np.random.default_rng(rank), np.dtype(dtype)
    starts = np.concatenate([[0], np.cumsum(KINDS[kind](rng, 40))])
    nonzeros, length = int(starts[-1]), 50
    if width > 1:  # enough is seen of a few
        starts = starts[: int(np.searchsorted(starts, 900)) + 1]
        nonzeros = int(starts[-1])
    indices = rng.integers(0, length, nonzeros, dtype=np.int32)
    values = rng.random((nonzeros, width)).astype(kind_of) + 0.5
    form = ProductForm(length, backend.stride(rank, kind_of.itemsize), kind_of, nonzeros, width)
    matrix = rng.random((length, form.stride)).astype(kind_of)
    (kernel,) = TTM.providers(backend)
    shard = kernel.make(
        backend.to_device(indices), backend.to_device(values), backend.to_device(starts.astype(np.uint32)), form
    )
    out = backend.empty((starts.size - 1, width, form.stride), kind_of)
    out.fill(np.nan)
    held = backend.zeros(matrix.shape, kind_of)
    held[...] = backend.to_device(matrix)
    counted = kernel.bytes(form, nonzeros, starts.size - 1)
    scratch = backend.empty((counted.running,), np.uint8)
    scratch.fill(255)
    kernel.run(shard, held, out, scratch)
    products = values[:, :, None].astype(float) * matrix[indices][:, None, :].astype(float)
    want = np.add.reduceat(products, starts[:-1])
    got = backend.to_host(out).astype(float)
    tolerance = 1e-6 if kind_of == np.float32 else 1e-13
    assert np.linalg.norm(got - want) <= tolerance * np.linalg.norm(want)
    assert np.all(np.linalg.norm(got - want, axis=(1, 2)) <= 5 * tolerance * np.linalg.norm(want, axis=(1, 2)))
    assert shard.nbytes <= counted.shard
    assert (shard.nnz, shard.fibres) == (nonzeros, starts.size - 1)

    # From a slot, and again: to the last bit the same.
    again = backend.empty(out.shape, kind_of)
    again.fill(np.nan)
    moved = shard.unloaded().copied(backend.empty((shard.nbytes,), np.uint8))
    kernel.run(moved, held, again, None)
    np.testing.assert_array_equal(backend.to_host(again), backend.to_host(out))


def test_nothing(backend: Device) -> None:
    (kernel,) = TTM.providers(backend)
    form = ProductForm(3, 8, np.dtype(np.float64), 0)
    assert kernel.bytes(form, 0, 0) == (0, 0, 0)
    shard = kernel.make(np.zeros(0, np.int32), np.zeros(0), np.zeros(1, np.int64), form)
    kernel.run(shard, backend.zeros((3, 8), np.float64), backend.empty((0, 1, 8), np.float64))
