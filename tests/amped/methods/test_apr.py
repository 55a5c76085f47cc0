"""CP-APR by multiplicative updates, on one process."""

from __future__ import annotations

import gc
import json
import weakref
from itertools import product, starmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run_amped
from counts import REFERENCES, assert_the_reference, mu, random_counts
from forms import exhaustive
from oracle import PRECISIONS, random_factors, small_pieces

import amped
from amped.backend.cuda import probe
from amped.backend.exchange import Machine, connect
from amped.backend.null.device import NullDevice
from amped.errors import InputError
from amped.methods import arranged
from amped.methods.apr import CpApr
from amped.methods.driver import StopRule, iterate
from amped.methods.poisson import Poisson
from amped.operators.sources.sparse import TensorSource
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs.assembly import begin, bring_up, counts, open_tensor

SHAPES = [(9, 7), (6, 5, 8), (4, 6, 5, 3), (3, 4, 3, 4, 3), (3, 3, 4, 3, 3, 3)]
CASES = [
    *product(SHAPES[1:2], [1, 3]),
    (SHAPES[2], 5),
    *starmap(exhaustive, [*product(SHAPES[:1], [1, 3]), *product(SHAPES[:2], [7]), *product(SHAPES[2:], [1, 3, 7])]),
]
"""Shapes and numbers of components of tests against an oracle."""
TENSOR = random_counts(7, (12, 9, 10))


@pytest.mark.parametrize(
    ("name", "rank", "precision"),
    [
        ("nations_3d", 8, "fp32"),
        *(
            exhaustive(name, rank, precision)
            for (name, rank), precision in product(REFERENCES, PRECISIONS)
            if (name, precision) != ("nations_3d", "fp32")
        ),
    ],
)
def test_the_reference_results(device: str, name: str, rank: int, precision: str) -> None:
    assert_the_reference(name, rank, precision, device=device)


