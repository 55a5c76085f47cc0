"""Iterations that a device computes ahead of the host: as those in which the host takes part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from denseblocks import use_dimension_trees
from forms import exhaustive
from oracle import PRECISIONS, make_operator, random_factors, small_pieces

import amped
from amped.backend.cpu.ops.dense import providers as cpu_dense
from amped.backend.cuda import probe
from amped.backend.exchange import connect
from amped.backend.null.device import NullDevice
from amped.backend.ops.dense import DENSE
from amped.methods.als import CpAls
from amped.methods.constraints import ConstraintParams
from amped.methods.driver import StopRule, iterate
from amped.methods.pipelined import Pipelined
from amped.methods.starts import best_of
from amped.operators.sparse.operator import SparseOperator
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs.assembly import bring_up, open_tensor, place, solving_bytes
from amped.runs.checkpoint import Origin, checkpoint_of
from partitioner.tensors.dense import DenseTensor

SHAPE = (12, 9, 10)
CONSTRAINTS = [
    ConstraintParams(nonnegative=True),
    ConstraintParams(nonnegative=(1,)),
    ConstraintParams(ridge=0.4),
    ConstraintParams(nonnegative=(0,), ridge=0.4),
    ConstraintParams(nonnegative=True, fixed_modes=(1,), ridge=0.2),
    ConstraintParams(fixed_modes=(0,)),
]


def tensor_of(dense: np.ndarray) -> amped.SparseTensor:
    return amped.SparseTensor(np.argwhere(dense), dense[dense != 0], dense.shape)


def random_tensor(seed: int, shape: tuple[int, ...] = SHAPE) -> amped.SparseTensor:
    rng = np.random.default_rng(seed)
    return tensor_of(np.where(rng.random(shape) < 0.4, rng.standard_normal(shape) + 0.5, 0))


@pytest.fixture(params=["null", pytest.param("cuda", marks=pytest.mark.gpu)])
def where(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and (missing := probe()):
        pytest.skip(missing)
    return str(request.param)


def operator_of(tensor: amped.SparseTensor, start: list[np.ndarray], where: str, comm: Comm, **how: Any) -> Any:
    if where == "null":
        return make_operator(tensor, start, connect(NullDevice(comm), comm), deterministic=True, **how)
    return make_operator(tensor, start, comm, device="cuda", deterministic=True, **how)


def methods(tensor: amped.SparseTensor, rank: int, where: str, comm: Comm, **how: Any) -> tuple[CpAls, CpAls]:
    """Return a method that goes ahead, and one in which the host takes part in each iteration."""
    start = how.pop("start", None) or random_factors(3, tensor.shape, rank)
    constraints = how.pop("wanted", ConstraintParams()).of(len(tensor.shape))
    ahead, checked = (CpAls(operator_of(tensor, start, where, comm, **how), constraints) for _ in range(2))
    assert ahead._pipelined is not None
    checked._pipelined = None
    return ahead, checked


def assert_equal(one: CpAls, other: CpAls) -> None:
    assert one.state.series == other.state.series
    assert one.state.iterations == other.state.iterations
    for name, array in one.state.arrays.items():
        assert np.array_equal(array, other.state.arrays[name]), name
    for mode in range(one.operator.order):
        assert one.factor(mode).tobytes() == other.factor(mode).tobytes()


@pytest.mark.parametrize(
    ("shape", "rank", "precision"),
    [
        (SHAPE, 1, "fp64"),
        (SHAPE, 7, "fp32"),
        *(exhaustive(shape, 7, how) for shape in [(9, 7), (4, 6, 5, 3), (3, 3, 4, 3, 3, 3)] for how in PRECISIONS),
    ],
)
def test_every_bit_is_the_same(comm: Comm, where: str, shape: tuple[int, ...], rank: int, precision: str) -> None:
    ahead, checked = methods(random_tensor(1, shape), rank, where, comm, precision=precision)
    both = zip(iterate(ahead, StopRule(9, 0)), iterate(checked, StopRule(9, 0)), strict=True)
    for _ in both:
        assert_equal(ahead, checked)
    assert ahead.state.iterations == 9


@pytest.mark.parametrize(
    ("shape", "precision"),
    [(SHAPE, "fp64"), exhaustive((9, 7), "fp32"), exhaustive(SHAPE, "fp32"), exhaustive((4, 6, 5, 3), "fp32")],
)
@pytest.mark.parametrize("wanted", CONSTRAINTS, ids=str)
def test_every_bit_is_the_same_under_constraints(
    comm: Comm, where: str, shape: tuple[int, ...], wanted: ConstraintParams, precision: str, returns: list[int]
) -> None:
    ahead, checked = methods(random_tensor(1, shape), 4, where, comm, precision=precision, wanted=wanted)
    for _ in zip(iterate(ahead, StopRule(9, 0)), iterate(checked, StopRule(9, 0)), strict=True):
        assert_equal(ahead, checked)
    assert ahead.state.iterations == 9
    assert len(returns) < 4, "the host is not asked in each iteration"
    assert ("objective" in ahead.state.series) == (wanted.ridge > 0)


@pytest.mark.parametrize("precision", [exhaustive("fp32"), "fp64"])
@pytest.mark.parametrize(
    "wanted", [ConstraintParams(), ConstraintParams(ridge=0.4), ConstraintParams(fixed_modes=(0,))], ids=str
)
def test_every_bit_is_the_same_of_many_columns(
    comm: Comm, where: str, wanted: ConstraintParams, precision: str, returns: list[int]
) -> None:
    tensor = random_tensor(1, (30, 28, 26))
    ahead, checked = methods(tensor, 130, where, comm, precision=precision, wanted=wanted)
    for _ in zip(iterate(ahead, StopRule(6, 0)), iterate(checked, StopRule(6, 0)), strict=True):
        assert_equal(ahead, checked)
    assert ahead.state.iterations == 6
    assert len(returns) < 3, "the host is not asked in each iteration"


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    "wanted",
    [ConstraintParams(), ConstraintParams(nonnegative=(1,), ridge=0.4), ConstraintParams(fixed_modes=(0,))],
    ids=str,
)
def test_iterations_of_dense_tensors_take_turns(
    comm: Comm, where: str, whole: bool, wanted: ConstraintParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is computed at the end of one iteration serves the next: so two kinds of them are noted down."""
    use_dimension_trees(monkeypatch)
    own = DENSE.providers
    monkeypatch.setattr(DENSE, "providers", lambda device: own(device) or cpu_dense(device))
    rng = np.random.default_rng(0)
    array = np.einsum("ir,jr,kr->ijk", *(rng.random((n, 4)) for n in (60, 62, 64))) + rng.random((60, 62, 64))
    workspace = None if whole else 600_000 if where == "null" else 2_000_000
    options = Options(precision="fp64", device="cpu" if where == "null" else where, workspace=workspace)
    machine = connect(NullDevice(comm), comm) if where == "null" else bring_up(options, comm)
    found = []
    for can_pipeline in (True, False):
        source = open_tensor(DenseTensor(array), machine, options)
        operator = place(source, 40, machine, options, solving_bytes(machine, options, 3))
        for mode, factor in enumerate(random_factors(3, array.shape, 40)):
            operator.set_factor(mode, factor)
        method = CpAls(operator, wanted.of(3))
        assert method._pipelined is not None
        replays = method._pipelined._replays
        method._pipelined = method._pipelined if can_pipeline else None
        for _ in iterate(method, StopRule(9, 0)):
            pass
        found.append(method)
        if can_pipeline:
            kinds = {begins for _, begins in replays}
            assert len(kinds) == (1 if wanted.fixed_modes else 2), "only two modes need a product in each iteration"
    assert_equal(*found)


