"""How products of dense blocks are divided, and which kernel computes them. No GPU needed."""

from __future__ import annotations

import numpy as np
import pytest

from amped.backend.cuda import dense_code
from amped.backend.dense import Form, Rows


def form(lengths: tuple[int, ...], columns: int, precision: type) -> Form:
    return Form(lengths, lengths[0], columns, columns, np.dtype(precision), 350_000_000)


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
    assert dense_code.spaced(block, split) == (None if pitch is None else Rows(split, pitch))
    if pitch is not None:
        assert dense_code.spaced(block._replace(gaps=False), split) is None
        assert block.elements < Rows(split, pitch).numbers(block) <= block.elements * 33 / 32


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
    assert dense_code.takes_wgmma(form((60, 50, 40), columns, precision), aligned, capability) is takes


def test_lanes_take_whole_rows() -> None:
    assert [dense_code.lanes_of(form((9, 9), columns, np.float32)) for columns in (4, 8, 12, 32, 500)] == [
        4,
        8,
        16,
        32,
        32,
    ]
