"""Each backend's MTTKRP of a shard, called directly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product, starmap
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from forms import STANDARD, cases_of, exhaustive, some_of, standard, standard_with
from nonzeros import DTYPES, SHAPES_OF_ROWS, Problem, kernels
from oracle import assert_rounding_only, coo_mttkrp, kernel_of

from amped.backend.choose import choose
from amped.backend.cpu.kernels import sums
from amped.backend.cpu.layout import PIECE
from amped.backend.cpu.ops import mttkrp as cpu_mttkrp
from amped.backend.cuda import probe
from amped.backend.cuda.layout import Limits
from amped.backend.device import Device
from amped.backend.ops.mttkrp import MTTKRP
from amped.options import GatherName
from amped.parallel.mpi import Comm


def run(
    backend: Device,
    problem: Problem,
    precision: str,
    kernel: str,
    cuts: Sequence[int] = (),
    gather: GatherName = "full",
    double: bool = False,
) -> np.ndarray:
    """Compute shards between `cuts`, one after the other; rows before and after the output must stay as they are."""
    (rows, rank), share = problem.expected.shape, problem.share(backend, precision, gather)
    guarded = backend.empty((rows + 2, share.stride), np.float64)
    guarded[:] = np.nan
    guarded[1:-1] = 0
    inputs, provider = problem.inputs(backend, share), kernel_of(backend, kernel)
    for start, stop in pairwise([0, *cuts, problem.values.size]):
        shard = problem.shard(share, provider, start, stop)
        scratch = backend.empty((provider.bytes(share, shard.nnz).running,), np.uint8)
        scratch.fill(0xFF)  # NaN, as floating point numbers
        provider.run(shard, inputs, guarded[1:-1], scratch=scratch, double=double)
    backend.synchronize()
    result = np.array(backend.to_host(guarded)[:, :rank])
    assert np.all(np.isnan(result[[0, -1]]))
    return result[1:-1]


def check(got: np.ndarray, problem: Problem, precision: str) -> None:
    """Named rows hold the result, the others nothing."""
    assert np.all(got[~problem.named] == 0)
    assert_rounding_only(got[problem.named], problem.expected[problem.named], precision)


@pytest.mark.parametrize(("order", "rank", "precision", "kernel"), cases_of("plain", "fibre"))
def test_order_and_rank(backend: Device, precision: str, order: int, rank: int, kernel: str) -> None:
    problem, apart = Problem(order, rank), ("fibre", "permuted")
    chosen = [name for name in kernels(backend, order) if name == kernel or (kernel == "plain" and name not in apart)]
    assert chosen
    for name in chosen:
        check(run(backend, problem, precision, name), problem, precision)


@standard_with("rows", SHAPES_OF_ROWS)
def test_how_nonzeros_fall_on_rows(backend: Device, order: int, rank: int, precision: str, rows: str) -> None:
    for kernel in kernels(backend, order):
        for count in (1, 2, 127, 128, 129, 1009):
            problem = Problem(order, rank, rows, count)
            check(run(backend, problem, precision, kernel), problem, precision)


@standard_with("rows", SHAPES_OF_ROWS)
def test_sums_of_integers_are_exact_however_cut(
    backend: Device, order: int, rank: int, precision: str, rows: str
) -> None:
    problem = Problem(order, rank, rows, 1009, integers=True)
    at_random = sorted(np.random.default_rng(order).choice(1008, 30, replace=False) + 1)
    for kernel in kernels(backend, order):
        for cuts in ([], [1], [1008], [500, 501, 502, 503], at_random, range(1, 200)):
            got = run(backend, problem, precision, kernel, cuts)
            assert np.array_equal(got[problem.named], problem.expected[problem.named])
            assert np.all(got[~problem.named] == 0)


@standard_with("rows", SHAPES_OF_ROWS)
@pytest.mark.parametrize("cuts", [[], [1], [300, 301, 700]])
def test_new_rows_may_hold_anything(
    backend: Device, order: int, rank: int, precision: str, rows: str, cuts: list[int]
) -> None:
    """Each shard also sets the rows without nonzeros between the last row of the previous shard and its own."""
    problem = Problem(order, rank, rows, 1009)
    share, length = problem.share(backend, precision), len(problem.expected)
    for kernel in kernels(backend, order):
        out, provider, first = backend.empty((length, share.stride), np.float64), kernel_of(backend, kernel), 0
        out[:] = np.nan
        for start, stop in pairwise([0, *cuts, problem.values.size]):
            end = length if stop == problem.values.size else int(problem.columns[0, stop - 1]) + 1
            shard = problem.shard(share, provider, start, stop)
            scratch = backend.empty((provider.bytes(share, shard.nnz).running,), np.uint8)
            provider.run(shard, problem.inputs(backend, share), out, slice(first, end), scratch)
            first = end
        backend.synchronize()
        check(np.array(backend.to_host(out)[:, :rank]), problem, precision)


@pytest.fixture
def tiny(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A GPU of so little memory on the chip that small tensors have many tiles."""
    if missing := probe():
        pytest.skip(missing)
    backend = choose("cuda", comm)
    monkeypatch.setattr(backend, "limits", Limits(7, 2048 + 40 * 128, 4000))
    return backend


