"""Each backend's Phi and log-likelihood of a shard, from the shards of each MTTKRP kernel, called directly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from forms import STANDARD, cases_of, some_of, standard, standard_with
from nonzeros import DTYPES, SHAPES_OF_ROWS, Problem, kernels, padded
from oracle import BACKENDS, assert_rounding_only, coo_phi, kernel_of, loglikelihood, sum_of_logs

from amped.backend.device import Device
from amped.backend.ops.mttkrp import Kernel, Operands, Share
from amped.backend.ops.phi import PHI, PhiParams, PhiProvider

pytestmark = pytest.mark.in_turn

FLOOR = 1e-10
ALL = [*BACKENDS, ("null", 1)]
LOGS = {"fp32": 1e-6, "fp64": 1e-13}  # relative error of a sum of logarithms
# The longest rows are computed in pieces.
STANDARD_AND_WIDE = some_of(
    [*((*row, "") for row in STANDARD), (2, 130, "fp64", "phi permuted")], [*product((3,), (7, 130), DTYPES, ("",))]
)

every_backend = pytest.mark.parametrize(
    "backend", ALL, indirect=True, ids=lambda b: "-".join(map(str, filter(None, b)))
)


def providers(backend: Device, share: Share, order: int = 3, form: str = "") -> Iterator[tuple[PhiProvider, Kernel]]:
    """Yield each provider of the family with each MTTKRP kernel whose shards it reads: of one form, if there is one."""
    pairs = [(phi, kernel_of(backend, name)) for name in kernels(backend, order) for phi in PHI.providers(backend)]
    pairs = [(phi, kernel) for phi, kernel in pairs if not phi.multi_model and phi.suits(kernel, share)]
    assert pairs
    of_form = [pair for pair in pairs if (pair[1].name == "permuted") == (form == "phi permuted")] if form else pairs
    if not of_form:
        pytest.skip(f"no kernel of {backend.name} has another mode's order")
    yield from of_form


def rounded(problem: Problem, precision: str) -> Problem:
    """Round values and factors as the device has them: what is left are errors of computing."""
    problem.values = problem.values.astype(DTYPES[precision]).astype(np.float64)
    problem.factors = [f.astype(DTYPES[precision]).astype(np.float64) for f in problem.factors]
    problem.expected = coo_phi(problem.columns, problem.values, problem.factors, 0, FLOOR)
    return problem


def scratch_of(backend: Device, phi: PhiProvider, kernel: Kernel, share: Share, nnz: int) -> Any:
    scratch = backend.empty((phi.bytes(kernel, share, nnz),), np.uint8)
    scratch.fill(0xFF)  # NaN, as floating point numbers
    return scratch


def run(
    backend: Device,
    problem: Problem,
    share: Share,
    phi: PhiProvider,
    kernel: Kernel,
    cuts: Sequence[int] = (),
    new: bool = True,
) -> np.ndarray:
    """Compute shards between `cuts`, one after the other; rows before and after the output must stay as they are."""
    rows, rank = problem.expected.shape
    guarded = backend.empty((rows + 2, share.stride), np.float64)
    guarded[:] = np.nan
    if not new:
        guarded[1:-1] = 0
    inputs, own = problem.inputs(backend, share), padded(backend, share, problem.factors[0])
    for start, stop in pairwise([0, *cuts, problem.values.size]):
        shard = problem.shard(share, kernel, start, stop)
        scratch = scratch_of(backend, phi, kernel, share, shard.nnz)
        of = slice(0, rows) if new and start == 0 else slice(0, 0)
        phi.run(shard, Operands(inputs, own, guarded[1:-1], scratch), PhiParams(FLOOR), of)
    backend.synchronize()
    result = np.array(backend.to_host(guarded)[:, :rank])
    assert np.all(np.isnan(result[[0, -1]]))
    return result[1:-1]


def logs(
    backend: Device, problem: Problem, share: Share, phi: PhiProvider, kernel: Kernel, cuts: Sequence[int] = ()
) -> float:
    """Return the sum over shards between `cuts`."""
    inputs, own = problem.inputs(backend, share), padded(backend, share, problem.factors[0])
    total = backend.zeros((1,), np.float64)
    for start, stop in pairwise([0, *cuts, problem.values.size]):
        shard = problem.shard(share, kernel, start, stop)
        operands = Operands(inputs, own, None, scratch_of(backend, phi, kernel, share, shard.nnz))
        phi.add_logs(shard, operands, PhiParams(FLOOR), total)
    backend.synchronize()
    return float(backend.to_host(total)[0])


def check(got: np.ndarray, problem: Problem, precision: str) -> None:
    """Named rows hold the result, the others nothing."""
    assert np.all(got[~problem.named] == 0)
    assert_rounding_only(got[problem.named], problem.expected[problem.named], precision)


def check_all(
    backend: Device, problem: Problem, precision: str, order: int = 3, cuts: Sequence[int] = (), form: str = ""
) -> None:
    """Compare every provider with the oracle, on the shards of every kernel, or only of the kernels of one form."""
    rounded(problem, precision)
    share = problem.share(backend, precision)
    want = sum_of_logs(problem.columns, problem.values, problem.factors, FLOOR)
    sizes = sum_of_logs(problem.columns, problem.values, [np.ones((len(f), 3)) for f in problem.factors])
    for phi, kernel in providers(backend, share, order, form):
        for new in (True, False):
            check(run(backend, problem, share, phi, kernel, cuts, new), problem, precision)
        got = logs(backend, problem, share, phi, kernel, cuts)
        assert abs(got - want) <= LOGS[precision] * (abs(want) + sizes)


@every_backend
@pytest.mark.parametrize(("order", "rank", "precision", "kernel"), cases_of("phi", "phi permuted"))
def test_order_and_rank(backend: Device, precision: str, order: int, rank: int, kernel: str) -> None:
    check_all(backend, Problem(order, rank), precision, order, [500], kernel)


@every_backend
@standard_with("rows", SHAPES_OF_ROWS)
def test_how_nonzeros_fall_on_rows(backend: Device, order: int, rank: int, precision: str, rows: str) -> None:
    for count in (1, 2, 3, 5, 127, 128, 129, 1009):
        check_all(backend, Problem(order, rank, rows, count), precision, order)


@every_backend
@standard_with("rows", SHAPES_OF_ROWS)
def test_however_cut(backend: Device, order: int, rank: int, precision: str, rows: str) -> None:
    for cuts in ([1], [1008], [500, 501, 502, 503], range(1, 40)):
        check_all(backend, Problem(order, rank, rows), precision, order, cuts)


@every_backend
@standard
def test_input_modes_of_one_row(backend: Device, order: int, rank: int, precision: str) -> None:
    check_all(backend, Problem(order, rank, longest=1), precision, order)


@every_backend
@standard
def test_many_nonzeros_in_one_row_keep_their_precision(backend: Device, order: int, rank: int, precision: str) -> None:
    check_all(backend, Problem(order, rank, "heavy row", 200_003), precision, order, [66_667])


@every_backend
@pytest.mark.parametrize(("order", "rank", "precision", "form"), STANDARD_AND_WIDE)
def test_models_below_the_floor(backend: Device, order: int, rank: int, precision: str, form: str) -> None:
    """A model of 0, below and just above the floor, where no other component hides it."""
    problem = Problem(order, rank)
    problem.factors[0][::3] = 0
    problem.factors[0][1::3] *= 1e-13
    problem.factors[0][2::3, 1:] = 0
    check_all(backend, problem, precision, order, form=form)


@every_backend
def test_what_is_not_a_number_stays(backend: Device) -> None:
    problem = Problem(*STANDARD[0][:2])
    problem.factors[0][7, 2] = np.nan
    share = problem.share(backend, "fp32")
    for phi, kernel in providers(backend, share):
        got = run(backend, problem, share, phi, kernel)
        assert problem.named[7]
        assert np.all(np.isnan(got[7]))
        assert np.isnan(logs(backend, problem, share, phi, kernel))


@every_backend
@pytest.mark.parametrize("rows", ["uniform", "heavy row", "one row"])
@pytest.mark.parametrize(("order", "rank", "precision", "form"), STANDARD_AND_WIDE)
def test_the_same_bits_every_time(backend: Device, order: int, rank: int, precision: str, form: str, rows: str) -> None:
    problem = Problem(order, rank, rows, 5003)
    share = problem.share(backend, precision)
    for phi, kernel in providers(backend, share, order, form):
        if kernel.repeatable:
            some = [run(backend, problem, share, phi, kernel, [2000]).tobytes() for _ in range(4)]
            sums = [logs(backend, problem, share, phi, kernel, [2000]) for _ in range(4)]
            assert len(set(some)) == len(set(sums)) == 1


@every_backend
@pytest.mark.parametrize("skipped", [0, 1])
def test_a_flag_has_it_skipped(backend: Device, skipped: int) -> None:
    problem = rounded(Problem(*STANDARD[0][:2]), "fp32")
    share = problem.share(backend, "fp32")
    inputs, own = problem.inputs(backend, share), padded(backend, share, problem.factors[0])
    skip = backend.to_device(np.array([skipped], np.int32))
    for phi, kernel in providers(backend, share):
        out, shard = backend.empty((len(problem.expected), share.stride), np.float64), problem.shard(share, kernel)
        out[:] = np.nan
        scratch = scratch_of(backend, phi, kernel, share, shard.nnz)
        phi.run(shard, Operands(inputs, own, out, scratch), PhiParams(FLOOR, skip), slice(0, len(out)))
        backend.synchronize()
        got = backend.to_host(out)[:, : STANDARD[0][1]]
        if skipped:
            assert np.all(np.isnan(got))
        else:
            check(got, problem, "fp32")


def test_oracle_of_the_loglikelihood() -> None:
    """By its definition over a dense tensor: x log m - m."""
    problem = Problem(3, 4, "one row", 50)
    shape = tuple(len(f) for f in problem.factors)
    dense, model = np.zeros(shape), np.einsum("iz,jz,kz->ijk", *problem.factors)
    np.add.at(dense, tuple(problem.columns), problem.values)
    got = loglikelihood(problem.columns, problem.values, problem.factors)
    assert got == pytest.approx(float(np.sum(dense * np.log(model) - model)), rel=1e-12)
