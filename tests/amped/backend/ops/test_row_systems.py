"""Each backend's row systems of a shard, for losses of the package and one that is defined here, called directly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from forms import STANDARD, standard
from losses import GAUSSIAN, HUBER, LOGIT, POISSON, oracle_systems
from nonzeros import SHAPES_OF_ROWS, Problem, kernels, padded
from oracle import BACKENDS, kernel_of

from amped.backend.device import Device
from amped.backend.losses import PHI, RESIDUAL, Loss, Maps
from amped.backend.ops.mttkrp import Kernel, Operands, Share
from amped.backend.ops.row_systems import ROW_SYSTEMS, RowSystemsProvider, system_width

pytestmark = pytest.mark.in_turn

ALL = [*BACKENDS, ("null", 1)]

every_backend = pytest.mark.parametrize(
    "backend", ALL, indirect=True, ids=lambda b: "-".join(map(str, filter(None, b)))
)


def providers(backend: Device, share: Share, order: int, maps: Maps) -> list[tuple[RowSystemsProvider, Kernel]]:
    """Return what computes row systems, with each MTTKRP kernel whose shards it reads."""
    found = [kernel_of(backend, name) for name in kernels(backend, order)]
    every = [(how, kernel) for kernel in found for how in ROW_SYSTEMS.providers(backend)]
    pairs = [(how, kernel) for how, kernel in every if how.suits(kernel, share, maps)]
    assert pairs
    return pairs


def run(
    backend: Device,
    problem: Problem,
    share: Share,
    maps: Maps,
    pair: tuple[RowSystemsProvider, Kernel],
    cuts: Sequence[int] = (),
) -> np.ndarray:
    """Compute shards between `cuts`, one after the other; rows before and after the output must stay as they are."""
    (rows, rank), curved = problem.expected.shape, maps.curve is not None
    how, kernel = pair
    guarded = backend.empty((rows + 2, system_width(rank, curved)), np.float64)
    guarded[:] = np.nan
    inputs, own = problem.inputs(backend, share), padded(backend, share, problem.factors[0])
    for start, stop in pairwise([0, *cuts, problem.values.size]):
        shard = problem.shard(share, kernel, start, stop)
        scratch = backend.empty((how.bytes(kernel, share, rank, curved, shard.nnz).running,), np.uint8)
        scratch.fill(0xFF)  # NaN, as floating point numbers
        new = slice(0, rows) if start == 0 else slice(0, 0)
        how.run(how.make(shard, share), shard, Operands(inputs, own, guarded[1:-1], scratch), rank, maps, new)
    backend.synchronize()
    result = np.array(backend.to_host(guarded))
    assert np.all(np.isnan(result[[0, -1]]))
    return result[1:-1]


def check(backend: Device, problem: Problem, precision: str, maps: Maps, cuts: Sequence[int] = ()) -> None:
    share = problem.share(backend, precision)
    problem.values = problem.values.astype(share.dtype).astype(np.float64)
    problem.factors = [f.astype(share.dtype).astype(np.float64) for f in problem.factors]
    want = oracle_systems(problem.columns, problem.values, problem.factors, 0, maps)
    for pair in providers(backend, share, len(problem.factors), maps):
        got = run(backend, problem, share, maps, pair, cuts)
        assert not got[~problem.named].any()
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12 * abs(want).max())


@every_backend
@standard
@pytest.mark.parametrize("loss", [GAUSSIAN, POISSON, HUBER, LOGIT], ids=lambda loss: loss.name)
@pytest.mark.parametrize("curved", [False, True])
def test_losses(backend: Device, order: int, rank: int, precision: str, loss: Loss, curved: bool) -> None:
    check(backend, Problem(order, rank), precision, loss.maps(curved=curved), [500])


@every_backend
@standard
@pytest.mark.parametrize("rows", SHAPES_OF_ROWS)
def test_how_nonzeros_fall_on_rows(backend: Device, order: int, rank: int, precision: str, rows: str) -> None:
    for count, cuts in ((1, []), (3, [1]), (129, [64]), (1009, [500, 501, 502])):
        check(backend, Problem(order, rank, rows, count), precision, HUBER.maps(curved=True), cuts)


@every_backend
def test_other_maps(backend: Device) -> None:
    """Phi, with a bound that holds for some of the models, and the MTTKRP of what a model does not explain."""
    problem = Problem(*STANDARD[0][:2])
    problem.factors[0][::3] = 0
    check(backend, problem, "fp32", Maps(PHI, None, RESIDUAL, 1e-10))
    check(backend, problem, "fp32", Maps(RESIDUAL, None, PHI, 0.05))


@every_backend
def test_what_is_not_a_number_stays(backend: Device) -> None:
    problem = Problem(*STANDARD[0][:2])
    problem.factors[0][7, 2] = np.nan
    share = problem.share(backend, "fp32")
    assert problem.named[7]
    for pair in providers(backend, share, len(problem.factors), POISSON.maps()):
        got = run(backend, problem, share, POISSON.maps(), pair)
        assert np.all(np.isnan(got[7]))
        assert np.all(np.isfinite(np.delete(got, 7, axis=0)))


@every_backend
@standard
def test_the_same_bits_every_time(backend: Device, order: int, rank: int, precision: str) -> None:
    problem = Problem(order, rank, "heavy row", 5003)
    share = problem.share(backend, precision)
    for pair in providers(backend, share, order, LOGIT.maps(curved=True)):
        some = {run(backend, problem, share, LOGIT.maps(curved=True), pair, [2000]).tobytes() for _ in range(3)}
        assert len(some) == 1
