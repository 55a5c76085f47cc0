"""CP-APR row by row: PDNR and PQNR, on one process."""

from __future__ import annotations

import json
from itertools import product, starmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command import run_amped
from counts import by_rows, random_counts
from forms import exhaustive
from oracle import PRECISIONS, random_factors, small_pieces

import amped
from amped.backend.exchange import Machine, connect
from amped.backend.null.device import NullDevice
from amped.backend.ops.cast16 import CAST16
from amped.backend.ops.phi import PHI
from amped.errors import InputError
from amped.methods.apr import CpApr
from amped.methods.driver import StopRule, iterate
from amped.methods.poisson import Poisson
from amped.operators.products import Mttkrp, Phi
from amped.operators.sources.sparse import TensorSource
from amped.options import Options
from amped.parallel.mpi import Comm, world
from amped.runs.assembly import begin, bring_up, counts, open_tensor

pytestmark = pytest.mark.in_turn

SHAPES = [(9, 7), (6, 5, 8), (4, 6, 5, 3), (3, 4, 3, 4, 3), (3, 3, 4, 3, 3, 3)]
CASES = [
    *product(SHAPES[1:2], [1, 3]),
    (SHAPES[2], 5),
    *starmap(exhaustive, [*product(SHAPES[:1], [1, 3]), *product(SHAPES[:2], [7]), *product(SHAPES[2:], [1, 3, 7])]),
]
"""Shapes and numbers of components of tests against an oracle."""
TENSOR = random_counts(7, (12, 9, 10))
METHODS = pytest.mark.parametrize("method", ["pdnr", "pqnr"])
SERIES = "loglikelihood", "kkt", "inner_iterations"


@METHODS
@pytest.mark.parametrize(("shape", "rank"), CASES)
@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_the_same_path_as_an_oracle(
    device: str, method: Any, shape: tuple[int, ...], rank: int, placement: Any
) -> None:
    """Also of rows whose nonzeros lie in several shards."""
    tensor, start = random_counts(len(shape), shape), random_factors(0, shape, rank)
    want = by_rows(tensor, start, 5, method)
    with small_pieces(20):
        model = amped.cp_apr(
            tensor,
            rank,
            init=start,
            max_iters=5,
            precision="fp64",
            device=device,
            placement=placement,
            method=method,
            mu_iters=0,
        )
    np.testing.assert_allclose(model.series["loglikelihood"], want.loglikelihood, rtol=1e-9)
    np.testing.assert_allclose(model.full(), want.model, rtol=1e-6, atol=1e-8)


@METHODS
def test_the_first_iterations_are_those_of_mu(device: str, method: Any) -> None:
    """Then its model is where rows begin, as if it had been given."""
    how: dict[str, Any] = {"precision": "fp64", "device": device, "tol": 0}
    first = amped.cp_apr(TENSOR, 3, max_iters=3, **how)
    found = amped.cp_apr(TENSOR, 3, max_iters=6, method=method, **how)
    assert found.series["loglikelihood"][:3] == first.series["loglikelihood"]
    start = [first.factors[0] * first.weights, *first.factors[1:]]
    then = amped.cp_apr(TENSOR, 3, init=start, max_iters=3, method=method, mu_iters=0, **how)
    np.testing.assert_allclose(found.series["loglikelihood"][3:], then.series["loglikelihood"], rtol=1e-9)


@METHODS
@pytest.mark.parametrize("precision", PRECISIONS)
def test_columns_have_unit_sums_and_weights_the_counts(device: str, method: Any, precision: Any) -> None:
    model = amped.cp_apr(TENSOR, 4, max_iters=60, device=device, precision=precision, method=method)
    assert np.all(np.diff(model.weights) <= 0)
    assert model.weights.sum() == pytest.approx(TENSOR.values.sum(), rel=1e-4), "as of every Poisson model"
    for factor in model.factors:
        assert np.all(factor >= 0)
        np.testing.assert_allclose(factor.sum(axis=0, dtype=float), 1, atol={"fp32": 1e-5, "fp64": 1e-12}[precision])
        assert np.all(factor[-1] == 0), "an empty row"


