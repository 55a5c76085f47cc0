"""Products that serve pairs of modes of order-3 blocks, on each device, against their definition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from denseblocks import EVERY, Case, use_dimension_trees

from amped.backend.cpu.kernels import dimension_tree as cpu_pairs
from amped.backend.cpu.kernels import passes
from amped.backend.cuda.code.dimension_tree import last_bytes, parts_bytes, widened
from amped.backend.device import Device
from amped.backend.ops import dimension_tree
from amped.backend.ops.dense import DENSE, BlockForm, RowLayout
from amped.backend.ops.dimension_tree import DimensionTreeSweep

pytestmark = pytest.mark.in_turn

SHAPES = [(13, 8, 21), (1, 5, 6), (40, 1, 30), (6, 70, 1), (70, 66, 5), (9, 40, 90)]
ORDERS = [(0, 1, 2), (2, 1, 0)]
PLENTY = 1 << 28


class Blocks(Case):
    """A block whose rows are solved as they are done."""

    def pass_over(self, mode: int, sweep: DimensionTreeSweep) -> None:
        """Compute an MTTKRP in blocks of rows, with new rows of the factor matrix after each."""
        form, rng = self.form, self._rng
        out = self._moved(np.full((form.lengths[mode], form.stride), np.nan))
        now = rng.random(self.factors[mode].shape).astype(form.dtype)
        for rows in sweep.blocks(mode):
            sweep.compute(mode, rows, self.on_device, self.stored, out)
            self.stored[mode][rows, : form.rank] = self._moved(now[rows])
            sweep.pass_on(mode, rows, self.stored, out)
        self.factors[mode] = now
        self.compare(mode, out)


class PlainProducts:
    """`Products` of NumPy, of blocks whose last length has the gaps in it."""

    def __init__(self, form: BlockForm) -> None:
        self._last = form.lengths[-1]

    def whole(self, block: Any) -> Any:
        return np.lib.stride_tricks.as_strided(block, (*block.shape[:2], self._last), block.strides)

    def multiply(self, matrix: Any, factor: Any, out: Any, adds: bool, transposed: bool) -> None:
        given = (matrix.T if transposed else matrix)[:, : len(factor)]
        out[...] = (out if adds else 0) + given @ factor

    def multiply_each(self, matrices: Any, factor: Any, out: Any, transposed: bool) -> None:
        for matrix, one in zip(matrices, out, strict=True):
            self.multiply(matrix, factor, one, False, transposed)

    def contract(self, partial: Any, lengths: tuple[int, int], at: int, factor: Any, out: Any, adds: bool) -> None:
        rows, count = min(lengths[at], len(out)), min(lengths[1 - at], len(factor))
        table = partial.reshape(*lengths, -1).transpose(at, 1 - at, 2)[:rows, :count]
        out[:rows] = (out[:rows] if adds else 0) + np.einsum("ikr,kr->ir", table, factor[:count])


def go_round(case: Blocks, sweep: DimensionTreeSweep, order: tuple[int, ...]) -> None:
    """Compute MTTKRPs in turn, and in any order."""
    reads, rng = 0, np.random.default_rng(1)
    for turn in range(12):
        mode, following = order[turn % 3], order[(turn + 1) % 3]
        sweep.expect(mode, following)
        reads += sweep.reads(mode)
        if sweep.in_blocks and sweep.reads(mode):
            case.pass_over(mode, sweep)
        else:
            case.check(mode, sweep)
            case.change(mode, sweep)
    assert reads == 6
    for mode in rng.integers(0, 3, 8).tolist():
        following = int(rng.integers(0, 3))
        sweep.expect(mode, following)
        if sweep.in_blocks and sweep.reads(mode):
            case.pass_over(mode, sweep)
            if following == mode:
                assert not sweep.reads(mode)
        else:
            case.check(mode, sweep)
        if rng.integers(0, 2):
            case.change(mode, sweep)


@EVERY
@pytest.mark.parametrize("shape", [(6, 7, 33), (33, 5, 35), (1, 3, 57), (40, 56, 55)], ids=str)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_pairs_of_modes_with_gaps(
    backend: Device, shape: tuple[int, ...], order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last mode's length is odd, and made even by zeros; partial results are whole, and in blocks."""
    use_dimension_trees(monkeypatch)
    monkeypatch.setattr(dimension_tree, "TILES", (8, 2))
    for rank, blocks in ((5, 0), (33, 0), (16, 1), (7, 3), (9, 5)):
        stride = backend.stride(rank, 8)
        form = BlockForm(
            shape, shape[0], rank, stride, np.dtype("f8"), PLENTY, whole=True, dimension_tree=True, gaps=True
        )
        wide = widened(form)
        assert wide.lengths == (*shape[:2], shape[2] + 1)
        room = (blocks + 1) * max(wide.lengths) * stride * 8
        form = form._replace(workspace=room + parts_bytes(8) + last_bytes(wide) if blocks else PLENTY)
        case = Blocks(backend, form, RowLayout(2, shape[2] + 1))
        if backend.on_host:
            found = dimension_tree.tree_of(wide, room if blocks else PLENTY, stride, 8)
            assert found is not None
            scratch = np.full(dimension_tree.tree_bytes(wide, found), 255, np.uint8)
            sweep = DimensionTreeSweep(wide, found, scratch, PlainProducts(wide), shape)
        else:
            kernel = DENSE.providers(backend)[0]
            assert kernel.rows(form) == RowLayout(2, shape[2] + 1)
            memory = backend.empty((kernel.bytes(form),), np.uint8)
            memory.fill(255)
            sweep = kernel.make(form, memory)  # type: ignore[assignment]
        assert isinstance(sweep, DimensionTreeSweep)
        go_round(case, sweep, order)


