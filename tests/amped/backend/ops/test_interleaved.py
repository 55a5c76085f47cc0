"""Phi and log-likelihoods of interleaved models, against an oracle in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from counts import random_counts
from forms import exhaustive, some_of
from oracle import PRECISIONS, coo_phi, random_factors, small_pieces, sum_of_logs

import amped
from amped.backend.ops.phi import GroupShape, interleaved
from amped.methods.poisson import Poisson
from amped.operators.products import Phi
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs.assembly import multi_run_apr
from amped.runs.session import opened

ACCURACY = {"fp32": 1e-5, "fp64": 1e-12}
FLOOR = 1e-10


def skewed(shape: Sequence[int]) -> amped.SparseTensor:
    """Return counts of which one row has half, and one has none."""
    rng = np.random.default_rng(1)
    indices = np.stack([rng.integers(0, max(1, n - 1), 400) for n in shape], axis=1)
    indices[::2, 0] = 0
    indices = np.unique(indices, axis=0)
    return amped.SparseTensor(indices, rng.integers(1, 9, len(indices)).astype(float), tuple(shape))


def check(tensor: amped.SparseTensor, rank: int, comm: Comm, device: Any, **options: Any) -> None:
    """Compare every mode's Phi of two groups; rows of other columns stay as they were."""
    chosen = Options(device=device, **options)
    with opened(tensor, comm, chosen, None) as (machine, source):
        ranks = dict.fromkeys(range(40), rank)
        runs = multi_run_apr(source, ranks, machine, chosen, Poisson(), lambda key: key)
        operator: Any = runs._counts
        how, dtype = runs._phi, chosen.dtype
        models, width = how.models(rank, dtype), how.width(dtype)
        begins = np.array([0, 2 * width], np.int64)
        whole = [np.full((n, operator.ranks[0]), np.nan, dtype) for n in tensor.shape]
        places = list[slice]()
        for begin, model in product(begins.tolist(), range(models)):
            own, apart = how.columns(model, models, dtype), how.columns(model, models, dtype).step or 1
            places.append(slice(begin + own.start, begin + own.start + apart * (rank - 1) + 1, apart))
        starts = [random_factors(k, tensor.shape, rank) for k in range(len(places))]
        for mode, factor in enumerate(whole):
            for begin in begins:
                factor[:, begin : begin + width] = 0
            for place, start in zip(places, starts, strict=True):
                factor[:, place] = np.abs(start[mode])
            operator.set_factor(mode, factor)
        held = [[whole[mode][:, place].astype(float) for mode in range(tensor.order)] for place in places]
        phi = Phi(FLOOR, groups={GroupShape(models, rank): begins})
        for mode in range(tensor.order):
            operator.work.outs[mode].fill(np.nan)
            operator.work.reserve(operator.work.scratch.size)
            operator.work.scratch.fill(255)
            found = machine.device.to_host(operator.compute(phi, mode))
            assert np.all(np.isnan(found[:, width : 2 * width])), "other columns"
            for place, factors in zip(places, held, strict=True):
                want = coo_phi(tensor.columns, tensor.values, factors, mode, FLOOR)
                np.testing.assert_allclose(
                    found[:, place], want, rtol=0, atol=ACCURACY[chosen.precision] * abs(want).max()
                )
            sums = machine.device.zeros((operator.ranks[0],), np.float64)
            operator.add(phi, mode, sums)
            total = machine.device.to_host(sums)
            for place, factors in zip(places, held, strict=True):
                want_logs = sum_of_logs(tensor.columns, tensor.values, factors, FLOOR)
                assert total[place.start] == pytest.approx(want_logs, rel=ACCURACY[chosen.precision])


# Numbers of 8 or 16 models are in a register, or it is folded up to three times, for fewer models of more columns.
@pytest.mark.parametrize(
    ("rank", "precision"), some_of([(4, "fp64"), (16, "fp64")], [*product((1, 4, 5, 7, 12, 16, 31), PRECISIONS)])
)
def test_ranks(comm: Comm, device: str, rank: int, precision: str) -> None:
    check(random_counts(3, (9, 11, 10)), rank, comm, device, precision=precision)