@METHODS
def test_the_log_likelihood_never_falls(device: str, method: Any) -> None:
    found = amped.cp_apr(TENSOR, 4, max_iters=40, tol=0, device=device, precision="fp64", method=method)
    series = np.array(found.series["loglikelihood"])
    assert np.all(np.diff(series) >= -1e-12 * abs(series[-1]))


@METHODS
def test_it_converges_when_no_row_is_updated(device: str, method: Any) -> None:
    model = amped.cp_apr(TENSOR, 1, max_iters=100, device=device, precision="fp64", method=method)
    assert model.converged
    assert model.series["inner_iterations"][-1] == 0 < model.series["inner_iterations"][-2]
    assert model.series["kkt"][-1] < 1e-4


@METHODS
def test_zeros_rise_again(device: str, method: Any) -> None:
    start = random_factors(3, TENSOR.shape, 2)
    start[0][:4] = 0
    found = amped.cp_apr(TENSOR, 2, init=start, max_iters=3, device=device, precision="fp64", method=method, mu_iters=0)
    assert np.all(found.factors[0][:4].sum(axis=1) > 0)
    want = by_rows(TENSOR, start, 3, method)
    np.testing.assert_allclose(found.series["loglikelihood"], want.loglikelihood, rtol=1e-9)


@METHODS
@pytest.mark.parametrize("rank", [1, 4, exhaustive(20)])
def test_a_tensor_of_one_nonzero(device: str, method: Any, rank: int) -> None:
    tensor = amped.SparseTensor([[1, 0, 2]], [5.0], (2, 3, 4))
    model = amped.cp_apr(tensor, rank, max_iters=30, device=device, precision="fp64", method=method)
    assert model.full()[1, 0, 2] == pytest.approx(5, rel=1e-3)
    assert np.count_nonzero(model.full() > 1e-6) == 1


@METHODS
def test_a_command_goes_on_from_a_checkpoint(method: str, tmp_path: Path) -> None:
    tensor = written(tmp_path)
    how = ["--rank", 3, "--loss", "poisson", "--method", method, "--tol", 0, "--device", "cpu", "--quiet"]

    def run(*flags: object, code: int = 0) -> Any:
        result = run_amped("cpd", tensor, *how, *flags, "--output", tmp_path / "out", "--force")
        assert result.code == code, result.err
        return result.err if code else json.loads((tmp_path / "out" / "run.json").read_text())

    straight = run("--max-iters", 7)
    run("--max-iters", 3, "--checkpoint", tmp_path / "c")
    found = run("--max-iters", 7, "--checkpoint", tmp_path / "c", "--resume")
    for name in SERIES:
        assert found[name] == straight[name]
    assert (found["method"], found["loss"], found["norm"]) == (method, "poisson", 1)
    how[5] = "mu"
    assert f"made with method {method}, this run has mu" in run(
        "--max-iters", 7, "--checkpoint", tmp_path / "c", "--resume", code=2
    )


def method_on(machine: Machine, method: Any) -> CpApr:
    options = Options("cpu", precision="fp64")
    found = counts(open_tensor(TENSOR, machine, options), 3, machine, options, Poisson(method=method))
    begin(found, TensorSource(TENSOR, machine.comm), seed=5)
    return found


@METHODS
@pytest.mark.parametrize("iterations", [2, 3, exhaustive(4)])
@pytest.mark.parametrize("modes", [1, 2])
def test_a_run_goes_on_as_if_it_had_not_stopped(comm: Comm, method: Any, iterations: int, modes: int) -> None:
    """After some modes of an iteration, MU's and others, as checkpoints keep it; on a device that queues work."""
    machine = connect(NullDevice(comm), comm)
    straight, first, second = (method_on(machine, method) for _ in range(3))
    list(iterate(straight, StopRule(7, 0)))
    list(iterate(first, StopRule(iterations, 0)))
    params = iter([False] * (modes - 1) + [True])
    assert not first.step(lambda: next(params))
    state, factors = first.state.copy(), [first.factor(mode) for mode in range(3)]
    assert state.mode == modes
    second.restart(state)
    for mode, factor in enumerate(factors):
        second.operator.set_factor(mode, factor)
    list(iterate(second, StopRule(7, 0)))
    assert second.state.series == straight.state.series
    for mode in range(3):
        assert second.factor(mode).tobytes() == straight.factor(mode).tobytes()


