"""How products of dense blocks are divided, and which kernel computes them. No GPU needed."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from amped.backend.cuda.code import dense as dense_code
from amped.backend.ops.dense import BlockForm, RowLayout


def form(lengths: tuple[int, ...], columns: int, precision: type) -> BlockForm:
    return BlockForm(lengths, lengths[0], columns, columns, np.dtype(precision), 350_000_000)


def test_rows_that_are_not_aligned_are_short_where_cublas_multiplies() -> None:
    odd, even = (55,) * 5, (54,) * 5
    assert [dense_code.divide(form(lengths, 32, np.float64)).split for lengths in (odd, even)] == [3, 2]
    assert dense_code.divide(form(odd, 32, np.float32), 132).split == 2
    assert dense_code.divide(form(odd, 32, np.float64)._replace(gaps=True)).split == 2


@pytest.mark.parametrize(
    ("rows", "columns", "apart"),
    [
        (6012, 500, 4224),  # 33 x 4 tiles
        (21952, 500, 21120),
        (21952, 128, 16896),
        (6012, 128, 6012),  # less than a wave
        (72900, 500, 72900),  # many
        (6012, 32, 6012),  # few columns
        (6012, 2000, 6012),
    ],
)
def test_rows_that_occupy_all_processors_are_multiplied_apart(rows: int, columns: int, apart: int) -> None:
    assert dense_code.whole_waves(rows, columns, 132) == apart


@pytest.mark.parametrize("columns", [8, 32, 500, 2000])
@pytest.mark.parametrize(
    ("rows", "depth"), [(1, 1), (127, 9), (129, 40_000), (80_601, 6012), (6012, 80_601), (640_000, 800), (9_000_011, 8)]
)
def test_blocks_of_threads_compute_each_number_once(rows: int, depth: int, columns: int) -> None:
    block = form((rows, depth), columns, np.float32)
    for most in (0, 10_000, 1 << 40):
        tiling = dense_code.tiling_of(rows, depth, block, 132, most)
        assert tiling.whole * dense_code.TALL + tiling.rest >= rows
        assert tiling.rest == max(0, rows - tiling.whole * dense_code.TALL)
        assert (tiling.parts - 1) * tiling.share < depth <= tiling.parts * tiling.share
        assert tiling.parts == 1 or tiling.parts * tiling.rest <= most
        assert (tiling.parts > 1) == (tiling.rest > 0)
        assert tiling.blocks == tiling.whole + -(-tiling.rest // dense_code.TALL) * tiling.parts
        assert tiling.share == depth or tiling.share * block.dtype.itemsize % dense_code.DEPTH_BYTES == 0


def test_few_blocks_of_threads_have_nothing_to_do() -> None:
    """Where blocks of rows do not occupy 264 places a whole number of times, the last ones are cut."""
    block = form((401, 201, 12, 501), 32, np.float32)
    assert dense_code.tiling_of(80_601, 6012, block, 132, 1 << 40)[:2] == (528, 5)
    assert dense_code.tiling_of(6012, 80_601, block, 132, 1 << 40)[:2] == (0, 11)
    assert dense_code.tiling_of(33_792, 600, block, 132, 1 << 40)[:2] == (264, 1)
    many = form((800, 800, 800), 2000, np.float32)  # 16 tiles side by side
    assert dense_code.tiling_of(800, 640_000, many, 132, 1 << 40)[:2] == (0, 7)  # 784 parts, in six rounds


@pytest.mark.parametrize(
    ("lengths", "split", "precision", "pitch"),
    [
        ((55,) * 5, 3, np.float64, 3040),  # 128 bytes
        ((55,) * 5, 2, np.float32, 166400),
        ((401, 201, 12, 501), 2, np.float32, 6016),
        ((9, 55), 1, np.float64, 56),  # 128 bytes would take a sixth more
        ((9, 37), 1, np.float64, 38),
        ((9, 28, 28, 28), 1, np.float64, None),  # aligned
        ((9, 9), 1, np.float64, None),  # too short
    ],
)
def test_gaps_align_rows_and_cost_little(
    lengths: tuple[int, ...], split: int, precision: type, pitch: int | None
) -> None:
    block = form(lengths, 32, precision)._replace(gaps=True)
    assert dense_code.spaced(block, split) == (None if pitch is None else RowLayout(split, pitch))
    if pitch is not None:
        assert dense_code.spaced(block._replace(gaps=False), split) is None
        assert block.elements < RowLayout(split, pitch).numbers(block) <= block.elements * 33 / 32


@pytest.mark.parametrize(
    ("columns", "precision", "aligned", "capability", "takes"),
    [
        (8, np.float32, True, 90, False),
        (32, np.float32, True, 90, True),
        (32, np.float32, False, 90, False),
        (128, np.float32, False, 90, True),
        (128, np.float32, True, 100, False),
        (128, np.float64, True, 90, False),
    ],
)
def test_wgmma_where_it_is_and_is_faster(
    columns: int, precision: type, aligned: bool, capability: int, takes: bool
) -> None:
    assert dense_code.uses_wgmma(form((60, 50, 40), columns, precision), aligned, capability) is takes


@pytest.mark.parametrize("lengths", [(8_400_001, 3), (3, 8_400_001), (2, 4_200_001, 2), (1 << 26, 2), (300, 200, 100)])
@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_few_launches_whatever_the_shape_and_the_workspace(lengths: tuple[int, ...], precision: type) -> None:
    """Matrices that do not fit the workspace are cut into pieces, each with its own launches."""
    for columns, workspace, processors in product((8, 32), (1, 1 << 20, 1 << 28), (0, 132)):
        block = form(lengths, columns, precision)._replace(workspace=workspace)
        for split in range(1, len(lengths)):
            division = dense_code.division_at(block, split, processors)
            for group in (0, 1):
                rows = dense_code.rows_of(block, split, group)
                size = rows * columns * block.dtype.itemsize
                most = 2 + 4 * size // workspace if workspace == 1 << 28 else dense_code.MOST_LAUNCHES
                assert -(-rows // division.partial[group]) <= most
                if not processors:
                    assert -(-rows // division.product[1 - group]) <= most


@pytest.mark.parametrize("lengths", [(8_400_001, 3), (2, 4_200_001, 2), (2047, 9, 9), (3, 1 << 20), (5, 7, 1 << 20)])
def test_parts_that_chunks_add_up_to_fit(lengths: tuple[int, ...]) -> None:
    for columns in (8, 100):
        block = form(lengths, columns, np.float64)
        for length in lengths:
            _, chunks = dense_code.chunk_of(block, length, block.elements // length)
            assert chunks == 1 or 8 * chunks * length * columns <= dense_code.parts_bytes(block)


def test_lanes_take_whole_rows() -> None:
    assert [dense_code.lanes_of(form((9, 9), columns, np.float32)) for columns in (4, 8, 12, 32, 500)] == [
        4,
        8,
        16,
        32,
        32,
    ]


def test_a_khatri_rao_product_is_cut_where_a_partial_result_is_whole_then() -> None:
    """A cut costs little: the product is added to. A partial result that is not whole is computed for each mode."""
    block = form((401, 201, 12, 501), 500, np.float64)
    division = dense_code.divide(block)
    assert division.product == (3008, 40_304)
    assert all(division.whole(group, block) for group in (0, 1))
    assert dense_code.scratch_bytes(block, division) <= block.workspace
    assert dense_code.stored_rows(6012, 10_000, 1) == 6016  # whole vectors, in one piece
    assert dense_code.stored_rows(6012, 6012, 1) == 6012
    assert dense_code.stored_rows(6012, 1000, 2000) == 2000  # in many pieces: then a partial result is not whole
    assert dense_code.stored_rows(6012, -5, 20) == dense_code.LEAST_PRODUCT
