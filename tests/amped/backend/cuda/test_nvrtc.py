"""Every CUDA kernel compiles for every kind of layout and architecture, without spills. No GPU needed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest
from forms import exhaustive, in_turn, some_of
from losses import GAUSSIAN, HUBER, LOGIT, POISSON

from amped.backend.cuda.code import dense as dense_code
from amped.backend.cuda.code import dimension_tree, interleaved, least_squares, loss_tiles, phi, sampled, ttm, ttmc
from amped.backend.cuda.code import rows as row_code
from amped.backend.cuda.layout import VECTOR, Limits, PackedLayout, kernel_names, make_layout
from amped.backend.cuda.source import REALS, compile_options, coordinate_macros, text
from amped.backend.formulas import Formula
from amped.backend.losses import Loss
from amped.backend.ops.dense import BlockForm
from amped.backend.ops.lbfgs import PAIRS
from amped.backend.ops.loss_tiles import LossForm
from amped.backend.ops.mttkrp import Share
from amped.backend.ops.rowproblems import RowMethod
from amped.backend.ops.ttm import ProductForm as TtmForm
from amped.methods.observed_constrained import SQUARES
from partitioner.cuda import sort_keys
from partitioner.tensors.value_range import ValueRange

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed (extra: test)")

LIMITS = {
    "sm_80": Limits(108, 166912, 40 << 20),
    "sm_90": Limits(132, 232448, 60 << 20),
    "sm_100": Limits(148, 232448, 126 << 20),
}
ARCHITECTURES = ["sm_90", exhaustive("sm_80"), exhaustive("sm_100")]
# All combinations of a test's values, or each value with one of the others in turn.
EVERY = pytest.mark.parametrize("every", [False, exhaustive(True)], ids=["in turn", "every"])
LENGTHS = (5000, 200_000, 1000, 30_000, 700, 90_000, 4000)
RANKS = (1, 7, 16, 32, 33, 64, 130)
VALUES = {"raw": ValueRange(0.5, 1.5, 0.0), "coded": ValueRange(-3.0, 5.0, 0.5)}
DTYPES = {"fp32": np.dtype(np.float32), "fp64": np.dtype(np.float64)}
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
STEPS = {"begin_rows", "end_rows", "clear_rows", "step", "advance"}
LBFGS = {"dot", "gradient_norms", "changes", "move", "path_products", "free_products", "towards"}
WIDE = {"prepare", "sweep", "unpack", "settle", "constrain", "finish", "add_squares", "fit", "add_dots", "keep"}
EQUATIONS = {"prepare", "constrain", "widen", "finish", "fit", "add_dots", "keep"}
MEANT = {"177-D", "68-D"}  # a constant that a layout does not use; an unsigned sum with a negative VALUE_LOW
ROW_ADMM, MOST_IN_ROW_ADMM = {"prepare", "solve_rows", "add_parts"}, 64  # bytes: with two blocks per multiprocessor
FEW = 8  # bytes; a layout has as many threads as registers allow, and each more costs speed
MOST_IN_DOUBLE = 128
MOST_IN_SOLVE = 384  # once for eight rows
MOST_IN_A_BLOCK = 48  # columns of a matrix that a block of threads has
MOST_IN_PHI = 64  # of as many threads as the layout was packed for
MOST_IN_MAPPED = 96  # the same, with sums in double precision
MOST_IN_ROWS = 64  # once for each row or part of it, not for each nonzero
MOST_IN_SOLVED = 160  # once for each row
MOST_IN_SAMPLED = 64  # of many modes and columns, or by a function for powers
MOST_IN_TTMC = 128  # once for each fibre
MOST_IN_ONE_PRODUCT = 48  # of fp64 by 64 columns and three factor matrices, which only `split-fused` takes
MOST_IN_WGMMA = 80  # all registers of a multiprocessor are in use
SHARED_BESIDE = 1024  # bytes: its alignment, after the compiler's own shared memory
MOST_IN_DENSE = 256  # of arrays with a number for each mode, by which an index is looked up
TIGHT = {(4, "fp32", "tiled-2"): 48, (4, "fp32", "tiled-3"): 48, (5, "fp32", "fibre"): 16, (8, "fp64", "tiled-1"): 24}


def combined(values: Sequence[Any], others: Sequence[Any], every: bool) -> Iterator[tuple[Any, Any]]:
    """Yield all pairs, or each value with one of the others in turn."""
    yield from product(values, others) if every else zip(values, cycle(others), strict=False)


def compiled(file: str, macros: Mapping[str, Any], architecture: str) -> str:
    """Return what the compiler says of a file of kernels."""
    return compiled_text(text(file), f"{file} {dict(macros)}", compile_options(macros), architecture)


@cache
def compiled_text(source: str, name: str, options: tuple[str, ...], architecture: str) -> str:
    """Return the compiler's log of kernels; cached, because a quarter of all layouts have equal code."""

    def checked(result: tuple[object, ...]) -> object:
        assert result[0] == nvrtc.nvrtcResult.NVRTC_SUCCESS, result[0]
        return result[1] if len(result) > 1 else None

    options = *options, f"-arch={architecture}", "--ptxas-options=-v"
    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    # Written in place: a single byte would be the one that all of Python shares.
    log = bytes(2 + checked(nvrtc.nvrtcGetProgramLogSize(program)))  # type: ignore[operator]
    checked(nvrtc.nvrtcGetProgramLog(program, log))
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, f"{name}: {log.decode()}"
    assert checked(nvrtc.nvrtcGetCUBINSize(program))
    checked(nvrtc.nvrtcDestroyProgram(program))
    return log.decode()