def written(folder: Path) -> Path:
    rows = np.column_stack([TENSOR.indices + 1, TENSOR.values.astype(int)])
    np.savetxt(folder / "t.tns", rows, fmt="%d")
    return folder / "t.tns"


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (
            ["--method", "pdnr"],
            "method 'pdnr' does not apply to loss 'gaussian': use 'als', 'lbfgs', 'newton', 'adam', 'sgd' or 'adagrad'",
        ),
        (
            ["--loss", "gamma", "--method", "pdnr"],
            "method 'pdnr' does not apply to loss 'gamma': use 'lbfgs', 'newton', 'adam', 'sgd' or 'adagrad'",
        ),
        (["--loss", "poisson", "--method", "pdnr", "--kappa", "0.1"], "--kappa requires --method mu"),
        (["--loss", "poisson", "--method", "pqnr", "--kappa-tol", "0.1"], "--kappa-tol requires --method mu"),
        (["--loss", "poisson", "--mu-iters", "3"], "--mu-iters requires --method pdnr or pqnr"),
        (["--loss", "poisson", "--method", "pdnr", "--mu-iters", "-1"], "mu iters -1: expected"),
        (
            ["--loss", "poisson", "--method", "pdnr", "--kernel", "blocked"],
            "does not support 'pdnr': segmented",
        ),
    ],
)
def test_flags_that_do_not_go_together(tmp_path: Path, flags: list[str], cause: str) -> None:
    result = run_amped("cpd", written(tmp_path), "--rank", "2", "--device", "cpu", *flags)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert cause in result.err


def test_a_method_that_is_not_there() -> None:
    with pytest.raises(InputError, match="method is 'newton': expected 'mu', 'pdnr' or 'pqnr'"):
        amped.cp_apr(TENSOR, 2, device="cpu", method="newton")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["mu", "pdnr"])
def test_phi_has_no_narrow_matrices(monkeypatch: pytest.MonkeyPatch, method: Any) -> None:
    """Of devices that have them for MTTKRPs: what is wrong is not the kernel, or the number of components."""
    monkeypatch.setattr(CAST16, "providers", lambda device: [SimpleNamespace(name="bf16")])
    monkeypatch.setattr(PHI, "providers", lambda device: [])
    with pytest.raises(InputError, match="gather 'bf16': Phi requires gather 'full'"):
        amped.cp_apr(TENSOR, 2, device="cpu", method=method, gather="bf16")


def test_a_plan_counts_row_problems(tmp_path: Path) -> None:
    how = "--rank", "4", "--loss", "poisson", "--device", "cpu"
    plain = run_amped("plan", written(tmp_path), *how)
    rows = run_amped("plan", written(tmp_path), *how, "--method", "pdnr")
    assert (plain.code, rows.code) == (0, 0)
    assert "row problems" in rows.out
    assert "row problems" not in plain.out


@pytest.mark.parametrize("method", ["mu", "pdnr"])
def test_kernels_are_chosen_by_the_time_of_phi(monkeypatch: pytest.MonkeyPatch, method: Any) -> None:
    """Nothing else is computed of shards, not even to compile it."""
    timed = list[str]()
    run = Phi.run

    def timing(self: Phi, shard: Any, *rest: Any, **how: Any) -> None:
        timed.append(shard.kernel.name)
        run(self, shard, *rest, **how)

    monkeypatch.setattr(Mttkrp, "run", None)
    monkeypatch.setattr(Phi, "run", timing)
    chosen = Options("cpu", precision="fp64")
    machine = bring_up(chosen, world())
    counts(open_tensor(TENSOR, machine, chosen), 3, machine, chosen, Poisson(method=method))
    assert len(timed) >= 3, "of each mode"
