"""Phi and log-likelihoods of interleaved models, against an oracle in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from counts import random_counts
from oracle import PRECISIONS, coo_phi, random_factors, small_pieces, sum_of_logs

import amped
from amped.assembly import counts_together, opened
from amped.backend.providers import interleaved
from amped.decomp.poisson import Poisson
from amped.options import Options
from amped.parallel.mpi import Comm

ACCURACY = {"fp32": 1e-5, "fp64": 1e-12}
FLOOR = 1e-10


def skewed(shape: Sequence[int]) -> amped.SparseTensor:
    """Return counts of which one row has half, and one has none."""
    rng = np.random.default_rng(1)
    indices = np.stack([rng.integers(0, max(1, n - 1), 400) for n in shape], axis=1)
    indices[::2, 0] = 0
    indices = np.unique(indices, axis=0)
    return amped.SparseTensor(indices, rng.integers(1, 9, len(indices)).astype(float), tuple(shape))


def check(tensor: amped.SparseTensor, rank: int, comm: Comm, **options: Any) -> None:
    """Compare every mode's Phi of two groups; rows of other columns stay as they were."""
    chosen = Options(device="cpu", **options)
    with opened(tensor, comm, chosen, None) as (machine, source):
        ranks = dict.fromkeys(range(40), rank)
        several = counts_together(source, ranks, machine, chosen, Poisson(), lambda key: key)
        operator: Any = several._counts
        how, dtype = operator.interleaved, chosen.dtype
        models, width = how.models(rank, dtype), how.width(dtype)
        begins = np.array([0, 2 * width], np.int64)
        whole = [np.full((n, operator.ranks[0]), np.nan, dtype) for n in tensor.shape]
        firsts = [int(begin) + model for begin in begins for model in range(models)]
        places = [slice(first, first + models * (rank - 1) + 1, models) for first in firsts]
        starts = [random_factors(k, tensor.shape, rank) for k in range(len(places))]
        for mode, factor in enumerate(whole):
            for begin in begins:
                factor[:, begin : begin + width] = 0
            for place, start in zip(places, starts, strict=True):
                factor[:, place] = np.abs(start[mode])
            operator.set_factor(mode, factor)
        held = [[whole[mode][:, place].astype(float) for mode in range(tensor.order)] for place in places]
        for mode in range(tensor.order):
            operator.work.outs[mode].fill(np.nan)
            operator.work.reserve(operator.work.scratch.size)
            operator.work.scratch.fill(255)
            found = operator.phis(mode, FLOOR, {models: begins})
            assert np.all(np.isnan(found[:, width : 2 * width])), "other columns"
            for place, factors in zip(places, held, strict=True):
                want = coo_phi(tensor.columns, tensor.values, factors, mode, FLOOR)
                np.testing.assert_allclose(
                    found[:, place], want, rtol=0, atol=ACCURACY[chosen.precision] * abs(want).max()
                )
            total = np.zeros(operator.ranks[0])
            operator.add_logs_of(mode, FLOOR, {models: begins}, total)
            for place, factors in zip(places, held, strict=True):
                want_logs = sum_of_logs(tensor.columns, tensor.values, factors, FLOOR)
                assert total[place.start] == pytest.approx(want_logs, rel=ACCURACY[chosen.precision])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rank", [1, 4, 7, 16, 31])
def test_ranks(comm: Comm, rank: int, precision: str) -> None:
    check(random_counts(3, (9, 11, 10)), rank, comm, precision=precision)


@pytest.mark.parametrize("shape", [(19, 13), (9, 1, 10), (6, 7, 5, 8), (5, 4, 6, 5, 4), (4, 3, 4, 3, 4, 3)])
def test_orders(comm: Comm, shape: tuple[int, ...]) -> None:
    check(random_counts(len(shape), shape), 7, comm, precision="fp64")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_rows_that_parts_share(comm: Comm, threads: int, placement: str) -> None:
    with small_pieces(30):
        check(skewed((5, 30, 20)), 3, comm, precision="fp64", threads=threads, placement=placement)


def test_models_that_have_too_many_columns(comm: Comm) -> None:
    with opened(random_counts(3, (9, 8, 7)), comm, Options(device="cpu"), None) as (machine, _):
        how = interleaved(machine.device)
        assert how is not None
        single, double = np.dtype(np.float32), np.dtype(np.float64)
        assert [how.models(rank, single) for rank in (1, 4, 5, 8, 9, 16, 17, 64, 65)] == [16, 16, 8, 8, 4, 4, 2, 1, 0]
        assert [how.models(rank, double) for rank in (4, 5, 16, 32, 33)] == [8, 4, 2, 1, 0]
