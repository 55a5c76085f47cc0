"""Runs in one batch, compared with separate runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from densecases import low_rank

import amped
from amped.methods.constraints import ConstraintParams
from amped.methods.driver import StopRule
from amped.methods.poisson import Poisson
from amped.models.kruskal import KruskalTensor
from amped.operators.sparse.tuning import Budget
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs.assembly import multi_run_als, multi_run_apr
from amped.runs.session import opened

Key = tuple[int, int]  # number of components, number of the start
RANKS = {(rank, start): rank for rank in (1, 7, 3, 16, 2) for start in range(2)}


def multi_run(
    tensor: Any, columns: int, comm: Comm, rule: StopRule, nonnegative: bool = False, ranks: Any = None, **options: Any
) -> dict[tuple[int, int], KruskalTensor]:
    """Return the models of runs in one batch, by rank and start."""
    ranks, chosen = ranks or RANKS, Options(**options)
    with opened(tensor, comm, chosen, None) as (machine, source):
        constraints = ConstraintParams(nonnegative).of(len(source.shape))
        runs = multi_run_als(source, ranks, columns, machine, chosen, Budget(), constraints, _start)
        found = {key: method.model() for key, method in runs.run(ranks, rule)}
        assert set(runs.seconds) == set(ranks)
    return found  # type: ignore[return-value]


def assert_near_one_as_single_runs(comm: Comm, atol: float, **options: Any) -> None:
    """Check runs of which some need passes in double precision or pseudo-inverses."""
    dense = low_rank((12, 10, 9), 2, 0.0, 3)
    tensor = amped.SparseTensor(np.argwhere(dense), dense[dense != 0], dense.shape)
    rule, ranks = StopRule(30, 1e-9), {(rank, start): rank for rank in (1, 2, 5, 11) for start in range(2)}
    found = multi_run(tensor, 16, comm, rule, ranks=ranks, **options)
    assert found[2, 0].fits[-1] > 0.999
    assert_as_single_runs(found, tensor, rule, atol, False, **options)


def _start(key: tuple[int, int]) -> int:
    return key[1]


def assert_as_single_runs(
    found: Mapping[tuple[int, int], KruskalTensor],
    tensor: Any,
    rule: StopRule,
    atol: float,
    nonnegative: bool,
    **options: Any,
) -> None:
    """Check that fits, iterations and factor matrices equal those of separate runs, up to rounding."""
    for (rank, start), model in found.items():
        single = amped.cp_als(
            tensor, rank, seed=start, max_iters=rule.max_iters, tol=rule.tol, nonnegative=nonnegative, **options
        )
        assert model.rank == rank
        if atol == 0:
            assert model.fits == single.fits, (rank, start)
        else:
            assert abs(model.fits[-1] - single.fits[-1]) < atol, (rank, start)
        assert model.converged == single.converged or atol > 0
        if atol < 1e-6 and len(model.fits) == len(single.fits) < 10:  # else rounding may have grown
            for one, other in zip(model.factors, single.factors, strict=True):
                np.testing.assert_allclose(one, other, rtol=0, atol=max(atol, 1e-12) * 100)


def assert_counts_as_single_runs(
    tensor: Any, ranks: Mapping[Key, int], comm: Comm, rule: StopRule, **options: Any
) -> None:
    """Check that runs of CP-APR in one batch equal those of `cp_apr`, up to rounding, on all ranks."""
    chosen = Options(**options)
    with opened(tensor, comm, chosen, None) as (machine, source):
        runs = multi_run_apr(source, ranks, machine, chosen, Poisson(rule.tol), _start)
        found = {key: cast(KruskalTensor, method.model()) for key, method in runs.run(ranks, rule)}
    assert set(found) == set(ranks)
    mine = [(key, model.series, *(factor.tobytes() for factor in model.factors)) for key, model in found.items()]
    assert all(other == mine for other in comm.allgather(mine)), "on all ranks"
    rtol = {"fp32": 1e-5, "fp64": 1e-11}[chosen.precision]
    for (rank, start), model in found.items():
        single = amped.cp_apr(tensor, rank, seed=start, max_iters=rule.max_iters, tol=rule.tol, **options)
        for name in ("loglikelihood", "inner_iterations", "kkt"):
            loose = {"loglikelihood": 1.0, "inner_iterations": 0.0, "kkt": 100.0}[name]
            if chosen.precision == "fp64" or name == "loglikelihood":
                want = np.asarray(single.series[name])
                bound = 1e-12 + loose * rtol * abs(want).max()  # a log-likelihood may cross zero
                np.testing.assert_allclose(model.series[name], want, rtol=0, atol=bound)
        assert model.converged == single.converged
        # A weight near the smallest number may be zero in one of the models.
        np.testing.assert_allclose(model.weights, single.weights, rtol=1e4 * rtol, atol=1e-30)
        if chosen.precision == "fp64":
            for one, other in zip(model.factors, single.factors, strict=True):
                np.testing.assert_allclose(one, other, rtol=0, atol=1e-7)
