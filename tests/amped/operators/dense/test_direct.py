"""Small arrays without a plan: the results are those of `DenseOperator`."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amped
from amped.methods.als import CpAls
from amped.methods.driver import never
from amped.operators.dense import direct
from amped.operators.sparse.tuning import Budget
from amped.options import Options
from amped.parallel.mpi import world
from amped.runs.assembly import begin, bring_up, decomposition, open_tensor
from partitioner.tensors.dense import DenseTensor

pytestmark = pytest.mark.usefixtures("without_compiled_code")

SHAPES = [(6, 5), (4, 7, 3), (3, 2, 4, 5), (2, 3, 2, 3, 2)]


def placed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the list of the arrays that will be placed without a plan."""
    sources, begin = list[object](), direct.DirectDense.__init__

    def noted(self: direct.DirectDense, *args: Any) -> None:
        sources.append(self)
        begin(self, *args)

    monkeypatch.setattr(direct.DirectDense, "__init__", noted)
    return sources


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("how", [{}, {"nonnegative": [0]}, {"ridge": 0.1}], ids=["plain", "nonnegative", "ridge"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", SHAPES)
def test_as_with_a_plan(
    shape: tuple[int, ...], order: Any, how: dict[str, Any], precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, sources = np.array(np.random.default_rng(0).random(shape), order=order), placed(monkeypatch)
    models = []
    for numbers in (direct.NUMBERS, 0):
        monkeypatch.setattr(direct, "NUMBERS", numbers)
        models.append(amped.cp_als(X, 2, max_iters=6, tol=0, precision=precision, device="cpu", **how))
    one, other = models
    assert len(sources) == 1
    bound = 1e-12 if precision == "fp64" else 1e-6
    for name, numbers in other.series.items():
        np.testing.assert_allclose(one.series[name], numbers, rtol=bound, atol=bound)
    np.testing.assert_allclose(one.fits, other.fits, rtol=bound, atol=bound)
    for mine, theirs in zip(one.factors, other.factors, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e4 * bound, atol=1e3 * bound)
    assert one.run["kernels"] == other.run["kernels"]


def test_singular_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pseudo-inverse belongs to the equations of `LeastSquares`, which read the plan."""
    vectors = (np.random.default_rng(m).random((n, 1)) for m, n in enumerate((5, 6, 7)))
    X, sources = np.einsum("ir,jr,kr->ijk", *vectors), placed(monkeypatch)
    model = amped.cp_als(X, 3, precision="fp64", max_iters=12, tol=0, device="cpu")
    assert len(sources) == 1
    assert model.fits[-1] > 1 - 1e-6


def test_one_mode_solved_until_it_settles() -> None:
    rng = np.random.default_rng(0)
    factors = [rng.random((n, 2)) for n in (4, 5, 6)]
    X = np.einsum("ir,jr,kr->ijk", *factors)
    start = [rng.random((4, 2)), *factors[1:]]
    how: dict[str, Any] = {"fixed_modes": [1, 2], "nonnegative": True, "precision": "fp64", "device": "cpu"}
    model = amped.cp_als(X, 2, init=start, max_iters=1, **how)
    assert model.fits[-1] > 1 - 1e-9


def test_reports_checkpoints_and_callbacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, calls = np.random.default_rng(0).random((4, 5, 6)), list[tuple[int, float]]()
    how: dict[str, Any] = {"precision": "fp64", "tol": 0, "device": "cpu"}
    whole = amped.cp_als(X, 2, max_iters=6, **how)
    amped.cp_als(
        X, 2, max_iters=3, checkpoint=tmp_path / "c", metrics=tmp_path / "m.jsonl", verbose=True,
        callback=lambda number, fit: calls.append((number, fit)), **how,
    )  # fmt: skip
    assert [number for number, _ in calls] == [1, 2, 3]
    assert [fit for _, fit in calls] == list(whole.fits[:3])
    assert "4 x 5 x 6" in "".join(capsys.readouterr())
    assert '"split"' in (tmp_path / "m.jsonl").read_text()
    resumed = amped.cp_als(X, 2, max_iters=6, checkpoint=tmp_path / "c", resume=True, **how)
    np.testing.assert_allclose(resumed.fits, whole.fits, rtol=1e-12)


def test_a_run_stops_within_an_iteration() -> None:
    X, numbers = np.random.default_rng(0).random((4, 5, 6)), count()
    comm, options = world(), Options(device="cpu", precision="fp64")
    machine = bring_up(options, comm)

    def method() -> CpAls:
        source = open_tensor(DenseTensor(X), machine, options)
        result = decomposition(source, 2, machine, options, Budget(4))
        begin(result, source)
        return result

    whole, stopped = method(), method()
    assert isinstance(stopped.operator, direct.DirectDense)
    for _ in range(2):
        whole.step(never)
    stopped.step(never)
    assert not stopped.step(lambda: next(numbers) == 1)
    assert (stopped.state.iterations, stopped.state.mode) == (1, 2)
    stopped.step(never)
    assert (stopped.state.iterations, stopped.state.mode) == (2, 0)
    np.testing.assert_allclose(stopped.state.series["fit"], whole.state.series["fit"], rtol=1e-12)


@pytest.mark.parametrize("rank", [0, 5000])
def test_ranks_are_checked(rank: int) -> None:
    with pytest.raises(amped.errors.InputError, match="rank"):
        amped.cp_als(np.ones((2, 3, 4)), rank, device="cpu")


def test_infinite_elements_are_named() -> None:
    X = np.ones((2, 3, 4))
    X[1, 2, 3] = np.inf
    with pytest.raises(amped.errors.InputError, match=r"\[1, 2, 3\] is inf"):
        amped.cp_als(X, 2, device="cpu")
    with pytest.raises(amped.errors.InputError, match="beyond the range of float32"):
        amped.cp_als(np.full((2, 3, 4), 1e60), 2, precision="fp32", device="cpu")