@pytest.mark.parametrize("tol", [1e-3, 1e-5])
def test_the_model_is_that_of_the_iteration_that_converged(comm: Comm, where: str, tol: float) -> None:
    ahead, checked = methods(random_tensor(2), 3, where, comm)
    for method in (ahead, checked):
        for _ in iterate(method, StopRule(200, tol)):
            pass
    assert ahead.state.converged
    assert 3 < ahead.state.iterations < 200
    assert_equal(ahead, checked)
    for one, other in zip(ahead.model().factors, checked.model().factors, strict=True):
        assert one.tobytes() == other.tobytes()


def test_no_iteration_is_launched_that_nobody_wants(comm: Comm, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, _ = methods(random_tensor(2), 3, where, comm)
    launched, noted = [], Pipelined._captured

    def counted(self: Pipelined, *which: Any) -> Any:
        replay = noted(self, *which)
        launch = replay.launch
        replay.launch = lambda: launched.append(1) or launch()  # type: ignore[method-assign, func-returns-value]
        return replay

    monkeypatch.setattr(Pipelined, "_captured", counted)
    for _ in iterate(ahead, StopRule(6, 0)):
        pass
    assert len(launched) == 5, "all but the first"


def test_a_checkpoint_is_of_the_iteration_that_was_reported(comm: Comm, where: str) -> None:
    ahead, checked = methods(random_tensor(4), 4, where, comm)
    for _ in zip(iterate(ahead, StopRule(5, 0)), iterate(checked, StopRule(5, 0)), strict=True):
        one, other = (checkpoint_of(method, Origin({}, 0, None, {})) for method in (ahead, checked))
        assert one.name == other.name
        for mine, theirs in zip(one.factors, other.factors, strict=True):
            assert mine.tobytes() == theirs.tobytes()


@pytest.fixture
def returns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where the device went back: the iterations that were whole by then."""
    found, back = list[int](), Pipelined.back
    monkeypatch.setattr(Pipelined, "back", lambda self: found.append(1) or back(self))  # type: ignore[func-returns-value]
    return found


def near(seed: int) -> amped.SparseTensor:
    factors = random_factors(seed, SHAPE, 4)
    return tensor_of(np.einsum("ar,br,cr->abc", *factors))


@pytest.mark.parametrize(
    "wanted", [ConstraintParams(), ConstraintParams(nonnegative=True), ConstraintParams(ridge=0.1)], ids=str
)
def test_fits_near_1_take_their_exact_pass_ahead_of_the_host(
    comm: Comm, where: str, wanted: ConstraintParams, returns: list[int]
) -> None:
    ahead, checked = methods(near(8), 2, where, comm, wanted=wanted)
    for _ in zip(iterate(ahead, StopRule(12, 0)), iterate(checked, StopRule(12, 0)), strict=True):
        assert_equal(ahead, checked)
    assert ahead._exact
    assert len(returns) <= 2, "the host is needed when fits come near, not in each iteration"


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning")
@pytest.mark.parametrize(
    "wanted", [ConstraintParams(), ConstraintParams(nonnegative=True), ConstraintParams(ridge=1e-9)], ids=str
)
def test_columns_that_grow_too_long_are_solved_again(
    comm: Comm, where: str, wanted: ConstraintParams, returns: list[int]
) -> None:
    rng = np.random.default_rng(0)
    shape = (4, 5, 6)
    tensor = tensor_of(1e9 * (1 + 1e-3 * rng.random(shape)))
    start = [1 + 1e-4 * rng.random((n, 3)) for n in shape]
    ahead, checked = methods(tensor, 3, where, comm, start=start, wanted=wanted)
    for _ in zip(iterate(ahead, StopRule(20, 0)), iterate(checked, StopRule(20, 0)), strict=True):
        assert_equal(ahead, checked)
    assert returns


@pytest.mark.filterwarnings("ignore:overflow encountered in dot:RuntimeWarning")
@pytest.mark.parametrize("rank", [7, exhaustive(9), exhaustive(30)])
def test_more_components_than_rows_hardly_go_ahead(comm: Comm, where: str, rank: int, returns: list[int]) -> None:
    """The host inverts singular matrices; it is polled less often the more often it was needed."""
    ahead, checked = methods(random_tensor(5, (2, 2, 2)), rank, where, comm, precision="fp64")
    for _ in zip(iterate(ahead, StopRule(40, 0)), iterate(checked, StopRule(40, 0)), strict=True):
        assert_equal(ahead, checked)
    assert 0 < len(returns) < 20


def test_what_is_no_number_ends_the_run(comm: Comm, where: str) -> None:
    ahead, _ = methods(random_tensor(6), 3, where, comm)
    iterations = iterate(ahead, StopRule(9, 0))
    next(iterations)
    next(iterations)
    ahead.operator.work.factors[1][0, 0] = np.nan  # type: ignore[attr-defined]
    with pytest.raises(ArithmeticError, match="finite"):
        for _ in iterations:
            pass


def test_where_something_passes_through_the_host_takes_part(comm: Comm, where: str) -> None:
    start = random_factors(3, SHAPE, 4)
    with small_pieces(50):
        operator = operator_of(random_tensor(1), start, where, comm, placement="stream")
    assert CpAls(operator)._pipelined is None


def test_where_there_is_no_room_for_a_second_copy_the_host_takes_part(comm: Comm, where: str) -> None:
    start = random_factors(3, SHAPE, 4)
    whole: SparseOperator = operator_of(random_tensor(1), start, where, comm)
    assert whole.plan.pipelined
    planned = whole.plan.device_bytes
    enough = sum(planned.values()) - planned["factor matrices before"] // 2
    short = operator_of(random_tensor(1), start, where, comm, device_memory=enough)
    assert not short.plan.pipelined
    fits = [state.series["fit"][-1] for state in iterate(CpAls(short), StopRule(4, 0))]
    assert fits == [state.series["fit"][-1] for state in iterate(CpAls(whole), StopRule(4, 0))]


@pytest.mark.parametrize("tol", [0, 1e-2])
def test_another_start_is_as_if_it_were_the_first(comm: Comm, where: str, tol: float) -> None:
    """What was launched in vain before does not matter."""
    tensor, starts = random_tensor(1), [random_factors(seed, SHAPE, 5) for seed in (3, 4)]
    again, fresh = (CpAls(operator_of(tensor, starts[k], where, comm)) for k in (0, 1))
    assert again._pipelined is not None
    list(iterate(again, StopRule(9, tol)))
    again.restart()
    for mode, factor in enumerate(starts[1]):
        again.operator.set_factor(mode, factor)
    for method in (again, fresh):
        list(iterate(method, StopRule(9, tol)))
    assert_equal(again, fresh)


def test_the_best_of_some_starts_is_left_as_it_was(comm: Comm, where: str) -> None:
    tensor, starts = random_tensor(1), [random_factors(seed, SHAPE, 5) for seed in range(4)]
    method, each = CpAls(operator_of(tensor, starts[0], where, comm)), []

    def begin(number: int) -> None:
        for mode, factor in enumerate(starts[number]):
            method.operator.set_factor(mode, factor)

    def go() -> None:
        list(iterate(method, StopRule(9, 1e-3)))
        each.append(method.model())

    best, merits = best_of(method, len(starts), begin, go)
    assert merits == [model.fits[-1] for model in each]
    assert best == int(np.argmax(merits))
    found = method.model()
    assert found.fits == each[best].fits
    assert all(np.array_equal(a, b) for a, b in zip(found.factors, each[best].factors, strict=True))
    best_of(method, 3, begin, go, lambda: len(each) == 6)
    assert len(each) == 6, "it was stopped after the second"


def test_the_bytes_of_each_iteration_are_counted(comm: Comm, where: str) -> None:
    """Although the work is queued once and repeated, and the next iteration is under way."""
    ahead, _ = methods(random_tensor(1), 3, where, comm)
    traffic, pipelined = ahead.operator.machine.exchange.traffic, ahead._pipelined
    assert pipelined is not None
    queue = pipelined._queue

    def counted(exact: bool) -> None:
        traffic.nbytes += 7
        queue(exact)

    pipelined._queue = counted
    taken = [traffic.take() for _ in iterate(ahead, StopRule(8, 0))]
    assert taken[2:] == [7] * 6