@pytest.mark.gpu
@pytest.mark.parametrize("rows", SHAPES_OF_ROWS)
@pytest.mark.parametrize(("order", "rank", "precision"), some_of(STANDARD, [*product((3, 4), (9,), DTYPES)]))
def test_sums_over_many_tiles(tiny: Device, order: int, rank: int, precision: str, rows: str) -> None:
    exact = Problem(order, rank, rows, 5003 if rows != "one per row" else 1009, integers=True, grain=0.5)
    rounded = Problem(order, rank, rows, exact.values.size)
    for kernel in kernels(tiny, order):
        for cuts in ([], [1, 500, 501, 1000]):
            got = run(tiny, exact, precision, kernel, cuts)
            assert np.array_equal(got[exact.named], exact.expected[exact.named])
            if kernel != "atomic":
                check(run(tiny, rounded, precision, kernel, cuts), rounded, precision)


@standard
def test_many_nonzeros_in_one_row_keep_their_precision(backend: Device, order: int, rank: int, precision: str) -> None:
    problem = Problem(order, rank, "heavy row", 200_003)
    for kernel in kernels(backend, order):
        if kernel == "atomic" and precision == "fp32":
            continue  # as published: see `test_atomics_lose_precision`
        check(run(backend, problem, precision, kernel), problem, precision)
        check(run(backend, problem, precision, kernel, [66_667, 140_001]), problem, precision)


def in_single(problem: Problem) -> Problem:
    """Round values and factors to single precision, and compute what is expected of them in double."""
    problem.values = problem.values.astype(np.float32).astype(np.float64)
    problem.factors = [f.astype(np.float32).astype(np.float64) for f in problem.factors]
    problem.expected = coo_mttkrp(problem.columns, problem.values, problem.factors, 0)
    return problem


@pytest.mark.parametrize(
    ("order", "rank", "apart"),
    [(*STANDARD[0][:2], {"permuted"}), *(exhaustive(*each, set()) for each in [(2, 5), (3, 3), (3, 7), (5, 33)])],
)
def test_products_in_double_of_numbers_in_single_precision(
    backend: Device, order: int, rank: int, apart: set[str]
) -> None:
    for problem in (in_single(Problem(order, rank)), Problem(order, rank, "heavy row", integers=True, grain=0.5)):
        for kernel in [name for name in kernels(backend, order) if name not in apart]:
            got = run(backend, problem, "fp32", kernel, [500], double=True)
            np.testing.assert_allclose(got, problem.expected, rtol=1e-13, atol=1e-12 * problem.grain)


