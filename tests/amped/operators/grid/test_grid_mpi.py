"""MTTKRPs on grids of ranks: blocks, sums within layers, split rows, placements, and CP-ALS."""

from __future__ import annotations

import logging
import math
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forms import exhaustive
from hypothesis import strategies as st
from oracle import (
    Case,
    cases,
    load,
    machine_of,
    make_operator,
    mttkrp_all,
    on_examples,
    random_factors,
    small_pieces,
    tensor_path,
)
from tensors import write_store

import amped
from amped.backend.exchange import Machine
from amped.errors import InputError
from amped.methods import als
from amped.methods.arranged import arranged
from amped.methods.updates import DivergedError, LeastSquares
from amped.models.kruskal import KruskalTensor
from amped.operators.grid.operator import GridOperator
from amped.operators.sources.sparse import open_source
from amped.parallel.calls import PATIENCE_SECONDS
from amped.parallel.mpi import Comm
from partitioner.tensors.sparse import SparseTensor

pytestmark = pytest.mark.mpi
SHAPE = (60, 35, 8)


@pytest.fixture(scope="module")
def machine(comm: Comm, device: str) -> Machine:
    """Used by many operators: connecting GPUs takes long."""
    return machine_of(device, comm)


def grids(order: int, ranks: int) -> list[str]:
    """Return all grids of these ranks."""
    every = product(*[[p for p in range(1, ranks + 1) if ranks % p == 0]] * order)
    return ["x".join(map(str, parts)) for parts in every if math.prod(parts) == ranks]


def tensor(skew: float = 1.2) -> SparseTensor:
    """Return a tensor with heavy rows, and empty rows at the end of mode 0."""
    rng = np.random.default_rng(3)
    columns = [np.minimum(rng.zipf(1 + skew, 4000), n) - 1 for n in (SHAPE[0] - 9, *SHAPE[1:])]
    return SparseTensor(np.stack(columns, 1), rng.integers(1, 6, 4000).astype(np.float64), SHAPE)


@pytest.mark.parametrize("placement", ["resident", exhaustive("stream")])
def test_any_tensor_on_any_grid(comm: Comm, machine: Any, placement: str) -> None:
    """Sums of integers are exact: every MTTKRP, and the factor matrix that is gathered, equal the oracle's."""

    def check(example: tuple[Case, int]) -> None:
        case, slot = example
        for grid in grids(len(case.shape), comm.size):
            with small_pieces(slot):
                operator: Any = make_operator(
                    case.tensor if comm.rank == 0 else None, case.factors, machine,
                    precision="fp64", placement=placement, grid=grid,
                )  # fmt: skip
            assert isinstance(operator, GridOperator)
            for mode, rows in enumerate(mttkrp_all(operator, range(operator.order))):
                assert np.array_equal(rows, case.mttkrp(mode)), (grid, mode)
            mode = operator.order - 1
            operator.mttkrp(mode, lambda rows, target: target.__setitem__(..., rows))
            assert np.array_equal(operator.factor(mode), case.mttkrp(mode))
            # Rows that other ranks have solved are used by the next MTTKRP.
            case.factors[mode] = case.mttkrp(mode)
            assert np.array_equal(operator.gathered(0, operator.mttkrp(0)), case.mttkrp(0))

    on_examples(comm, st.tuples(cases(), st.integers(1, 9)), check)


@pytest.mark.parametrize("options", [{}, {"nonnegative": True}, {"ridge": 0.1, "fixed_modes": (1,)}])
def test_cp_als_follows_the_same_path_on_every_grid(comm: Comm, device: str, options: dict[str, Any]) -> None:
    given: dict[str, Any] = {"max_iters": 6, "tol": 0, "precision": "fp64", "device": device, **options}
    x, given["init"] = (tensor(), random_factors(0, SHAPE, 5)) if comm.rank == 0 else (None, None)
    expected = amped.cp_als(x, 5, grid="all-gather", **given)
    for grid in [*grids(3, comm.size), "replicated"]:
        model = amped.cp_als(x, 5, grid=grid, **given)
        if comm.rank == 0:
            assert np.allclose(model.fits, expected.fits, rtol=0, atol=1e-12)
            assert all(np.allclose(*both, atol=1e-10) for both in zip(model.factors, expected.factors, strict=True))