def check(log: str, kernels: set[str], most: int = 0) -> None:
    """Check that a log has at most `most` bytes of spills, and no warnings except those of `MEANT`."""
    assert set(re.findall(r"Compiling entry function '(\w+)'", log)) == kernels
    spills = SPILLS.findall(log)
    assert len(spills) >= len(kernels)
    assert all(int(number) <= most for numbers in spills for number in numbers), log
    assert set(re.findall(r"warning #([\w-]+)", log)) <= MEANT, log


def layout(order: int, precision: str, kernel: str, rank: int, values: str, limits: Limits) -> PackedLayout:
    dtype = DTYPES[precision]
    unit = VECTOR // dtype.itemsize
    lengths, stride = LENGTHS[: order - 1], -(-rank // unit) * unit
    return make_layout(kernel, Share(lengths, slice(0, 10_000), 10**8, stride, dtype, VALUES[values]), limits)


def check_all(order: int, precision: str, variants: Mapping[str, set[tuple[int, str]]], architecture: str) -> None:
    """Compile for the ranks and kinds of values that each kernel is to be compiled for."""

    def one(kernel: str, rank: int, values: str) -> None:
        macros = layout(order, precision, kernel, rank, values, LIMITS[architecture]).macros
        log = compiled("mttkrp", dict(macros), architecture)
        check(log, {"mttkrp"}, TIGHT.get((order, precision, kernel), FEW))

    with ThreadPoolExecutor(2) as pool:
        jobs = [(kernel, *variant) for kernel, chosen in variants.items() for variant in sorted(chosen)]
        list(pool.map(one, *zip(*jobs, strict=True)))


@pytest.mark.parametrize(("order", "precision"), some_of([(4, "fp32")], [*product((2, 4, 5, 6, 7, 8), DTYPES)]))
def test_every_kernel_of_every_order(order: int, precision: str) -> None:
    """Each at rank 32, and at one of all ranks and kinds of values in turn; those of order 3 are below."""
    every = list(product(RANKS, VALUES))
    variants = {
        kernel: {(32, "raw"), every[(3 * (k + order)) % len(every)]} for k, kernel in enumerate(kernel_names(order))
    }
    check_all(order, precision, variants, "sm_90")


@pytest.mark.parametrize("precision", DTYPES)
@EVERY
def test_every_rank_and_kind_of_value(precision: str, every: bool) -> None:
    pairs, double = [*combined(RANKS, [*VALUES], every)], precision == "fp64"
    chosen = {k: set(pairs if every else pairs[(k + 2 * double) % 4 :: 4]) for k in range(len(kernel_names(3)))}
    check_all(3, precision, {kernel: chosen[k] for k, kernel in enumerate(kernel_names(3))}, "sm_90")


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ["sm_80", "sm_100"])
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("order", [3, 8])
def test_other_architectures(order: int, precision: str, architecture: str) -> None:
    variants = {kernel: {(32, "raw"), (16, "coded")} for kernel in kernel_names(order)}
    check_all(order, precision, variants, architecture)