@pytest.mark.gpu
@pytest.mark.parametrize(("order", "rank"), [STANDARD[0][:2], *starmap(exhaustive, [(3, 9), (4, 9)])])
def test_products_in_double_over_many_tiles(tiny: Device, order: int, rank: int) -> None:
    for rows in SHAPES_OF_ROWS:
        problem = in_single(Problem(order, rank, rows, 1009))
        for kernel in kernels(tiny, order):
            got = run(tiny, problem, "fp32", kernel, [1, 500, 501, 1000], double=True)
            np.testing.assert_allclose(got, problem.expected, rtol=1e-13)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("order", "gather"), [(3, "fp16"), (5, "bf16"), *starmap(exhaustive, [(3, "bf16"), (5, "fp16")])]
)
def test_factors_in_16_bits(comm: Comm, order: int, gather: GatherName) -> None:
    """Exact where 16 bits hold the factors; elsewhere with the error of a product of rounded numbers."""
    if missing := probe():
        pytest.skip(missing)
    backend = choose("cuda", comm)
    exact, rounded = Problem(order, 9, integers=True), Problem(order, 33, count=5003)
    for kernel in kernels(backend, order):
        if not kernel_of(backend, kernel).reads_narrow:
            continue
        got = run(backend, exact, "fp32", kernel, [500], gather)
        assert np.array_equal(got[exact.named], exact.expected[exact.named])
        got = run(backend, rounded, "fp32", kernel, [500], gather)
        error = np.linalg.norm(got - rounded.expected, axis=1) / np.linalg.norm(rounded.expected, axis=1)
        assert 1e-6 < error.max() < (order - 1) * {"fp16": 2**-11, "bf16": 2**-8}[gather]


@pytest.mark.gpu
def test_atomics_lose_precision(comm: Comm) -> None:
    """What the documentation says of the published algorithm is true: it is there to compare with."""
    if missing := probe():
        pytest.skip(missing)
    problem = Problem(*STANDARD[0][:2], "heavy row", 1_000_003)
    got = run(choose("cuda", comm), problem, "fp32", "atomic")
    error = np.linalg.norm(got - problem.expected) / np.linalg.norm(problem.expected)
    assert 1e-6 < error < 1e-2


@pytest.mark.parametrize("rows", ["uniform", "heavy row", "one row"])
@pytest.mark.parametrize(("order", "rank", "precision"), some_of(STANDARD, [*product((3,), (33,), DTYPES)]))
def test_the_same_bits_every_time(backend: Device, order: int, rank: int, precision: str, rows: str) -> None:
    problem = Problem(order, rank, rows, 5003)
    kernel = MTTKRP.providers(backend)[0].name
    first = run(backend, problem, precision, kernel, [2000])
    for _ in range(5):
        assert run(backend, problem, precision, kernel, [2000]).tobytes() == first.tobytes()


@pytest.mark.parametrize(("nonzeros", "used"), [(100, 1), (20_000, 4), (393_000, 16)])
def test_small_tensors_use_few_threads(comm: Comm, nonzeros: int, used: int) -> None:
    """Starting a thread takes time."""
    shard: Any = SimpleNamespace(nnz=nonzeros, indices=[None] * 3)
    factor = np.zeros((4, 16), np.float32)
    assert sums.threads_worth(16, shard, factor) == pytest.approx(used, abs=1)


def test_threads_share_the_nonzeros(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, list[int], int]] = []
    kernel = sums.segmented

    def spy(*args: Any) -> int:
        nonzeros, outs, (threads, progress, _, bounds, *_) = args[2], args[4], args[8]
        calls.append((threads, nonzeros[0][bounds].tolist(), len(outs[1])))
        faults: int = kernel(*args)
        assert np.all(progress == 2)  # all is done
        return faults

    monkeypatch.setattr(sums, "segmented", spy)
    monkeypatch.setattr(sums, "START_SECONDS", 1e-15)
    problem = Problem(*STANDARD[0][:2], "uniform", 10_007)
    for name, each in (("segmented", cpu_mttkrp.TURNS), ("blocked", 1)):
        for smallest, parts in ((5, 3 * each), (4000, 2), (5005, 1), (50_000, 1)):
            monkeypatch.setattr(cpu_mttkrp, "SMALLEST", smallest)
            calls.clear()
            check(run(choose("cpu", comm, 3), problem, "fp32", name), problem, "fp32")
            [(threads, ends, others)] = calls
            assert threads == min(3, parts)
            assert ends == pytest.approx([10_007 * t / parts for t in range(parts + 1)], abs=PIECE)
            assert others == (parts - 1 if name == "blocked" else 0)  # an output for each part, or one
