"""MTTKRPs of dense blocks on a CPU, against their definition in double precision."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
from forms import in_turn
from oracle import ROUNDING, dense_mttkrp, random_factors

from amped.backend.choose import choose
from amped.backend.cpu.kernels import passes
from amped.backend.cpu.ops import dense as cpu_dense
from amped.backend.ops.dense import DENSE, BlockForm, DenseKernel, Sweep
from amped.parallel.mpi import SingleComm

pytestmark = pytest.mark.in_turn

NAMES = ("split", "gemm", "elem", "slice", "tile")
SHAPES = [
    (5, 7), (1, 9), (300, 1), (4, 1, 6), (13, 6, 11), (1, 1, 5), (3, 4, 5, 6), (2, 3, 1, 4, 5), (3, 2, 4, 2, 3, 2),
    (2, 500), (700, 3), (140, 3, 150), (9, 4, 7, 1), (1, 7, 1, 5),
]  # fmt: skip
PLENTY = 1 << 28


@contextmanager
def small_pieces() -> Iterator[None]:
    """Make pieces so small that all loops over them are taken, by several threads."""
    sizes = {"DEPTH": 8, "LEAST_DEPTH": 4, "HEIGHT": 8, "LEAST_ROWS": 4, "SMALL": 1, "PIECE": 8}
    with mock.patch.multiple(passes, **sizes):
        yield


def kernel_of(name: str, threads: int) -> DenseKernel:
    return next(k for k in DENSE.providers(choose("cpu", SingleComm(), threads)) if k.name == name)


def form_of(
    shape: Sequence[int], rank: int, precision: str = "fp64", slab: int = 0, workspace: int = PLENTY
) -> BlockForm:
    dtype = np.dtype({"fp32": np.float32, "fp64": np.float64}[precision])
    return BlockForm(tuple(shape), slab or shape[0], rank, -(-rank // 8) * 8, dtype, workspace)


def made(kernel: DenseKernel, form: BlockForm) -> Sweep:
    """Make a sweep in scratch memory that holds no numbers."""
    nbytes = kernel.bytes(form)
    scratch = np.full(nbytes + 64, 0xFF, np.uint8)
    start = -scratch.ctypes.data % 64
    return kernel.make(form, scratch[start : start + nbytes])


def stored(factors: Sequence[np.ndarray], form: BlockForm) -> list[np.ndarray]:
    """Return factor matrices as they are in memory, their last columns without numbers."""
    found = [np.full((len(f), form.stride), np.nan, form.dtype) for f in factors]
    for to, factor in zip(found, factors, strict=True):
        to[:, : form.rank] = factor
    return found


def computed(sweep: Sweep, form: BlockForm, tensor: np.ndarray, factors: Sequence[np.ndarray], mode: int) -> np.ndarray:
    """Return an MTTKRP, computed slab by slab where elements are read."""
    out: Any = np.full((form.lengths[mode], form.stride), np.nan)
    given = [np.full_like(f, np.nan) if m == mode else f for m, f in enumerate(factors)]
    if sweep.reads(mode):
        sweep.begin(mode, given, out)
        for start in range(0, form.lengths[0], form.slab):
            sweep.add(mode, tensor[start : start + form.slab], start, given, out)
    sweep.end(mode, given, out)
    return out[:, : form.rank]


def case(seed: int, form: BlockForm) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return rng.random(form.lengths).astype(form.dtype), stored(random_factors(seed, form.lengths, form.rank), form)


def close(got: np.ndarray, tensor: np.ndarray, factors: Sequence[np.ndarray], form: BlockForm, mode: int) -> None:
    exact = [f[:, : form.rank].astype(np.float64) for f in factors]
    want = dense_mttkrp(tensor.astype(np.float64), exact, mode)
    most = ROUNDING["fp32" if form.dtype == np.float32 else "fp64"][0]
    assert np.linalg.norm(got - want) <= most * np.linalg.norm(want)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("shape", "precision"), in_turn(SHAPES), ids=str)
def test_all_modes_are_right(name: str, shape: tuple[int, ...], precision: str) -> None:
    for rank, slab, threads in ((1, 0, 1), (7, 1, 3), (16, 2, 2), (33, 0, 2), (64, 0, 3)):
        form = form_of(shape, rank, precision, min(slab, shape[0]))
        tensor, factors = case(rank, form)
        with small_pieces():
            sweep = made(kernel_of(name, threads), form)
            for mode in range(len(shape)):
                close(computed(sweep, form, tensor, factors, mode), tensor, factors, form, mode)
                sweep.changed(mode)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("slab", [0, 1, 3])
@pytest.mark.parametrize("workspace", [PLENTY, 1])
def test_factors_may_change_in_any_order(name: str, slab: int, workspace: int) -> None:
    form = form_of((5, 4, 3, 6), 3, "fp64", slab, workspace)
    tensor, factors = case(1, form)
    rng = np.random.default_rng(2)
    with small_pieces():
        sweep = made(kernel_of(name, 2), form)
        for _ in range(60):
            mode = int(rng.integers(4))
            close(computed(sweep, form, tensor, factors, mode), tensor, factors, form, mode)
            for changed in rng.choice(4, rng.integers(0, 3), replace=False).tolist():
                factors[changed][:, : form.rank] = rng.random((form.lengths[changed], form.rank))
                sweep.changed(changed)


def test_a_sweep_reads_the_elements_twice() -> None:
    form = form_of((40, 40, 40, 40), 8)
    sweep = made(kernel_of("split", 1), form)
    tensor, factors = case(1, form)
    reads = []
    for mode in (0, 1, 2, 3) * 2:
        reads.append(sweep.reads(mode))
        close(computed(sweep, form, tensor, factors, mode), tensor, factors, form, mode)
        sweep.changed(mode)
    assert reads == [True, False, True, False] * 2


def test_modes_that_do_not_change_share_what_was_read() -> None:
    form = form_of((20, 20, 20), 8)
    sweep = made(kernel_of("split", 1), form)
    tensor, factors = case(1, form)
    for mode in range(3):
        computed(sweep, form, tensor, factors, mode)
    assert sum(sweep.reads(mode) for mode in range(3)) == 1  # of the other group


@pytest.mark.parametrize("name", NAMES)
def test_long_sums_in_single_precision_are_exact(name: str) -> None:
    """Sums of 200,000 positive numbers and more: a plain sum in single precision is several times as far off."""
    for shape in ((3, 400, 600), (200000, 3), (2, 2, 60000)):
        form = form_of(shape, 5, "fp32")
        tensor, factors = case(3, form)
        sweep = made(kernel_of(name, 2), form)
        for mode in range(len(shape)):
            close(computed(sweep, form, tensor, factors, mode), tensor, factors, form, mode)


@pytest.mark.parametrize(("name", "most"), [("split", 8 << 20), ("gemm", 8 << 20)])
def test_scratch_memory_is_bounded(name: str, most: int) -> None:
    """The factor matrices in double precision are not counted: nobody can do without."""
    for shape in ((100, 120, 90), (20, 30, 25, 40), (9, 9, 9, 9, 9)):
        for rank in (8, 64, 500):
            form = form_of(shape, rank, workspace=most)
            least = 8 * rank * (sum(shape) + 2 * passes.LEAST_ROWS * 2) + most // 8
            assert kernel_of(name, 2).bytes(form) <= most + least


@pytest.mark.parametrize("name", ["elem", "slice", "tile"])
def test_kernels_without_products_take_memory_as_factor_matrices_do(name: str) -> None:
    form = form_of((100, 120, 90), 64)
    assert kernel_of(name, 2).bytes(form) <= 8 * 64 * sum(form.lengths) + 4096


def test_the_width_of_tiles_is_the_papers() -> None:
    with mock.patch.object(cpu_dense, "own_cache", return_value=2 << 20):
        assert cpu_dense.tile_width(form_of((401, 201, 12, 501), 32)) == 12
        assert cpu_dense.tile_width(form_of((401, 201, 120, 501), 32)) == 50


def test_elements_of_any_order_have_each_cut() -> None:
    """Every cut gives the same result."""
    shape = (4, 3, 5, 2, 3)
    form = form_of(shape, 4)
    tensor, factors = case(4, form)
    for at in range(1, 5):
        cuttings = [passes.Cutting(at, kept) for kept in (True, False, True, True, False)]
        sizes = passes.Sizes.of(form, cuttings, 2)
        with small_pieces():
            nbytes = passes.Sizes.of(form, cuttings, 2).bytes(form, 2)
            sweep = passes.GemmSweep(form, cuttings, 2, np.full(nbytes, 0xFF, np.uint8))
            for mode in (4, 2, 0, 1, 3):
                close(computed(sweep, form, tensor, factors, mode), tensor, factors, form, mode)
        assert sizes.partial <= math.prod(shape)