@pytest.mark.parametrize(
    ("order", "architecture"),
    [(2, "sm_90"), (5, "sm_90"), exhaustive(8, "sm_90"), *(exhaustive(3, other) for other in LIMITS)],
)
def test_products_in_double_of_single_precision(order: int, architecture: str) -> None:
    """They are computed seldom, and by as many threads as the layout was packed for: they may spill some bytes."""
    for kernel in kernel_names(order):
        for rank, values in ((16, "coded"), (130, "raw")) if kernel == "tiled-1" else ((32, "raw"),):
            macros = layout(order, "fp32", kernel, rank, values, LIMITS[architecture]).macros_in_double
            check(compiled("mttkrp", dict(macros), architecture), {"mttkrp"}, MOST_IN_DOUBLE)


@pytest.mark.parametrize(
    ("order", "architecture", "precision"),
    some_of(
        [(3, "sm_90", "fp32")],
        [
            *product((2, 3, 4, 5, 6, 7, 8), ("sm_90",), DTYPES),
            *product((3, 5), ("sm_80", "sm_100"), DTYPES),
        ],
    ),
)
def test_phi_and_logarithms(order: int, architecture: str, precision: str) -> None:
    """Each kernel that it suits: at rank 16 or 32, and at one of all ranks and kinds of values in turn."""
    every = [(rank, values) for rank in (*RANKS, 20, 128) for values in VALUES]
    compiled_for = set()
    for k, kernel in enumerate(kernel_names(order)):
        for rank, values in {((16, "coded"), (32, "raw"))[k % 2], every[(5 * k + 3 * order) % len(every)]}:
            made = layout(order, precision, kernel, rank, values, LIMITS[architecture])
            if not phi.suits(made):
                assert made.panels > 1
                continue
            for logs in (False, True):
                log = compiled("phi", phi.macros(made, logs), architecture)
                check(log, {"logs" if logs else "phi"}, MOST_IN_PHI if any(made.staged) and order <= 4 else FEW)
            compiled_for.add(made.kernel)
    assert {"segmented", "tiled-1"} <= compiled_for


@pytest.mark.parametrize(
    ("order", "precision", "loss"),
    some_of(
        [(3, "fp32", POISSON)],
        [(2, "fp64", LOGIT), (3, "fp64", POISSON), (4, "fp32", HUBER), (5, "fp32", LOGIT), (6, "fp64", HUBER)],
    ),
)
def test_mapped_mttkrps(order: int, precision: str, loss: Loss) -> None:
    """Each kernel that it suits, with and without the sum of the loss."""
    for k, kernel in enumerate(kernel_names(order)):
        made = layout(order, precision, kernel, (16, 33, 32)[k % 3], ("coded", "raw")[k % 2], LIMITS["sm_90"])
        if phi.suits(made):
            source = phi.mapped_source(made, loss.maps(), k % 2 > 0)
            log = compiled_text(source.text, f"mapped {kernel}", source.options, "sm_90")
            check(log, {"mapped"}, MOST_IN_MAPPED)


@pytest.mark.parametrize(
    ("order", "architecture", "precision"),
    some_of(
        [(2, "sm_90", "fp32")],
        [*product((2, 3, 4, 5, 6, 7, 8), ("sm_90",), DTYPES), *product((3,), ("sm_80", "sm_100"), DTYPES)],
    ),
)
def test_phi_and_logarithms_of_several_models(order: int, architecture: str, precision: str) -> None:
    """Of models of few and of many columns, of rows of any length."""
    for kernel, logs in product(("segmented", "fibre") if order > 2 else ("segmented",), (False, True)):
        lanes = interleaved.LEAST_LANES if logs == (order % 2 > 0) else interleaved.MOST_LANES
        made = layout(order, precision, kernel, 960, "coded" if lanes < 16 else "raw", LIMITS[architecture])
        log = compiled("interleaved", interleaved.macros(made, lanes, logs), architecture)
        check(log, {"logs" if logs else "phi"}, FEW)


def test_lanes_of_models() -> None:
    single, double = DTYPES["fp32"], DTYPES["fp64"]
    assert [interleaved.lanes_of(rank, single) for rank in (1, 4, 5, 9, 16, 17, 64, 65)] == [
        1,
        1,
        2,
        4,
        4,
        8,
        16,
        0,
    ]
    assert [interleaved.lanes_of(rank, double) for rank in (2, 3, 16, 17, 32, 33)] == [1, 2, 8, 16, 16, 0]


