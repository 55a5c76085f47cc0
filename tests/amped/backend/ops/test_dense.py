"""MTTKRPs of dense blocks on each device, against their definition in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from denseblocks import EVERY, Case
from forms import in_turn

from amped.backend.cuda.code.dense import whole_waves
from amped.backend.device import Device
from amped.backend.ops.dense import DENSE, BlockForm

SHAPES = [
    (7, 9),
    (40, 1, 30),
    (13, 8, 21),
    (1, 5, 6),
    (300, 40, 5),
    (150, 7, 37),
    (5, 6, 7, 8),
    (33, 4, 5, 3, 6),
    (3, 4, 5, 2, 3, 4),
]
SPACED = [
    (2, 59),
    (7, 133),
    (56, 1, 131),
    (55, 57, 7),
    (2, 7, 55),
    (5, 7, 11, 13),
    (3, 7, 5, 3, 57),
    (2, 3, 1, 5, 7, 59),
    (56, 57, 2, 7, 1, 5),
]
PLENTY = 1 << 28
KINDS = {
    "fp32": (np.float32, None),
    "fp64": (np.float64, None),
    "fp64 of fp32": (np.float64, np.dtype(np.float32)),
}
every_kind = pytest.mark.parametrize(("precision", "held"), KINDS.values(), ids=KINDS)
RANKS = (
    (1, 0, PLENTY),
    (7, 1, PLENTY),
    (16, 3, 1),
    (32, 0, PLENTY),
    (33, 0, 1 << 14),
    (64, 2, PLENTY),
    (100, 0, PLENTY),
)  # with the indices of a slab, and bytes of scratch memory


@EVERY
@pytest.mark.parametrize(("shape", "kind"), in_turn(SHAPES, [*KINDS.values()]), ids=str)
def test_every_kernel_whatever_changes(backend: Device, shape: tuple[int, ...], kind: tuple[Any, Any]) -> None:
    """In turn as CP-ALS goes, then in any order; whole, in slabs, and with next to no scratch memory."""
    precision, held = kind
    rng, dtype, seen = np.random.default_rng(len(shape)), np.dtype(precision), set[str]()
    for rank, slab, workspace in RANKS:
        stride = backend.stride(rank, dtype.itemsize)
        form = BlockForm(shape, min(slab or shape[0], shape[0]), rank, stride, dtype, workspace, stored=held)
        for kernel in DENSE.providers(backend):
            assert kernel.suits(form)
            if held and not kernel.mixes(form):
                continue
            seen.add(kernel.name)
            case, scratch = Case(backend, form), backend.empty((kernel.bytes(form),), np.uint8)
            scratch.fill(255)
            sweep = kernel.make(form, scratch)
            for mode in [*range(len(shape)), *rng.integers(0, len(shape), 4).tolist()]:
                case.check(mode, sweep)
                case.change(mode, sweep)
    kernels = {kernel.name for kernel in DENSE.providers(backend)}
    assert seen == ({"split", "split-fused"} if held and not backend.on_host else kernels)


@EVERY
@every_kind
def test_what_is_kept_serves_a_later_sweep(backend: Device, precision: Any, held: Any) -> None:
    dtype = np.dtype(precision)
    form = BlockForm((24, 20, 18, 16), 24, 16, backend.stride(16, dtype.itemsize), dtype, PLENTY, stored=held)
    kernel = DENSE.providers(backend)[0]
    case, scratch = Case(backend, form), backend.empty((kernel.bytes(form),), np.uint8)
    sweep = kernel.make(form, scratch)
    assert sweep.kept() is None
    case.check(0, sweep)
    kept, served = sweep.kept(), [not sweep.reads(mode) for mode in range(4)]
    assert kept is not None
    assert served[0]
    for mode in range(4):
        sweep.changed(mode)
    assert sweep.kept() is None
    assert all(sweep.reads(mode) for mode in range(4))
    sweep.resume(kept)
    assert [not sweep.reads(mode) for mode in range(4)] == served
    case.check(0, sweep)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [("cuda", None)], indirect=True, ids=["cuda"])
@pytest.mark.parametrize("shape", SPACED, ids=str)
@every_kind
def test_rows_with_gaps(backend: Device, shape: tuple[int, ...], precision: Any, held: Any) -> None:
    """Every kernel that needs gaps, with partial results that fit, and in pieces."""
    dtype, seen = np.dtype(precision), set[str]()
    for rank, workspace in (1, PLENTY), (7, 1), (16, PLENTY), (33, 1 << 16), (64, PLENTY), (100, 1 << 18):
        plain = held or dtype
        as_held = BlockForm(shape, shape[0], rank, backend.stride(rank, plain.itemsize), plain, workspace, gaps=True)
        form = as_held._replace(dtype=dtype, stored=held)
        for kernel in DENSE.providers(backend):
            rows = kernel.rows(as_held)
            if rows is None or (held and not kernel.mixes(form)):
                continue
            seen.add(kernel.name)
            case, scratch = Case(backend, form, rows), backend.empty((kernel.bytes(form),), np.uint8)
            assert case.on_device.strides[rows.split - 1] == rows.pitch * plain.itemsize
            scratch.fill(255)
            sweep = kernel.make(form, scratch)
            for mode in [*range(len(shape)), *range(len(shape))]:
                case.check(mode, sweep)
                case.change(mode, sweep)
    assert seen == {"split", "split-fused"} | (set() if held else {"split-stored"})


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [("cuda", None)], indirect=True, ids=["cuda"])
@pytest.mark.parametrize("gaps", [False, True])
def test_rows_that_are_multiplied_apart(backend: Device, gaps: bool) -> None:
    """Of a product with the transposed block: it has more rows than occupy all processors."""
    form = BlockForm((66, 66, 65), 66, 500, 500, np.dtype("f8"), PLENTY, gaps=gaps)
    kernel = next(kernel for kernel in DENSE.providers(backend) if kernel.name == "split-stored")
    assert whole_waves(66 * 65, 500, backend.limits.processors) < 66 * 65  # type: ignore[attr-defined]
    case, scratch = Case(backend, form, kernel.rows(form)), backend.empty((kernel.bytes(form),), np.uint8)
    scratch.fill(255)
    sweep = kernel.make(form, scratch)
    for mode in range(3):
        case.check(mode, sweep)


@EVERY
@pytest.mark.parametrize("shape", [(140_001, 5, 4), (4, 140_001, 5), (5, 4, 140_001), (8_400_001, 3)], ids=str)
@pytest.mark.parametrize("precision", [np.float32, np.float64], ids=["fp32", "fp64"])
def test_long_modes(backend: Device, shape: tuple[int, ...], precision: Any) -> None:
    """More rows than the short sides of a GPU's grid have places for blocks of them."""
    if backend.on_host and max(shape) > 1_000_000:
        pytest.skip("only GPU kernels have a grid")
    shape = tuple(min(length, 9001) for length in shape) if backend.on_host else shape
    dtype = np.dtype(precision)
    form = BlockForm(shape, shape[0], 5, backend.stride(5, dtype.itemsize), dtype, PLENTY, whole=True)
    case = Case(backend, form)
    for kernel in DENSE.providers(backend)[: 1 if backend.on_host else 3]:
        sweep = kernel.make(form, backend.empty((kernel.bytes(form),), np.uint8))
        for mode in range(len(shape)):
            case.check(mode, sweep)


@EVERY
def test_results_repeat(backend: Device) -> None:
    form = BlockForm((60, 50, 40), 60, 20, backend.stride(20, 4), np.dtype(np.float32), PLENTY)
    for kernel in (kernel for kernel in DENSE.providers(backend) if kernel.repeatable):
        case, found = Case(backend, form), []
        for _ in range(3):
            sweep = kernel.make(form, backend.empty((kernel.bytes(form),), np.uint8))
            out = backend.zeros((50, form.stride), np.float64)
            sweep.begin(1, case.stored, out)
            sweep.add(1, case.on_device, 0, case.stored, out)
            sweep.end(1, case.stored, out)
            found.append(np.array(backend.to_host(out)).tobytes())
        assert len(set(found)) == 1
