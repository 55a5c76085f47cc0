"""How a CPU holds nonzeros, and which rows of the output its kernels write."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forms import exhaustive
from hypothesis import given
from hypothesis import strategies as st
from oracle import assert_rounding_only, coo_mttkrp, kernel_of, random_factors

from amped.backend.choose import choose
from amped.backend.cpu import caches, layout
from amped.backend.cpu.kernels import sums
from amped.backend.cpu.layout import (
    PIECE,
    blocked,
    count_tiles,
    cut,
    cut_fibres,
    equal_parts,
    most_pieces,
    tile_heights,
    tiled,
)
from amped.backend.cpu.ops import mttkrp as cpu_mttkrp
from amped.backend.cpu.ops.mttkrp import LEAST_TUNED
from amped.backend.ops.mttkrp import MTTKRP, Share
from amped.parallel.mpi import Comm
from partitioner.tensors.value_range import ValueRange


def sorted_columns(seed: int, nonzeros: int, lengths: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(seed)
    columns = np.stack([rng.integers(0, n, nonzeros, dtype=np.int32) for n in lengths])
    return columns[:, np.lexsort(columns[::-1])]


@given(st.integers(1, 1024), st.sampled_from([np.float32, np.float64]))
def test_rows_are_computed_in_vectors_of_powers_of_two(comm: Comm, rank: int, dtype: type) -> None:
    row = np.empty((1, choose("cpu", comm, 1).stride(rank, np.dtype(dtype).itemsize)), dtype)
    for double in (False, True):
        lanes, tail = sums.lanes_of(row, double)
        assert {len(lanes), len(tail or lanes)} <= ({1, 2, 4} if double and dtype is np.float32 else {1, 2, 4, 8})
        assert row.nbytes // 32 % len(lanes) == len(tail or ())


@given(st.integers(0, 99), st.integers(1, 300), st.integers(1, 40))
def test_pieces_and_fibres_are_runs_of_equal_indices(seed: int, nonzeros: int, rows: int) -> None:
    of_rows, leading = sorted_columns(seed, nonzeros, (rows, 3))
    pieces = cut(of_rows)
    starts = pieces.starts.tolist()
    assert (starts[0], starts[-1]) == (0, nonzeros)
    assert len(pieces.rows) <= most_pieces(nonzeros, rows)
    for (a, b), row in zip(pairwise(starts), pieces.rows, strict=True):
        assert 0 < b - a <= PIECE
        assert np.all(of_rows[a:b] == row)
    fibres = cut_fibres(leading, pieces)
    begins = fibres.starts.tolist()
    assert [begins[f] for f in fibres.of_piece] == starts
    for a, b in pairwise(begins):
        assert len(set(leading[a:b].tolist())) == 1
    changes = np.flatnonzero((np.diff(of_rows) != 0) | (np.diff(leading) != 0)) + 1
    assert set(begins) == {0, nonzeros, *changes.tolist(), *starts}


@given(st.integers(0, 99), st.integers(1, 300), st.integers(1, 5))
def test_blocks_are_read_one_after_the_other(seed: int, nonzeros: int, rows: int) -> None:
    columns, values = sorted_columns(seed, nonzeros, (6, 4, 17)), np.arange(1.0, nonzeros + 1)
    made = blocked(columns, values, (4, 17), rows)
    place = made.values.astype(int) - 1
    assert np.array_equal(np.sort(place), np.arange(nonzeros))
    assert all(np.array_equal(made.indices[m], columns[m + 1][place]) for m in (0, 1))
    starts = made.pieces.starts.astype(int)
    assert np.array_equal(np.repeat(made.pieces.rows, np.diff(starts)), columns[0][place])
    blocks = made.indices[1] // rows
    assert np.all(np.diff(blocks) >= 0)
    assert np.all(np.diff(place)[np.diff(blocks) == 0] > 0)
    for first, end, low, high in zip(*made.blocks[:1], made.blocks.first_pieces[1:], *made.blocks[1:3], strict=False):
        inside = made.indices[1][starts[first] : starts[end]]
        assert high == low or np.all((inside >= low) & (inside < high))


@given(st.lists(st.integers(1, 500), min_size=1, max_size=5), st.integers(1, 900))
def test_one_block_of_each_matrix_fits(lengths: list[int], room: int) -> None:
    heights = tile_heights(lengths, 8, 8 * room)
    assert all(1 <= height <= length for height, length in zip(heights, lengths, strict=True))
    assert sum(heights) <= max(room, len(lengths))
    if sum(lengths) <= room:
        assert heights == lengths
        assert count_tiles(lengths, heights) == 1
    fair = room // len(lengths)  # no block is less than half of it, as blocks of a matrix are equal
    assert all(2 * height > min(length, fair) for height, length in zip(heights, lengths, strict=True))


@given(st.integers(0, 99), st.integers(1, 300), st.integers(1, 9), st.integers(1, 30), st.booleans())
def test_parts_are_computed_tile_by_tile(seed: int, nonzeros: int, count: int, room: int, continues: bool) -> None:
    lengths = 4, 17, 5
    columns, values = sorted_columns(seed, nonzeros, (6, *lengths)), np.arange(1.0, nonzeros + 1)
    heights, count = tile_heights(lengths, 1, room), min(count, nonzeros)
    made = tiled(list(columns), values, lengths, heights, count, continues)
    place = made.values.astype(int) - 1
    assert np.array_equal(np.sort(place), np.arange(nonzeros))
    assert all(np.array_equal(made.indices[m], columns[m + 1][place]) for m in range(3))
    starts, bounds = made.pieces.starts.astype(int), made.parts.bounds
    assert np.array_equal(np.repeat(made.pieces.rows, np.diff(starts)), columns[0][place])
    units = count_tiles(lengths, heights)
    assert len(bounds) == units * count + 1
    for p in range(count):
        begin, end = nonzeros * p // count, nonzeros * (p + 1) // count
        own = starts[bounds[units * p : units * (p + 1) + 1]]
        assert (own[0], own[-1]) == (begin, end)
        first = columns[0][begin]
        before = columns[0][begin - 1] if begin else first if continues else -1
        assert made.parts.shared[p] == (first if before == first else -1)
        assert made.parts.firsts[p] == (columns[0][begin - 1] + 1 if begin else first)
        seen = []
        for a, b in pairwise(own):
            tile = {tuple(made.indices[m][q] // heights[m] for m in range(3)) for q in range(a, b)}
            assert len(tile) <= 1
            assert np.all(np.diff(place[a:b]) > 0)
            seen += tile
        assert seen == sorted(set(seen))


@pytest.mark.parametrize(
    ("levels", "size"),
    [
        ([("1", "48K"), ("1", "32K"), ("2", "2048K"), ("3", "300M")], 2 << 20),
        ([("1", "48K"), ("2", "1M")], 1 << 20),
        ([("1", "32K")], caches.USUAL),
        ([("2", "much")], caches.USUAL),
        ([], caches.USUAL),
    ],
)
def test_the_size_of_a_core_s_own_cache(folder: Path, levels: list[tuple[str, str]], size: int) -> None:
    for k, (level, text) in enumerate(levels):
        (folder / f"index{k}").mkdir()
        (folder / f"index{k}/level").write_text(level + "\n")
        (folder / f"index{k}/size").write_text(text + "\n")
    assert caches.own_cache(folder) == size


@pytest.mark.parametrize("cached", [0, 1 << 30], ids=["past the caches", "stored"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("rank", "dtype", "names"),
    [
        (3, np.float32, {"segmented", "prefetched", "fibre", "blocked", "tiled"}),
        (33, np.float64, {"segmented", "prefetched", "blocked", "tiled"}),
        (64, np.float32, {"panelled"}),
        *(exhaustive(*each, None) for each in product((7, 33, 64, 70), (np.float32, np.float64))),
    ],
)
def test_new_rows_get_sums_or_zeros(
    comm: Comm,
    monkeypatch: pytest.MonkeyPatch,
    cached: int,
    threads: int,
    rank: int,
    dtype: type,
    names: set[str] | None,
) -> None:
    """Two shards that share a row; every row but theirs is as it was."""
    monkeypatch.setattr(cpu_mttkrp, "SMALLEST", 5)
    monkeypatch.setattr(sums, "START_SECONDS", 1e-15)
    monkeypatch.setattr(sums, "CACHED", cached)
    monkeypatch.setattr(layout, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(cpu_mttkrp, "own_cache", lambda: 8000)
    lengths, backend = (200, 20, 30), choose("cpu", comm, threads)
    columns = sorted_columns(1, 900, (18, *lengths[1:]))
    columns[0] = columns[0] * 11 + 3
    values, factors = np.random.default_rng(2).random(900) + 0.5, random_factors(3, lengths, rank)
    expected = coo_mttkrp(columns, values, factors, 0)
    stride = backend.stride(rank, np.dtype(dtype).itemsize)
    share = Share(lengths[1:], slice(0, 200), 900, stride, np.dtype(dtype), ValueRange(0.5, 1.5, 0.0))
    inputs = []
    for factor in factors[1:]:
        inputs.append(backend.zeros((len(factor), stride), dtype))
        inputs[-1][:, :rank] = factor
    at = 450  # the shards' bound, within a row
    assert columns[0][at] == columns[0][at - 1]
    known = {kernel.name: kernel for kernel in MTTKRP.providers(backend)}
    for kernel in [known[name] for name in names or known.keys() - {"permuted"}]:
        guarded = backend.empty((202, stride), np.float64)
        guarded[:] = np.nan
        done = int(columns[0][at]) + 1
        for part, new in ((slice(0, at), slice(0, done)), (slice(at, 900), slice(done, 200))):
            shard: Any = kernel.make(
                [c[part].copy() for c in columns], values[part].astype(dtype), share, part.start > 0
            )
            assert shard.panels == (kernel.name == "panelled" and rank == 64)
            kernel.run(shard, inputs, guarded[1:-1], new)
        assert np.all(np.isnan(guarded[[0, -1]]))
        got, named = guarded[1:-1, :rank], np.bincount(columns[0], minlength=200) > 0
        assert np.all(got[~named] == 0), kernel.name
        assert_rounding_only(got[named], expected[named], "fp32" if dtype is np.float32 else "fp64")


@given(st.integers(0, 99), st.integers(1, 300), st.integers(1, 9), st.booleans())
def test_parts_are_equal_and_say_whose_rows_they_share(seed: int, nonzeros: int, count: int, continues: bool) -> None:
    pieces = cut(sorted_columns(seed, nonzeros, (6,))[0])
    bounds, shared, firsts = equal_parts(pieces, count, continues)
    assert (bounds[0], bounds[-1]) == (0, len(pieces.rows))
    ends = pieces.starts[bounds].astype(int)
    assert all(np.abs(ends - nonzeros * t / count).min() <= PIECE for t in range(count + 1))
    before = [pieces.rows[0] if continues else -1, *pieces.rows[bounds[1:-1] - 1]]
    assert shared.tolist() == [b if pieces.rows[a] == b else -1 for a, b in zip(bounds[:-1], before, strict=True)]
    assert firsts.tolist() == [pieces.rows[0], *(pieces.rows[b - 1] + 1 for b in bounds[1:])]


@pytest.mark.parametrize(
    ("length", "kind", "apart"),
    [
        (1 << 16, np.uint16, {"permuted"}),
        ((1 << 16) + 1, np.int32, {"permuted", "fibre"}),
        exhaustive((1 << 16) + 1, np.int32, {"permuted"}),
    ],
)
def test_indices_take_16_bits_where_they_can(comm: Comm, length: int, kind: type, apart: set[str]) -> None:
    backend, rng = choose("cpu", comm, 1), np.random.default_rng(length)
    columns = [np.arange(50, dtype=np.int32), np.full(50, length - 1, np.int32), np.zeros(50, np.int32)]
    values, factors = rng.random(50), [rng.random((n, 8)) for n in (50, length, 1)]
    share = Share((length, 1), slice(0, 50), 50, 8, np.dtype(np.float32), ValueRange(0, 1, 0))
    inputs = [factor.astype(np.float32) for factor in factors[1:]]
    for kernel in [k for k in MTTKRP.providers(backend) if k.name not in apart]:
        shard: Any = kernel.make(columns, values.astype(np.float32), share, False)
        out = backend.zeros((50, 8), np.float64)
        assert [column.dtype for column in shard.indices] == [kind, kind]
        kernel.run(shard, inputs, out)
        assert_rounding_only(out, coo_mttkrp(np.stack(columns), values, factors, 0), "fp32")


def test_what_is_streamed_or_shared_stays_where_it_is(comm: Comm) -> None:
    backend, columns = choose("cpu", comm, 1), [c.copy() for c in sorted_columns(0, 90, (5, 4, 3))]
    share = Share((4, 3), slice(0, 5), 90, 4, np.dtype(np.float64), ValueRange(0, 1, 0))
    for kernel, of in (("segmented", replace(share, streamed=True)), ("permuted", share)):
        shard: Any = kernel_of(backend, kernel).make(columns, np.ones(90), of, False)
        assert all(map(np.shares_memory, [shard.rows, *shard.indices], columns))


def host_share(lengths: tuple[int, ...], rows: int, nonzeros: int, columns: int) -> Share:
    return Share(lengths, slice(0, rows), nonzeros, columns, np.dtype(np.float32), ValueRange(0, 1, 0))


@pytest.mark.parametrize(
    ("lengths", "rows", "nonzeros", "columns", "names"),
    [
        ((9184, 28818), 12092, 5_000_000, 64, {"segmented", "prefetched", "panelled"}),  # NELL-2
        ((9184, 28818), 12092, 5_000_000, 16, {"segmented", "prefetched", "tiled"}),
        ((9184, 28818), 12092, 200_000_000, 64, {"segmented", "prefetched", "panelled", "fibre", "tiled"}),
        ((24, 1140, 1717), 183, 3_300_000, 16, {"segmented", "fibre"}),  # Uber: the matrices are in the caches
        ((4198, 1631, 4209, 868131), 1605, 1_700_000, 32, {"segmented", "prefetched", "blocked"}),  # LBNL
        ((1605, 4198, 1631, 4209), 868131, 1_700_000, 32, {"segmented", "prefetched"}),
        ((9184, 28818), 12092, 100_000, 64, {"segmented"}),  # not worth compiling others
    ],
)
def test_what_is_tried(
    comm: Comm,
    monkeypatch: pytest.MonkeyPatch,
    lengths: tuple[int, ...],
    rows: int,
    nonzeros: int,
    columns: int,
    names: set[str],
) -> None:
    monkeypatch.setattr(cpu_mttkrp, "own_cache", lambda: 1 << 20)
    share = host_share(lengths, rows, nonzeros, columns)
    tried = [k.name for k in MTTKRP.providers(choose("cpu", comm, 2)) if k.suits(share) and k.gains(share)]
    assert set(tried) == names
    assert tried[0] == "segmented"


def test_rows_are_fetched_sooner_out_of_memory_and_fewer_at_once_if_they_are_wide(comm: Comm) -> None:
    backend = choose("cpu", comm, 1)

    def ahead(length: int, columns: int, kernel: str, nnz: int = 4) -> int:
        share = host_share((length, 9), 3, nnz, columns)
        made: Any = kernel_of(backend, kernel).make([*np.zeros((3, 4), np.int32)], np.ones(4, np.float32), share, False)
        return int(made.ahead)

    far = 1 << 20
    assert ahead(far, 16, "segmented", LEAST_TUNED + 1) == 0, "timing decides"
    assert ahead(1000, 16, "segmented") == 0
    assert ahead(far, 16, "segmented") == 24
    assert ahead(1000, 16, "prefetched") == ahead(1000, 512, "prefetched") == 12
    assert [ahead(far, columns, "prefetched") for columns in (16, 64, 512)] == [24, 16, 6]
    assert ahead(far, 512, "panelled") == 24, "of panels, the rows are narrow"