def test_replicas_that_differ_in_rounding_return_the_same(
    comm: Comm, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inexact(*arguments: Any) -> KruskalTensor:
        result = arranged(*arguments)
        result.weights = result.weights * (1 + 1e-15 * comm.rank)
        result.factors = [factor * (1 + 1e-6 * comm.rank) for factor in result.factors]
        return result

    monkeypatch.setattr(als, "arranged", inexact)
    for output in ("host", "device"):
        model = amped.cp_als(
            tensor() if comm.rank == 0 else None, 3, max_iters=2, grid="replicated", device=device, output=output
        )
        parts = [part.tobytes() for part in (model.weights, *model.host_factors)]
        assert comm.allgather(parts) == [parts] * comm.size


def test_heavy_rows_are_split(comm: Comm, machine: Any) -> None:
    grid = f"1x1x{comm.size}"
    operator: Any = make_operator(
        tensor() if comm.rank == 0 else None, [np.ones((n, 2)) for n in SHAPE], machine, precision="fp64", grid=grid
    )
    counts = comm.allgather(operator.plan.modes[0].nnz)
    assert max(counts) < 1.15 * np.mean(counts)
    assert comm.size == 1 or operator.grid.cuts[2].split_rows.size


def test_deterministic_runs_are_equal(comm: Comm, device: str) -> None:
    given: dict[str, Any] = {"max_iters": 4, "tol": 0, "device": device, "deterministic": True, "seed": 1}
    x, grid = (tensor() if comm.rank == 0 else None), f"{comm.size}x1x1"
    first, second = (amped.cp_als(x, 4, grid=grid, **given) for _ in range(2))
    if comm.rank == 0:
        assert all(np.array_equal(*both) for both in zip(first.factors, second.factors, strict=True))


def test_stores_and_files_serve_any_grid(comm: Comm, machine: Any, tmp_path: Path) -> None:
    folder = comm.bcast(tmp_path)
    if comm.rank == 0:
        write_store(load("matmul_2-2-2"), folder / "store")
    comm.allgather(None)
    whole = load("matmul_2-2-2")
    factors = [np.arange(1.0, 1 + 3 * n).reshape(n, 3) for n in whole.shape]
    for path in (folder / "store", tensor_path("matmul_2-2-2")):
        for grid in grids(3, comm.size):
            operator = make_operator(open_source(path, comm), factors, machine, precision="fp64", grid=grid)
            expected = make_operator(open_source(path, comm), factors, machine, precision="fp64", grid="all-gather")
            assert all(map(np.array_equal, mttkrp_all(operator, range(3)), mttkrp_all(expected, range(3))))


def test_checkpoints_move_between_distributions(comm: Comm, device: str, tmp_path: Path) -> None:
    folder, x = comm.bcast(tmp_path), tensor() if comm.rank == 0 else None
    given: dict[str, Any] = {"tol": 0, "precision": "fp64", "device": device, "seed": 2}
    expected = amped.cp_als(x, 5, max_iters=6, **given)
    grid = f"{comm.size}x1x1"
    moves = ("a", grid, "all-gather"), ("b", "replicated", grid), ("c", "all-gather", "replicated")
    for name, first, second in moves:
        amped.cp_als(x, 5, max_iters=3, checkpoint=folder / name, every=1, grid=first, **given)
        model = amped.cp_als(x, 5, max_iters=6, checkpoint=folder / name, resume=True, grid=second, **given)
        if comm.rank == 0:
            assert np.allclose(model.fits, expected.fits, rtol=0, atol=1e-12)


def test_a_callback_may_use_the_model_on_one_rank(comm: Comm, device: str) -> None:
    x, seen = tensor() if comm.rank == 0 else None, list[float]()

    def watch(iteration: int, fit: float, view: Any) -> None:
        if comm.rank == 0:
            seen.append(float(view.model().weights.max()))

    given: dict[str, Any] = {"max_iters": 2, "tol": 0, "device": device, "callback": watch}
    for grid in ("auto", "replicated"):
        amped.cp_als(x, 3, grid=grid, **given)
    assert len(seen) == 4 * (comm.rank == 0)
    with pytest.raises(InputError, match="callback"):
        amped.cp_als(x, 3, grid=f"{comm.size}x1x1", **given)


@pytest.mark.ranks(2, 3)
def test_replicas_diverge_together(comm: Comm, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their arithmetic may differ: the others would wait in the next collective."""
    checked = LeastSquares.checked

    def diverging(self: LeastSquares, mode: int) -> Any:
        result = yield from checked(self, mode)
        if mode == 1 and comm.rank == 1:
            raise DivergedError("the factor matrix is not finite")
        return result

    monkeypatch.setattr(LeastSquares, "checked", diverging)
    began = time.perf_counter()
    with pytest.raises(DivergedError, match="iteration 1, mode 1: the factor matrix is not finite"):
        amped.cp_als(tensor() if comm.rank == 0 else None, 2, grid="replicated", device=device)
    assert time.perf_counter() - began < PATIENCE_SECONDS


def test_a_grid_must_fit(comm: Comm, device: str) -> None:
    for grid, cause in (("2x2", "has 2 modes"), ("7x1x1", "is for 7 ranks")):
        with pytest.raises(InputError, match=cause):
            amped.cp_als(tensor() if comm.rank == 0 else None, 2, grid=grid, device=device)


def test_other_methods_say_that_no_grid_is_used(comm: Comm, caplog: pytest.LogCaptureFixture) -> None:
    how: dict[str, Any] = {"grid": "x".join([str(comm.size), "1", "1"]), "device": "cpu", "max_iters": 1}
    with caplog.at_level(logging.INFO, "amped"):
        model = amped.cp_als(tensor() if comm.rank == 0 else None, 2, mask="stored", **how)
    assert model.run["distribution"] == "all-gather"
    expected = comm.rank == 0 and comm.size > 1
    line = f"grid {how['grid']} is not used: this method exchanges rows by all-gather"
    assert any(line in each for each in caplog.messages) == expected