@EVERY
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("precision", [np.float32, np.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_pairs_of_modes(
    backend: Device, shape: tuple[int, ...], precision: Any, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CP-ALS goes, several sweeps: 3 passes serve 2; then in any order, and with the same mode again."""
    dtype = np.dtype(precision)
    if not backend.on_host and dtype == np.float32:
        pytest.skip("on a GPU, dimension trees are in double precision only")
    use_dimension_trees(monkeypatch)
    monkeypatch.setattr(dimension_tree, "TILES", (4, 2))
    monkeypatch.setattr(passes, "SMALL", 1)
    for name, value in {"DEPTH": 4, "HEIGHT": 8}.items():
        monkeypatch.setattr(cpu_pairs, name, value)
    parts = 0 if backend.on_host else parts_bytes(8)
    for rank, blocks, slab in ((5, 0, shape[0]), (33, 0, -(-shape[0] // 4)), (16, 1, shape[0]), (7, 3, shape[0])):
        stride = backend.stride(rank, dtype.itemsize)
        columns = rank if backend.on_host else stride
        # Rows of the next MTTKRP, and of `blocks` blocks of a partial result.
        room = (blocks + 1) * max(shape) * columns * 8
        workspace = (room * 4 // 3 + 4 if backend.on_host else room + parts) if blocks else PLENTY
        form = BlockForm(shape, slab, rank, stride, dtype, workspace, whole=True, dimension_tree=True)
        kernel = DENSE.providers(backend)[0]
        case, scratch = Blocks(backend, form), backend.empty((kernel.bytes(form),), np.uint8)
        scratch.fill(255)
        sweep = kernel.make(form, scratch)
        assert isinstance(sweep, DimensionTreeSweep)
        assert sweep.in_blocks == (math.prod(shape) // min(shape) * columns * 8 > room) or not blocks
        go_round(case, sweep, order)


@EVERY
@pytest.mark.parametrize("shape", [(140_001, 3, 4), (4, 140_001, 3), (3, 4, 140_001)], ids=str)
def test_pairs_of_a_long_mode(backend: Device, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than the short sides of a GPU's grid have places for blocks of them."""
    shape = tuple(min(length, 9001) for length in shape) if backend.on_host else shape
    use_dimension_trees(monkeypatch)
    form = BlockForm(shape, shape[0], 3, backend.stride(3, 8), np.dtype("f8"), PLENTY, whole=True, dimension_tree=True)
    kernel = DENSE.providers(backend)[0]
    sweep = kernel.make(form, backend.empty((kernel.bytes(form),), np.uint8))
    assert isinstance(sweep, DimensionTreeSweep)
    go_round(Blocks(backend, form), sweep, (0, 1, 2))