@pytest.mark.parametrize(("shape", "rank"), CASES)
@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_the_same_path_as_an_oracle(device: str, shape: tuple[int, ...], rank: int, placement: Any) -> None:
    tensor, start = random_counts(len(shape), shape), random_factors(0, shape, rank)
    want = mu(tensor, start, 6)
    with small_pieces(20):
        model = amped.cp_apr(
            tensor, rank, init=start, max_iters=6, precision="fp64", device=device, placement=placement
        )
    for name in ("loglikelihood", "kkt", "inner_iterations"):
        np.testing.assert_allclose(model.series[name], getattr(want, name), rtol=1e-9, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(model.full(), want.model, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_columns_have_unit_sums_and_weights_the_counts(device: str, precision: Any) -> None:
    model = amped.cp_apr(TENSOR, 4, max_iters=20, device=device, precision=precision)
    accuracy = {"fp32": 1e-5, "fp64": 1e-12}[precision]
    assert np.all(np.diff(model.weights) <= 0)
    assert model.weights.sum() == pytest.approx(TENSOR.values.sum(), rel=accuracy), "as of every Poisson model"
    for factor in model.factors:
        assert np.all(factor >= 0)
        np.testing.assert_allclose(factor.sum(axis=0, dtype=float), 1, atol=accuracy)
        assert np.all(factor[-1] == 0), "an empty row"


def test_the_log_likelihood_never_falls(device: str) -> None:
    found = amped.cp_apr(TENSOR, 4, max_iters=40, tol=0, kappa=0, device=device, precision="fp64")
    assert np.all(np.diff(found.series["loglikelihood"]) >= -1e-9 * abs(found.series["loglikelihood"][-1]))


def test_it_converges_when_no_mode_is_updated(device: str) -> None:
    model = amped.cp_apr(TENSOR, 1, max_iters=100, device=device, precision="fp64")
    assert model.converged
    assert model.series["inner_iterations"][-1] == 0 < model.series["inner_iterations"][-2]
    assert model.series["kkt"][-1] < 1e-4
    total = TENSOR.values.sum()
    expected = [
        np.bincount(column, TENSOR.values, n) / total for column, n in zip(TENSOR.columns, TENSOR.shape, strict=True)
    ]
    for factor, want in zip(model.factors, expected, strict=True):  # one component: the product of the margins
        np.testing.assert_allclose(factor[:, 0], want, atol=1e-6)


def test_a_zero_that_should_not_be_is_shifted(device: str) -> None:
    start = random_factors(3, TENSOR.shape, 2)
    start[0][:4] = 0
    stuck = amped.cp_apr(TENSOR, 2, init=start, max_iters=10, kappa=0, device=device, precision="fp64")
    free = amped.cp_apr(TENSOR, 2, init=start, max_iters=10, device=device, precision="fp64")
    assert np.all(stuck.factors[0][:4] == 0)
    assert np.all(free.factors[0][:4].sum(axis=1) > 0)
    want = mu(TENSOR, start, 10)
    np.testing.assert_allclose(free.series["loglikelihood"], want.loglikelihood, rtol=1e-9)


@pytest.mark.parametrize("rank", [1, 4, exhaustive(20)])
def test_a_tensor_of_one_nonzero(device: str, rank: int) -> None:
    tensor = amped.SparseTensor([[1, 0, 2]], [5.0], (2, 3, 4))
    model = amped.cp_apr(tensor, rank, max_iters=30, device=device, precision="fp64")
    assert model.full()[1, 0, 2] == pytest.approx(5, rel=1e-3)
    assert np.count_nonzero(model.full() > 1e-6) == 1


def test_other_numbers_of_updates_and_constants() -> None:
    model = amped.cp_apr(TENSOR, 3, max_iters=4, inner_iters=2, tol=0, device="cpu")
    assert model.series["inner_iterations"] == (6, 6, 6, 6)
    for how in ({"inner_iters": 0}, {"eps": 0}, {"kappa": -1}, {"kappa_tol": "x"}, {"tol": -1}):
        with pytest.raises(InputError, match=next(iter(how)).replace("_", ".")):
            amped.cp_apr(TENSOR, 3, device="cpu", **how)  # type: ignore[arg-type]


def test_negative_values_and_starts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.tns").write_text("# counts\n1 1 1 2\n\n2 1 2 -3.5\n2 2 2 -1\n")
    with pytest.raises(InputError, match=r"t\.tns, line 4: a value is -3\.5: counts .* must not be negative"):
        amped.cp_apr(str(tmp_path / "t.tns"), 2, device="cpu")
    with pytest.raises(InputError, match=r"^a value is -1: "):
        amped.cp_apr(amped.SparseTensor([[0, 0]], [-1.0]), 2, device="cpu")
    start = random_factors(0, TENSOR.shape, 2)
    start[1][3, 1] = -0.25
    with pytest.raises(InputError, match=r"init: the matrix of mode 1 has a negative entry, -0\.25"):
        amped.cp_apr(TENSOR, 2, init=start, device="cpu")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_starts_that_the_device_scales(device: str, precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those that are scaled in host memory; a GPU scales large ones, in blocks of rows."""
    wanted = amped.cp_apr(TENSOR, 4, max_iters=3, tol=0, device=device, precision=precision)
    monkeypatch.setattr(arranged, "LARGE", 0)
    monkeypatch.setattr(arranged, "AT_ONCE", 200)
    found = amped.cp_apr(TENSOR, 4, max_iters=3, tol=0, device=device, precision=precision)
    rtol = 1e-12 if precision == "fp64" else 1e-4
    np.testing.assert_allclose(found.series["loglikelihood"], wanted.series["loglikelihood"], rtol=rtol)
    np.testing.assert_allclose(found.weights, wanted.weights, rtol=rtol)
    for one, other in zip(found.factors, wanted.factors, strict=True):
        np.testing.assert_allclose(one, other, rtol=10 * rtol, atol=rtol)


def test_eigenvectors_are_a_start(device: str) -> None:
    model = amped.cp_apr(TENSOR, 3, init="nvecs", max_iters=5, device=device)
    assert model.series["loglikelihood"][-1] > model.series["loglikelihood"][0]


def test_the_best_of_several_starts_is_kept() -> None:
    each = [amped.cp_apr(TENSOR, 3, seed=4 + k, max_iters=6, device="cpu", precision="fp64") for k in range(3)]
    best = max(each, key=lambda model: model.series["loglikelihood"][-1])
    found = amped.cp_apr(TENSOR, 3, seed=4, starts=3, max_iters=6, device="cpu", precision="fp64")
    assert found.series == best.series
    np.testing.assert_array_equal(found.factors[1], best.factors[1])


def test_a_kernel_without_phi_is_refused() -> None:
    with pytest.raises(InputError, match="kernel 'permuted' computes no Phi"):
        amped.cp_apr(TENSOR, 2, kernel="permuted", device="cpu")


@pytest.fixture(params=["null", pytest.param("cuda", marks=pytest.mark.gpu)])
def queues(request: pytest.FixtureRequest, comm: Comm) -> Machine:
    """A device that launches iterations as a whole."""
    if request.param == "cuda" and (missing := probe()):
        pytest.skip(missing)
    return connect(NullDevice(comm), comm) if request.param == "null" else bring_up(Options("cuda"), comm)


def method_on(machine: Machine) -> CpApr:
    options = Options(deterministic=True)
    found = counts(open_tensor(TENSOR, machine, options), 3, machine, options, Poisson())
    begin(found, TensorSource(TENSOR, machine.comm), seed=5)
    assert found._captures
    return found


def test_iterations_that_are_launched_as_a_whole(queues: Machine) -> None:
    whole, each = method_on(queues), method_on(queues)
    each._captures = False
    for _ in zip(iterate(whole, StopRule(9, 0)), iterate(each, StopRule(9, 0)), strict=True):
        assert whole.state.series == each.state.series
        for mode in range(3):
            assert whole.factor(mode).tobytes() == each.factor(mode).tobytes()
    assert whole._captured._replays
    assert not each._captured._replays


@pytest.mark.parametrize("modes", [0, 1, 2])
def test_a_run_goes_on_as_if_it_had_not_stopped(queues: Machine, modes: int) -> None:
    """After whole iterations, and after some modes of one: as checkpoints keep it."""
    straight, first = method_on(queues), method_on(queues)
    list(iterate(straight, StopRule(9, 0)))
    list(iterate(first, StopRule(4, 0)))
    first._captures, asked = False, iter([False] * max(0, modes - 1) + [True])
    if modes:
        assert not first.step(lambda: next(asked))
    state, factors = first.state.copy(), [first.factor(mode) for mode in range(3)]
    assert state.mode == modes
    second = method_on(queues)
    second.restart(state)
    for mode, factor in enumerate(factors):
        second.operator.set_factor(mode, factor)
    list(iterate(second, StopRule(9, 0)))
    assert second.state.series == straight.state.series
    for mode in range(3):
        assert second.factor(mode).tobytes() == straight.factor(mode).tobytes()


def test_a_command_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    tensor = tmp_path / "t.tns"
    rows = np.column_stack([TENSOR.indices + 1, TENSOR.values.astype(int)])
    np.savetxt(tensor, rows, fmt="%d")
    how = ["--rank", "3", "--loss", "poisson", "--tol", "0", "--device", "cpu", "--precision", "fp64", "--quiet"]

    def run(*flags: object) -> dict[str, Any]:
        result = run_amped("cpd", tensor, *how, *flags, "--output", tmp_path / "out", "--force")
        assert result.code == 0, result.err
        found: dict[str, Any] = json.loads((tmp_path / "out" / "run.json").read_text())
        return found

    straight = run("--max-iters", 7)
    run("--max-iters", 3, "--checkpoint", tmp_path / "c")
    found = run("--max-iters", 7, "--checkpoint", tmp_path / "c", "--resume")
    for name in ("loglikelihood", "kkt", "inner_iterations"):
        assert found[name] == straight[name]
    assert (found["method"], found["loss"], found["norm"]) == ("mu", "poisson", 1)


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (
            ["--method", "mu"],
            "method 'mu' does not apply to loss 'gaussian': use 'als', 'lbfgs', 'newton', 'adam', 'sgd' or 'adagrad'",
        ),
        (
            ["--loss", "poisson", "--method", "als"],
            "method 'als' does not apply to loss 'poisson': use 'mu', 'pdnr', 'pqnr', 'lbfgs', 'newton', 'adam', ",
        ),
        (["--kappa", "0.1"], "--kappa requires --method mu, pdnr or pqnr"),
        (["--loss", "poisson", "--method", "mu", "--ridge", "1"], "method 'mu' supports no holdout, ridge"),
        (["--loss", "poisson", "--inner-iters", "0"], "inner iters 0: expected"),
        (["--loss", "poisson", "--eps", "0"], "eps 0.0: expected a number above 0"),
    ],
)
def test_flags_that_do_not_go_together(tmp_path: Path, flags: list[str], cause: str) -> None:
    (tmp_path / "t.tns").write_text("1 1 2\n2 2 3\n")
    result = run_amped("cpd", tmp_path / "t.tns", "--rank", "2", "--device", "cpu", *flags)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert cause in result.err


def test_memory_is_given_back_when_a_method_is_dropped(comm: Comm) -> None:
    """At once, not when the garbage collector runs."""
    gc.collect()
    gc.disable()
    try:
        machine, options = connect(NullDevice(comm), comm), Options("cpu")
        method = counts(open_tensor(TENSOR, machine, options), 3, machine, options, Poisson())
        begin(method, TensorSource(TENSOR, comm))
        list(iterate(method, StopRule(3, 0)))
        held = [weakref.ref(each) for each in (method, method.operator)]
        del method
        assert [ref() for ref in held] == [None, None]
    finally:
        gc.enable()