@pytest.mark.parametrize(
    ("shape", "rank", "precision"),
    some_of(
        [((9, 1, 10), 16, "fp64")],
        [((4, 3, 4, 3, 4, 3), 31, "fp32")]
        + [(shape, 7, "fp64") for shape in ((19, 13), (9, 1, 10), (6, 7, 5, 8), (5, 4, 6, 5, 4), (4, 3, 4, 3, 4, 3))],
    ),
)
def test_orders(comm: Comm, device: str, shape: tuple[int, ...], rank: int, precision: str) -> None:
    check(random_counts(len(shape), shape), rank, comm, device, precision=precision)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_rows_that_parts_share(comm: Comm, device: str, threads: int, placement: str) -> None:
    with small_pieces(30):
        check(skewed((5, 30, 20)), 4, comm, device, precision="fp64", threads=threads, placement=placement)


@pytest.mark.parametrize(("rank", "precision"), some_of([(4, "fp64")], [(5, precision) for precision in PRECISIONS]))
def test_many_nonzeros(comm: Comm, device: str, rank: int, precision: str) -> None:
    """Chunks share rows, on a GPU at all levels of their sums, and one input mode's indices come in runs."""
    rng = np.random.default_rng(3)
    indices = np.unique(np.stack([rng.integers(0, n, 60_000) ** 2 // n for n in (30, 20, 500)], axis=1), axis=0)
    tensor = amped.SparseTensor(indices, rng.integers(1, 30, len(indices)).astype(float), (30, 20, 500))
    check(tensor, rank, comm, device, precision=precision)


@pytest.mark.parametrize("precision", ["fp64", exhaustive("fp32")])
def test_updates(comm: Comm, device: Any, precision: Any) -> None:
    """Each model is multiplied until its own violation is small, and then stays as it is, as its Phi does."""
    chosen = Options(device=device, precision=precision)
    with opened(random_counts(3, (9, 8, 7)), comm, chosen, None) as (machine, source):
        runs = multi_run_apr(source, dict.fromkeys(range(8), 5), machine, chosen, Poisson(), lambda key: key)
        operator: Any = runs._counts
        how, dtype, xp = runs._phi, chosen.dtype, machine.device.xp
        models, rng = how.models(5, dtype), np.random.default_rng(0)
        columns = operator.ranks[0]
        groups = {GroupShape(models, how.width(dtype) // models): np.array([0], np.int64)}
        places = [how.columns(model, models, dtype) for model in range(models)]
        phi, matrix = rng.random((9, columns)) * 2, rng.random((9, columns)).astype(dtype)
        matrix[:, places[1]] *= 1e-6
        phi[:, places[1]] /= 2
        phi[3, places[0].start] = np.nan
        idle = np.zeros(columns, np.int32)
        idle[places[-1].start] = 1
        of_phi, rows, done = (xp.array(each) for each in (phi, matrix, idle))
        violations, facts = (machine.device.zeros(shape, np.float64) for shape in ((columns,), (columns, 2)))
        how.measure(of_phi, rows, groups, violations, done)
        how.apply(of_phi, rows, groups, violations, facts, 1e-4, done)
        multiplied, ended, told, found = (machine.device.to_host(each) for each in (rows, done, facts, violations))
    want = matrix.copy()
    for number, place in enumerate(places):
        violation = np.abs(np.minimum(matrix[:, place], 1 - phi[:, place])).max()
        stops, skipped = violation < 1e-4, number == models - 1
        if not (stops or skipped):
            want[:, place] = matrix[:, place] * phi[:, place]
        assert ended[place.start] == (stops or skipped)
        expected = [violation, not stops] if not skipped else [0, 0]
        np.testing.assert_equal(told[place.start], expected)
        assert skipped or found[place.start] == violation or np.isnan(violation)
    assert ended[places[1].start] == 1
    np.testing.assert_array_equal(multiplied, want)


def test_models_that_have_too_many_columns(comm: Comm, device: Any) -> None:
    with opened(random_counts(3, (9, 8, 7)), comm, Options(device=device), None) as (machine, _):
        how = interleaved(machine.device)
        assert how is not None
        single, double = np.dtype(np.float32), np.dtype(np.float64)
        assert [how.models(rank, single) for rank in (1, 4, 5, 8, 9, 16, 17, 64, 65)] == [16, 16, 8, 8, 4, 4, 2, 1, 0]
        assert [how.models(rank, double) for rank in (4, 5, 16, 32, 33)] == [8, 4, 2, 1, 0]
