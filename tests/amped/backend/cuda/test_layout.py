"""How a GPU holds nonzeros: codes of values, records, tiles, jobs and chunks. No GPU needed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amped.backend.cuda.code import interleaved
from amped.backend.cuda.layout import (
    ALIGNMENT,
    AT_ONCE,
    CHUNK,
    FIBRE_CHUNK,
    LEAST_CHUNK,
    MOST_TILES,
    STRIP,
    VECTOR,
    Jobs,
    Limits,
    PackedLayout,
    bases,
    cut_jobs,
    equal_block,
    gains,
    kernel_names,
    make_layout,
    most_jobs,
    row_lanes,
    shard_bytes,
    value_code,
)
from amped.backend.ops.mttkrp import Share
from amped.operators.placement import MAX_RANK
from partitioner.tensors.value_range import ValueRange

H100 = Limits(132, 232448, 60 << 20)
TINY = Limits(7, 2048 + 40 * 128, 4000)
LENGTHS = (5000, 200_000, 1000, 30_000, 700, 90_000, 4000)
F4, F8 = np.dtype(np.float32), np.dtype(np.float64)
RAW = ValueRange(0.5, 1.5, 0.0)


def share(
    lengths: tuple[int, ...],
    rank: int = 32,
    dtype: np.dtype[Any] = F4,
    values: ValueRange = RAW,
    rows: int = 1000,
    nnz: int = 10**6,
) -> Share:
    unit = VECTOR // dtype.itemsize
    return Share(lengths, slice(0, rows), nnz, -(-rank // unit) * unit, dtype, values)


# Values


@pytest.mark.parametrize("dtype", [F4, F8])
@pytest.mark.parametrize("grain", [1.0, 0.5, 2.0**-8])
@pytest.mark.parametrize(
    ("low", "high"), [(1, 1), (-1, -1), (1, 2), (3, 4), (-3, 4), (-300, -5), (7, 1000), (-128, 127)]
)
def test_coded_values_are_exact(dtype: np.dtype[Any], grain: float, low: int, high: int) -> None:
    code = value_code(share((9,), dtype=dtype, values=ValueRange(low * grain, high * grain, grain)))
    values = (np.arange(low, high + 1) * grain).astype(dtype)
    coded = np.rint(values.astype(np.float64) / code.grain).astype(np.int64) - code.low
    assert (coded >= 0).all()
    assert (coded < 2**code.bits).all()
    assert 0 <= -code.low < 2**code.bits, "what fills a chunk up is a zero"
    assert np.array_equal(dtype.type(code.grain) * (coded + code.low).astype(dtype), values)
    assert code.bits == (max(high, 0) - min(low, 0)).bit_length(), "no bit too many"


@pytest.mark.parametrize("dtype", [F4, F8])
@pytest.mark.parametrize(
    ("values", "bits"),
    [
        (RAW, None),
        (ValueRange(1.0, 2.0**23 - 1, 1.0), 23),
        (ValueRange(1.0, 2.0**23, 1.0), None),
        (ValueRange(-(2.0**22), 2.0**22, 1.0), None),
        (ValueRange(-(2.0**22), 2.0**22 - 1, 1.0), 23),
        (ValueRange(1.0, 2.0**15, 2.0**-8), None),
        (ValueRange(1e30, 2e30, 1.0), None),
        (ValueRange(0.5, 1.5e308, 0.5), None),
    ],
)
def test_values_of_too_many_bits_are_kept(dtype: np.dtype[Any], values: ValueRange, bits: int | None) -> None:
    code = value_code(share((9,), dtype=dtype, values=values))
    assert code == ((bits, values.grain, min(0, values.low)) if bits else (dtype.itemsize * 8, 0.0, 0))


# Layouts


@pytest.mark.parametrize("limits", [H100, TINY])
@pytest.mark.parametrize("dtype", [F4, F8])
@pytest.mark.parametrize("order", range(2, 9))
def test_layouts_of_every_name(order: int, dtype: np.dtype[Any], limits: Limits) -> None:
    names = kernel_names(order)
    assert names[0] == "segmented"
    assert len(set(names)) == len(names)
    for kernel in names:
        for values in (RAW, ValueRange(-3.0, 5.0, 0.5)):
            layout = make_layout(kernel, share(LENGTHS[: order - 1], 33, dtype, values), limits)
            assert math.prod(layout.grid) <= MOST_TILES
            if layout.kernel != kernel:
                assert kernel.startswith("tiled")
                assert layout.kernel in (*(f"tiled-{k}" for k in range(1, int(kernel[6:]))), "segmented")
                kernel = layout.kernel
            bits = layout.code.bits + sum(layout.fields) + layout.fibre + 1
            assert layout.record == math.ceil(bits / 8)
            assert layout.unit == STRIP * AT_ONCE * layout.record
            assert all(b <= 2**f < 2 * b for b, f in zip(layout.blocks, layout.fields, strict=True))
            assert all(n <= b * g < n + b for n, b, g in zip(LENGTHS, layout.blocks, layout.grid, strict=False))
            assert layout.tiled == kernel.startswith(("tiled", "blocked"))
            assert sum(layout.staged) == (int(kernel[6:]) if kernel.startswith("tiled") else 0)
            assert layout.fibre == (kernel == "fibre")
            if not layout.tiled:
                assert math.prod(layout.grid) == 1


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=7), st.integers(1, MAX_RANK), st.sampled_from([F4, F8]),
    st.sampled_from([H100, Limits(108, 166912, 40 << 20)]),
)  # fmt: skip
def test_blocks_fit_into_shared_memory_and_threads_into_a_block(
    lengths: list[int], rank: int, dtype: np.dtype[Any], limits: Limits
) -> None:
    for kernel in kernel_names(len(lengths) + 1):
        layout = make_layout(kernel, share(tuple(lengths), rank, dtype), limits)
        assert layout.shared_bytes <= limits.shared
        assert layout.groups % STRIP == 0
        assert layout.groups * layout.lanes <= 1024
        assert (layout.panels - 1) * layout.lanes < layout.width <= layout.panels * layout.lanes
        if kernel.startswith("blocked"):
            longest = max(range(len(lengths)), key=lengths.__getitem__)
            part = layout.blocks[longest] * layout.lanes * VECTOR
            assert part <= limits.l2 / 2 or layout.grid[longest] == MOST_TILES
            assert all(layout.blocks[m] == n for m, n in enumerate(lengths) if m != longest)


@pytest.mark.parametrize("dtype", [F4, F8])
def test_blocks_fit_at_every_rank(dtype: np.dtype[Any]) -> None:
    for rank in range(1, MAX_RANK + 1):
        for kernel in kernel_names(5):
            layout = make_layout(kernel, share(LENGTHS[:4], rank, dtype), H100)
            assert layout.shared_bytes <= H100.shared
            assert layout.groups * layout.lanes <= 1024


@given(st.integers(1, 10**9), st.integers(-1, 10**9))
def test_equal_blocks(length: int, most: int) -> None:
    block = equal_block(length, most)
    count = -(-length // block)
    assert 1 <= block <= max(1, most)
    assert count == -(-length // max(1, min(most, length))), "no more blocks than needed"
    assert count * block - length < count, "no block is much smaller"


@given(st.integers(1, 512), st.sampled_from([8, 32]))
def test_lanes_share_a_row_in_equal_passes(width: int, most: int) -> None:
    lanes = row_lanes(width, most)
    assert 1 <= lanes <= most
    passes = -(-width // most)
    assert (passes - 1) * lanes < width <= passes * lanes
    assert passes * lanes - width < passes


# Which are tried


def kernels_worthwhile(whole: Share) -> set[str]:
    return {name for name in kernel_names(len(whole.lengths) + 1) if gains(name, whole, H100)}


def test_what_is_tried_on_dense_and_on_sparse_tensors() -> None:
    dense = kernels_worthwhile(share((9184, 28818), rows=12092, nnz=76_900_000))  # the shape of NELL-2
    assert "tiled-2" in dense
    sparse = kernels_worthwhile(share((1_774_269, 1_805_187), rows=4_821_207, nnz=435_000_000))  # Amazon, a quarter
    assert {"blocked-third", "blocked-half"} <= sparse
    assert not {"tiled-1", "tiled-2", "blocked-quarter"} & sparse
    fewer_rows = kernels_worthwhile(share((1_774_269, 1_805_187), rows=1_205_302, nnz=435_000_000))  # one of four GPUs
    assert {"blocked-quarter", "blocked-third"} <= fewer_rows
    assert "blocked-half" not in fewer_rows
    tiny = kernels_worthwhile(share((50, 40), rows=60, nnz=1000))
    assert not {kernel for kernel in tiny if kernel.startswith(("tiled", "blocked"))}
    assert "fibre" not in kernels_worthwhile(share((1000, 40), rows=1000, nnz=10_000))
    assert "fibre" in kernels_worthwhile(share((1000, 40), rows=1000, nnz=2_000_000))


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=7), st.integers(0, 10**6), st.integers(0, 10**10))
def test_the_plain_one_is_always_tried(lengths: list[int], rows: int, nnz: int) -> None:
    assert "segmented" in kernels_worthwhile(share(tuple(lengths), rows=rows, nnz=nnz))


# Jobs


@st.composite
def tilings(draw: st.DrawFn) -> tuple[PackedLayout, np.ndarray, Limits]:
    """A layout, and how many nonzeros each of its tiles has; many have none."""
    limits = draw(st.sampled_from([H100, TINY, Limits(1, 232448, 60 << 20)]))
    lengths = tuple(draw(st.lists(st.sampled_from([1, 5, 49, 3000]), min_size=1, max_size=3)))
    kernel = draw(st.sampled_from(kernel_names(len(lengths) + 1)))
    layout = make_layout(kernel, share(lengths, draw(st.sampled_from([1, 16, 33, 130])), F4), limits)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    most = draw(st.sampled_from([1, 3, 100, 5000, 10**6]))
    tiles = rng.integers(0, most + 1, math.prod(layout.grid))
    tiles[rng.random(tiles.size) < draw(st.sampled_from([0.0, 0.5, 0.99]))] = 0
    tiles[rng.integers(tiles.size)] = most
    return layout, tiles, limits


def check_jobs(jobs: Jobs, layout: PackedLayout, tiles: np.ndarray) -> None:
    """Every nonzero is in one job of its tile, in order; its chunks, and their place, hold what it has."""
    assert (jobs.nonzeros > 0).all()
    assert jobs.begin[0] == 0
    assert np.array_equal(np.cumsum(jobs.nonzeros), [*jobs.begin[1:], tiles.sum()])
    assert (np.diff(jobs.tile) >= 0).all()
    assert np.array_equal(np.bincount(jobs.tile, jobs.nonzeros, tiles.size), tiles)
    assert (jobs.chunk > 0).all()
    assert (jobs.chunk % AT_ONCE == 0).all()
    assert (jobs.chunk.astype(int) * layout.groups >= jobs.nonzeros).all()
    assert jobs.unit[0] == 0
    assert np.array_equal(np.diff(jobs.unit) * STRIP * AT_ONCE, jobs.chunk * layout.groups)
    assert (jobs.first[0], jobs.first[-1]) == (0, jobs.tile.size)
    assert (np.diff(jobs.first) >= 0).all()


@given(tilings())
def test_jobs_are_the_nonzeros_in_order(tiling: tuple[PackedLayout, np.ndarray, Limits]) -> None:
    layout, tiles, limits = tiling
    jobs = cut_jobs(layout, tiles, limits)
    check_jobs(jobs, layout, tiles)
    nnz = int(tiles.sum())
    assert jobs.tile.size <= most_jobs(layout, nnz, limits)
    if any(layout.staged):
        assert jobs.first.size == limits.processors + 1
        each = np.diff(np.concatenate([[0], np.cumsum(jobs.nonzeros)])[jobs.first])
        assert each.max() - each.min() <= 1, "each block of threads has as much to do"
    else:
        assert np.array_equal(jobs.first, np.arange(jobs.tile.size + 1))
        assert set(jobs.chunk) == {layout.chunk_of(nnz, limits)}
        assert LEAST_CHUNK <= jobs.chunk[0] <= (FIBRE_CHUNK if layout.fibre else CHUNK)
    if not layout.tiled:
        assert (jobs.nonzeros[:-1] == jobs.chunk[0] * layout.groups).all(), "only the last chunks are not full"


@given(tilings(), st.integers(1, 4))
def test_shards_take_no_more_than_is_said(tiling: tuple[PackedLayout, np.ndarray, Limits], shards: int) -> None:
    """All but the runs' rows, which depend on the nonzeros; each chunk has at least one run."""
    layout, tiles, limits = tiling
    jobs, nnz = cut_jobs(layout, tiles, limits), int(tiles.sum())
    chunks = int(np.sum(-(-jobs.nonzeros // jobs.chunk))) if layout.tiled else 0
    parts = [jobs.tile.size * (16 + 4 * len(layout.blocks)), 4 * jobs.first.size, 4 * jobs.tile.size * layout.groups]
    parts += [4 * (chunks + 2), (int(jobs.unit[-1]) + 1) * layout.unit, 0]
    actual = sum(-(-part // ALIGNMENT) * ALIGNMENT for part in parts)
    assert actual <= shard_bytes(layout, nnz, nnz, limits)
    assert shards * actual <= shard_bytes(layout, shards * nnz, nnz, limits)


def test_packed_bytes_are_what_records_take_on_large_shards() -> None:
    whole = share((1_774_269, 1_805_187), rows=4_821_207, nnz=435_000_000)
    layout = make_layout("segmented", whole, H100)
    assert shard_bytes(layout, whole.nnz, 1 << 30, H100) <= whole.nnz * (layout.record + 0.1)


def test_what_staged_blocks_compute_is_equal() -> None:
    """With the zeros that fill chunks up, to a hundredth and a step of every group for each of its tiles."""
    layout = make_layout("tiled-2", share((9184, 28818), rows=12092, nnz=76_900_000), H100)
    tiles = np.random.default_rng(0).multinomial(
        76_900_000, np.full(math.prod(layout.grid), 1 / math.prod(layout.grid))
    )
    jobs = cut_jobs(layout, tiles, H100)
    check_jobs(jobs, layout, tiles)
    steps = np.diff(np.concatenate([[0], np.cumsum(jobs.chunk)])[jobs.first])
    assert steps.max() <= steps.mean() * 1.01 + AT_ONCE
    assert steps.sum() * layout.groups <= 76_900_000 * 1.01 + AT_ONCE * layout.groups * jobs.tile.size


@given(tilings(), st.integers(0, 2**32 - 1))
def test_tiles_begin_at_their_blocks(tiling: tuple[PackedLayout, np.ndarray, Limits], seed: int) -> None:
    layout, _, _ = tiling
    rng = np.random.default_rng(seed)
    columns = np.array([rng.integers(0, n, 200) for n in layout.share.lengths])
    blocks = np.array(layout.blocks)[:, None]
    tile = np.ravel_multi_index(tuple(columns // blocks), layout.grid)
    found = bases(layout, tile.astype(np.int32))
    assert found.dtype == np.int32
    assert np.array_equal(found.T, columns // blocks * blocks)
    offsets = columns - found.T
    assert (offsets < 2 ** np.array(layout.fields)[:, None]).all()


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float64)])
def test_units_of_models(dtype: np.dtype[Any]) -> None:
    """Each model is in one unit, whose columns lie in a row; models of units of as many lanes do so, too."""
    width = interleaved.width(dtype)
    groups = {count: np.array([k, k + 7]) * width for k, count in enumerate((16, 1, 4, 2, 8))}
    found, seen = interleaved.arranged(groups, dtype), list[int]()
    for lanes, units in found.units.items():
        numbers = list[int]()
        for first, own, number in units.tolist():
            columns = own * VECTOR // dtype.itemsize
            for model in range(lanes // own):
                assert found.models[number + model].tolist() == [first + model * columns, columns]
                numbers.append(number + model)
        assert numbers == list(range(found.parts[lanes].start, found.parts[lanes].stop))
        seen += numbers
    assert sorted(seen) == list(range(2 * sum(groups))) == list(range(len(found.models)))
    every = [column for first, columns in found.models.tolist() for column in range(first, first + columns)]
    assert sorted(every) == sorted(begin + k for begins in groups.values() for begin in begins for k in range(width))


def test_equal_layouts_are_one_key() -> None:
    """Compiled code is cached by layout, on every version of Python."""
    first, second = (make_layout("segmented", share((9, 8), rank=16), H100) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