@pytest.mark.parametrize("rank", [1, 9, 17, 20, 32, 33, 44, 128, 130, 1024])
@pytest.mark.parametrize("kernel", ["segmented", "tiled-1", "blocked-half"])
def test_phi_computes_all_groups_in_whole_warps(kernel: str, rank: int) -> None:
    for order, precision in product((2, 3, 8), DTYPES):
        made = layout(order, precision, kernel, rank, "raw", LIMITS["sm_90"])
        team, macros = phi.team(made), phi.macros(made)
        threads, most = macros["THREAD_COUNT"], made.schedule.threads
        assert made.lanes <= team < 2 * made.lanes
        assert threads % 32 == 0
        assert threads * macros["BLOCKS"] <= 2048
        rounds = -(-made.groups * team // threads)
        assert threads <= (most if any(made.staged) else 2 * most)
        assert rounds == 1 or (any(made.staged) and (rounds - 1) * most < 2 * made.groups * team)


@pytest.mark.parametrize("method", ["pdnr", "pqnr"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@EVERY
def test_row_problems(architecture: str, method: RowMethod, every: bool) -> None:
    """In all combinations at the highest rank, too; else each method at one size."""
    highest = row_code.MOST_RANK if method == "pdnr" else 1024
    some = [(2, 1), (3, highest)] if architecture == "sm_90" else [(3, 32), (5, 7)]
    some = some if every else [(3, 20)] if method == "pdnr" else [(2, 1)]
    more = [(4, 16), (3, 7), (8, 64), (5, 33)] if every and architecture == "sm_90" else []
    precisions = cycle(DTYPES if method == "pdnr" else [*DTYPES][::-1])
    for (order, rank), precision in zip([*some, *more], precisions, strict=False):
        made = layout(order, precision, "segmented", rank, "coded" if rank % 2 else "raw", LIMITS[architecture])
        assert row_code.suits(made, method, LIMITS[architecture])
        code = row_code.RowCode(rank, DTYPES[precision], method == "pdnr")
        log = compiled("rowproblems", code.passes(made), architecture)
        check(log, {"add_sums", "add_changes", "gather"}, MOST_IN_ROWS)
        finding = row_code.finding(made)
        check(compiled_text(finding.text, "find_rows", finding.options, architecture), {"find_rows"})
        check(compiled("rowsteps", code.steps(), architecture), STEPS, MOST_IN_ROWS)
        assert max(code.shared_for_passes, code.shared_for_steps) <= LIMITS[architecture].shared


@pytest.mark.parametrize(
    ("loss", "curved"),
    some_of([(HUBER, False), (LOGIT, True)], [*product([GAUSSIAN, POISSON, HUBER, LOGIT], [False, True])]),
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_row_systems(loss: Loss, curved: bool) -> None:
    """A loss's formulas in the place of CP-APR's."""
    for order, rank, precision in ((3, 3, "fp32"), (4, 5, "fp64"), (3, row_code.MOST_RANK, "fp32")):
        made = layout(order, precision, "segmented", rank, "raw", LIMITS["sm_90"])
        source = row_code.systems(made, row_code.RowCode(rank, DTYPES[precision], curved), loss.maps(curved=curved))
        log = compiled_text(source.text, f"row_systems {loss.name} {rank}", source.options, "sm_90")
        check(log, {"add_sums", "take_rows", "add_systems"}, MOST_IN_ROWS)


def test_row_systems_of_constraints() -> None:
    made = layout(3, "fp32", "segmented", 5, "raw", LIMITS["sm_90"])
    source = row_code.systems(made, row_code.RowCode(5, DTYPES["fp32"], True), SQUARES)
    log = compiled_text(source.text, "row_systems of constraints", source.options, "sm_90")
    check(log, {"add_sums", "take_rows", "add_systems"}, MOST_IN_ROWS)


@pytest.mark.parametrize("method", ["pdnr", "pqnr"])
@pytest.mark.parametrize("precision", DTYPES)
def test_batches_of_rows_fit_what_is_planned(precision: str, method: RowMethod) -> None:
    """Plans count columns as they are in memory, some of them unused."""
    dtype = DTYPES[precision]
    lanes = VECTOR // dtype.itemsize
    for rank in range(1, row_code.MOST_RANK + 1):
        stride = -(-rank // lanes) * lanes
        planned, code = (row_code.RowCode(columns, dtype, method == "pdnr") for columns in (stride, rank))
        for tasks, most_of_row in product((10, 10_000, 1 << 30), (1, 2000)):
            room = row_code.batch_tasks(planned, stride, tasks, most_of_row) * planned.bytes
            assert row_code.batch_tasks(code, stride, tasks, most_of_row) * code.bytes <= room


def test_layouts_of_row_problems() -> None:
    most = LIMITS["sm_90"]
    suited = {
        name for name in kernel_names(3) if row_code.suits(layout(3, "fp32", name, 16, "raw", most), "pdnr", most)
    }
    assert suited == {"segmented"}
    wide = layout(3, "fp32", "segmented", 228, "raw", most)
    assert row_code.suits(wide, "pqnr", most)
    assert not row_code.suits(wide, "pdnr", most)


@pytest.mark.parametrize("architecture", LIMITS)
def test_rows_fit_the_shared_memory_of_their_device(architecture: str) -> None:
    """Of as many components as are taken, and no fewer are taken than need be: an A100 has less than an H100."""
    limits, most = LIMITS[architecture], {"sm_80": 196}.get(architecture, row_code.MOST_RANK)
    for rank in range(4, 260, 4):
        made = layout(3, "fp32", "segmented", rank, "raw", limits)
        assert row_code.suits(made, "pqnr", limits)
        assert row_code.suits(made, "pdnr", limits) == (rank <= most)
        if rank <= most:
            code = row_code.RowCode(rank, DTYPES["fp32"], True)
            assert max(code.shared_for_passes, code.shared_for_steps) <= limits.shared
    highest = layout(3, "fp64", "segmented", 1024, "raw", limits)
    assert row_code.suits(highest, "pqnr", limits)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@EVERY
def test_packing_and_sums_of_chunks(architecture: str, every: bool) -> None:
    sums = {"combine", "combine_rest", "widen", "gather_long"}
    check(compiled("combine", {}, architecture), sums | {"clear_gaps"})
    check(compiled("phi_sums", {"SKIPS": 1}, architecture), sums | {"clear", "sum_logs", "copy"})
    own = {"clear", "copy", "combine_models", "measure", "apply", "sum_logs"}
    for real in REALS.values() if every else ["float"]:
        check(compiled("interleaved_sums", {"REAL": real}, architecture), sums | own)
    all_ranks = (1, 7, 33, MOST_IN_A_BLOCK, 64, 128) if every else (MOST_IN_A_BLOCK,)
    ranks, one, several = all_ranks if architecture == "sm_90" else (33, 128), {}, {"SEVERAL": 1}
    made = [*((r, one) for r in ranks), (8, several), *([(32, several)] if every else [])]
    for (rank, more), real in combined(made, [*REALS.values()], every):
        macros = {"RANK": rank, "REAL": real} | more
        most = MOST_IN_SOLVE if rank > 56 else MOST_IN_ROWS
        if rank <= 64:
            check(compiled("solve", macros, architecture), {"solve", "add_parts"}, most)
            steps = compiled("admm_steps", {"RANK": rank, "REAL": "double"}, architecture)
            check(steps, {"advance", "settle", "add_parts"}, most)
            updates = compiled("update_equations", {"RANK": rank, "REAL": real, "SUM": real}, architecture)
            check(updates, {"begin", "prepare", "solve_rows"}, most)
        if rank <= MOST_IN_A_BLOCK:
            check(compiled("equations", macros, architecture), EQUATIONS, FEW)
        for name in ("nonnegative", "nonnegative_wide") if rank <= 64 else ("nonnegative_wide",):
            check(compiled(name, macros, architecture), {"hals", "add_parts"}, most)
        check(compiled("row_admm", {"RANK": rank, "REAL": real}, architecture), ROW_ADMM, MOST_IN_ROW_ADMM)
    check(compiled("isotonic", {}, architecture), {"monotone", "prefix_errors", "find_peaks"})
    check(compiled("lbfgs", {"MOST": 2 * PAIRS}, architecture), LBFGS)
    for real in REALS.values() if every else ["double"]:
        check(compiled("equations_large", {"REAL": real, "SIDE": 64}, architecture), WIDE)
        check(compiled("rows_large", {"REAL": real}, architecture), {"store", "add"}, FEW)
    orders = range(1, 8) if every and architecture == "sm_90" else (2, 7)
    for inputs, real in combined(orders, [*REALS.values()], every):
        log = compiled("pack", {"INPUTS": inputs, "REAL": real}, architecture)
        check(log, {"number_tiles", "count_runs", "sum_counts", "pack"})


@pytest.mark.parametrize("architecture", ["sm_75", exhaustive("sm_89")])
def test_products_of_squares_without_tensor_cores(architecture: str) -> None:
    """And smaller ones: blocks of threads have less shared memory than three large ones take."""
    check(compiled("equations_large", {"REAL": "float", "SIDE": 32}, architecture), WIDE)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@EVERY
def test_kernels_of_coordinates(architecture: str, every: bool) -> None:
    for (inputs, real), atomic in product(combined((1, 3), [*REALS], every), (False, True)):
        for column in {0, inputs} if not atomic else {0}:
            for double in {False, real == np.float32}:
                macros = coordinate_macros(inputs, real, 8, 8, column, atomic, double)
                check(compiled("coordinates", macros, architecture), {"mttkrp"})


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@EVERY
def test_kernels_of_dense_blocks(architecture: str, every: bool) -> None:
    for order, dtype in combined((2, 3, 6), [*DTYPES.values()], every):
        form = BlockForm((9,) * order, 9, 7, 8, dtype, 1 << 20)
        kernels = {"khatri_rao", "contract", "add_up", "add_parts", "widen", "matrix_free"}
        check(compiled("dense", dense_code.macros(form), architecture), kernels, MOST_IN_DENSE)
        check(compiled("dimension_tree", dimension_tree.pair_macros(form), architecture), {"contract_pair"})


DENSE_KINDS = [("fp32", None), ("fp64", None), ("fp64", DTYPES["fp32"])]


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        *in_turn([4, 64], DENSE_KINDS),
        *(exhaustive(*each) for each in product([12, 32, 500], DENSE_KINDS)),
    ],
)
def test_products_of_dense_blocks(columns: int, kind: tuple[str, Any]) -> None:
    """Each width of a block of threads, both ways round, aligned and not, of one and of three factor matrices."""
    precision, held = kind
    form = BlockForm((40, 30, 20), 40, columns, columns, DTYPES[precision], 1 << 20, stored=held)
    number = (held or form.dtype).itemsize
    for transposed, parts, vector in (
        (False, 1, 16),
        (True, 3, 16),
        (False, 2, number),
        (True, 2, number),
    ):
        macros = dense_code.multiply_macros(form, parts, transposed, vector)
        one = (columns, precision, held, transposed, parts) == (64, "fp64", None, True, 3)
        check(compiled("dense_multiply", macros, "sm_90"), {"multiply_block"}, MOST_IN_ONE_PRODUCT if one else FEW)
        assert dense_code.multiply_shared(form, transposed) <= LIMITS["sm_90"].shared


@pytest.mark.parametrize("columns", [*map(exhaustive, [32, 64]), 500])
def test_products_of_dense_blocks_by_warpgroups(columns: int) -> None:
    form = BlockForm((40, 30, 20), 40, columns, columns, DTYPES["fp32"], 1 << 20)
    for transposed, parts, aligned, last in (
        (False, 1, True, 40),
        (True, 3, True, 20),
        (False, 2, False, 40),
        (True, 2, False, 20),
    ):
        if dense_code.uses_wgmma(form, aligned, 90):
            macros = dense_code.wgmma_macros(form, parts, transposed, aligned, last)
            check(compiled("dense_wgmma", macros, "sm_90a"), {"multiply_block"}, MOST_IN_WGMMA)
            assert dense_code.wgmma_shared(form, transposed) + SHARED_BESIDE <= LIMITS["sm_90"].shared


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@EVERY
def test_products_of_fibres(architecture: str, every: bool) -> None:
    """Narrow and wide rows, of one group of threads and of several, of values of one number and of many."""
    kinds = [*product((1, 3, 64), DTYPES.values())]
    for rank, (width, dtype) in combined([1, 7, 16, 32, 33, 64, 1024], kinds, every):
        stride = -(-rank * dtype.itemsize // VECTOR) * VECTOR // dtype.itemsize
        macros = ttm.macros(TtmForm(0, stride, dtype, 0, width))
        check(compiled("ttm", macros, architecture), {"ttm", "settle", "cut", "mark_ends"})


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_sort_of_nonzeros(architecture: str) -> None:
    check(compiled_text(sort_keys.text(), "cuda_sort", sort_keys.OPTIONS, architecture), set(sort_keys.KERNELS))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_columns_of_factor_matrices(architecture: str) -> None:
    for real in REALS.values():
        check(compiled("columns", {"REAL": real}, architecture), {"column_sums", "totals", "add_totals", "arrange"})
        check(compiled("gram", {"REAL": real}, architecture), {"gram", "add_parts"})
        check(compiled("random", {"REAL": real}, architecture), {"draw"})


@pytest.mark.parametrize(
    ("order", "kinds", "architecture"),
    [
        (3, [(32, "raw")], "sm_90"),
        exhaustive(3, [(7, "coded"), (16, "raw")], "sm_90"),
        *(
            exhaustive(order, [(7, "coded"), (16, "raw"), (32, "raw")], other)
            for order, other in ((2, "sm_90"), (6, "sm_90"), (4, "sm_80"), (3, "sm_100"))
        ),
    ],
)
def test_least_squares_in_one_pass(order: int, kinds: list[tuple[int, str]], architecture: str) -> None:
    """Of few and many columns, and of an incomplete vector; a row is solved once, and may spill some bytes."""
    for rank, values in kinds:
        made = layout(order, "fp32", "segmented", rank, values, LIMITS[architecture])
        assert least_squares.fuses(made)
        code = least_squares.LeastSquaresCode(rank, DTYPES["fp32"])
        source = code.fused(made)
        log = compiled_text(source.text, f"observed {rank}", source.options, architecture)
        check(log, {"clear_largest", "find_largest", "solve_tasks", "solve_doubtful", "add_parts"}, MOST_IN_SOLVED)
        blocks, warps = 3 if architecture == "sm_80" else 4, least_squares.THREADS // least_squares.WARP
        for bounded in (False, True):
            shared = warps * code.shared_of_warp(made, bounded) + SHARED_BESIDE
            assert blocks * shared <= LIMITS[architecture].shared
    assert not least_squares.fuses(layout(order, "fp64", "segmented", 7, "raw", LIMITS[architecture]))
    assert not least_squares.fuses(layout(order, "fp32", "segmented", 33, "raw", LIMITS[architecture]))


@pytest.mark.parametrize(("order", "rank"), [(3, 17), exhaustive(3, 32), exhaustive(4, 32)])
def test_least_squares_of_large_factor_matrices(order: int, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(least_squares, "CACHED", 0)
    made = layout(order, "fp32", "segmented", rank, "raw", LIMITS["sm_90"])
    code = least_squares.LeastSquaresCode(rank, DTYPES["fp32"])
    source = code.fused(made)
    assert "-DFAR=1" in source.options
    log = compiled_text(source.text, f"observed {rank}, far", source.options, "sm_90")
    check(log, {"clear_largest", "find_largest", "solve_tasks", "solve_doubtful", "add_parts"}, MOST_IN_SOLVED)
    shared = least_squares.THREADS // least_squares.WARP * code.shared_of_warp(made, False) + SHARED_BESIDE
    assert 4 * shared <= LIMITS["sm_90"].shared


@pytest.mark.parametrize(("rank", "precision"), [(1, "fp32"), (64, "fp64"), exhaustive(224, "fp32")])
def test_least_squares_from_sums(rank: int, precision: str) -> None:
    code = least_squares.LeastSquaresCode(rank, DTYPES[precision])
    log = compiled_text(code.solving().text, f"least_squares {rank}", code.solving().options, "sm_90")
    check(log, {"solve_rows", "add_solved", "clear_rows"}, FEW)
    assert code.shared + SHARED_BESIDE <= LIMITS["sm_90"].shared


@pytest.mark.parametrize(
    ("loss", "precision", "weighted"),
    [
        (POISSON, "fp32", False), (LOGIT, "fp64", True), exhaustive(HUBER, "fp32", True),
        exhaustive(GAUSSIAN, "fp64", False),
    ],
)  # fmt: skip
def test_losses_of_tiles(loss: Loss, precision: str, weighted: bool) -> None:
    source = loss_tiles.LossTilesCode.of(loss, LossForm((5, 3), 2, DTYPES[precision], weighted)).source()
    check(compiled_text(source.text, f"loss_tiles {loss.name}", source.options, "sm_90"), {"evaluate"})


def test_a_spill_would_be_seen() -> None:
    assert SPILLS.findall("    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads") == [("16", "8", "12")]


def test_an_error_would_be_seen() -> None:
    with pytest.raises(AssertionError, match="error"):
        compiled("pack", {"INPUTS": 0, "REAL": "none"}, "sm_90")


TTMC_RANKS = ((130,), (33, 64), (3, 5, 5), (2, 2, 2, 2, 2, 2, 2))
MORE_TTMC_RANKS = (
    (1,), (7,), (64,), (16, 16), (4, 5, 3, 3), (7, 1), (1, 7), (64, 33), (10, 10), (8, 8, 8), (16, 16, 16),
    (1, 1, 1), (2, 3, 2, 3), (2, 2, 3, 1, 2),
    (2, 3, 2, 3, 3), (1024, 1024),
)  # fmt: skip
TTMC_KINDS = (("fp32", False), ("fp64", False), ("fp32", True))  # and whether products are in double precision


@pytest.mark.parametrize("architecture", ["sm_90", exhaustive("sm_100")])
@pytest.mark.parametrize(("size", "count"), some_of([(8, 1), (512, 64)], [(33, 16), (100, 10), (256, 16), (380, 64)]))
def test_leading_eigenvectors(size: int, count: int, architecture: str) -> None:
    """A matrix is in the registers of a cluster of thread blocks."""
    check(compiled("eigh", {"SIZE": size, "COUNT": count}, architecture), {"tridiagonal", "eigenvectors"})
    check(compiled("whiten", {"COUNT": count}, architecture), {"whiten"})


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("ranks", "kind"),
    [
        *in_turn(TTMC_RANKS, TTMC_KINDS),
        *(exhaustive(*each) for each in product(MORE_TTMC_RANKS, TTMC_KINDS)),
    ],
)
def test_ttmc(ranks: tuple[int, ...], kind: tuple[str, bool], architecture: str) -> None:
    """Each column is computed by one thread of a group, and none of a row's sums is spilled."""
    precision, double = kind
    code = ttmc.walked_code(ranks, DTYPES[precision], double)
    check(compiled("ttmc", code.macros, architecture), {"ttmc", "carry_up"}, MOST_IN_TTMC)
    m = code.macros
    assert code.lanes <= 32
    assert m["PANELS_C"] * m["LANES_C"] * code.vector >= ranks[-1]
    assert m["PANELS_B"] * m["LANES_B"] * m["BS"] >= (ranks[-2] if len(ranks) > 1 else 1)
    assert m["PANELS_W"] * m["WS"] >= np.prod(ranks[:-2])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("ranks", "precision"),
    [
        *in_turn([each for each in TTMC_RANKS if len(each) in (2, 3)]),
        *(exhaustive(*each) for each in product([each for each in MORE_TTMC_RANKS if len(each) in (2, 3)], DTYPES)),
    ],
)
def test_ttmc_by_products(ranks: tuple[int, ...], precision: str, architecture: str) -> None:
    """Each column is computed by one thread of a warp, and no sum is spilled."""
    code = ttmc.products_code(ranks, DTYPES[precision])
    check(compiled("ttmc_products", code.macros, architecture), {"ttmc", "carry_up"}, FEW)
    m = code.macros
    for rank, each in zip(ranks[-2:], "BC", strict=True):
        assert m[f"PANELS_{each}"] * m[f"H{each}"] * 8 >= rank
    assert m["PANELS_W"] * m["HW"] >= np.prod(ranks[:-2])


@pytest.mark.in_turn
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("order", "columns", "precision", "loss", "run"),
    [
        (4, 16, "fp32", POISSON, sampled.LONG_RUN), (3, 16, "fp64", LOGIT, sampled.SHORT_RUN),
        exhaustive(2, 4, "fp32", HUBER, sampled.SHORT_RUN), exhaustive(5, 132, "fp32", LOGIT, sampled.LONG_RUN),
        exhaustive(6, 260, "fp64", POISSON, sampled.LONG_RUN),
    ],
)  # fmt: skip
def test_sampled_losses(order: int, columns: int, precision: str, loss: Loss, run: int, exact: bool) -> None:
    formulas = (each for each in (loss.of, loss.slope) if isinstance(each, Formula))
    code = sampled.SampledCode(order, columns, DTYPES[precision], exact, run, *formulas)
    samples = {"add_samples", "evaluate_samples", "add_parts"} | ({"bound_samples", "convert_sums"} if exact else set())
    for source, kernels in ((code.source(), samples), (code.steps(), {"sgd", "adagrad", "adam"})):
        check(compiled_text(source.text, f"{source.name} {code}", source.options, "sm_90"), kernels, MOST_IN_SAMPLED)
    table = sampled.table_source(order)
    check(compiled_text(table.text, table.name, table.options, "sm_90"), {"fill_slots"})
