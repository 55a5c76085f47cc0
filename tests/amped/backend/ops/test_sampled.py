"""Estimates of losses from samples, on each backend, compared with their definition and with each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from gcp import model_array, oracle, values_for
from oracle import random_factors

from amped.backend.coordinate_table import EMPTY, find, slots_of, table_size
from amped.backend.counter_rng import key_of, uniform
from amped.backend.cpu.device import CpuDevice
from amped.backend.device import Device
from amped.backend.known_losses import loss_of
from amped.backend.ops.sampled import (
    SAMPLED,
    ListedElements,
    MatrixRows,
    SampledFormulas,
    SampledLoss,
    SampleOrigin,
    StepRule,
    Stratum,
)
from amped.backend.plain.device import PlainDevice
from amped.parallel.mpi import SingleComm

SHAPE, RANK = (5, 4, 6), 3


@pytest.fixture(params=["plain", "1", "2"])
def backend(request: pytest.FixtureRequest) -> Device:
    """A CPU without compiled code, or with threads."""
    if request.param == "plain":
        return PlainDevice(CpuDevice(SingleComm(), 1))
    return CpuDevice(SingleComm(), int(request.param))


class Case:
    """A sparse tensor with a loss and factor matrices, on a backend."""

    def __init__(
        self,
        backend: Device,
        name: str = "poisson",
        shape: Sequence[int] = SHAPE,
        rank: int = RANK,
        dtype: type = np.float64,
        solved: Sequence[bool] = (),
        ridge: float = 0.0,
    ) -> None:
        self.factors = random_factors(0, shape, rank)
        self.array = values_for(name, model_array(self.factors) / 4)
        self.array.flat[0] = 1
        coordinates, loss = np.argwhere(self.array).astype(np.int32), loss_of(name)
        self.values = self.array[tuple(coordinates.T)].astype(dtype)
        self.elements = ListedElements(coordinates, self.values, slots_of(coordinates), [0] * len(shape), list(shape))
        offsets = np.concatenate([[0], np.cumsum(shape)]).tolist()
        order, self.offsets, self.rank = len(shape), offsets, rank
        bound = 0.0 if loss.nonnegative else -np.inf
        rows = MatrixRows(offsets, rank, [bound] * order, [ridge] * order, list(solved) or [True] * order)
        provider = SAMPLED.require(backend)
        stride = provider.stride(rank)
        self.matrix = backend.zeros((offsets[-1], stride), dtype)
        self.matrix[:, :rank] = np.concatenate(self.factors)
        formulas = SampledFormulas(loss.of, loss.slope, loss.lower)
        self.sampled: SampledLoss = provider.make(self.elements, rows, formulas, stride)
        self.oracle = oracle(self.array, self.factors, name)

    def gradient(self, strata: Sequence[Stratum], key: int = 1) -> np.ndarray:
        """Return the estimated gradient, and clear it."""
        rows = self.sampled.gradient(self.matrix, strata, key)
        result = np.array(rows.gradient[:, : self.rank])
        assert np.array_equal(np.flatnonzero(np.any(rows.gradient, axis=1) & (rows.touched == 0)), [])
        self.sampled.step(self.matrix, (), rows, StepRule("sgd", 0.0, 1))
        assert not rows.gradient.any()
        assert not rows.touched.any()
        return result

    def strata(self, sampling: str, count: int) -> list[Stratum]:
        """Return the strata of a kind of sampling."""
        nnz, elements = len(self.values), self.array.size
        anywhere = elements / count
        return {
            "stratified": [
                Stratum(SampleOrigin.LISTED, count, nnz / count),
                Stratum(SampleOrigin.ABSENT, count, anywhere),
            ],
            "semi": [
                Stratum(SampleOrigin.LISTED, count, nnz / count, True),
                Stratum(SampleOrigin.BLIND, count, anywhere),
            ],
            "uniform": [Stratum(SampleOrigin.ANYWHERE, count, anywhere)],
            "nonzeros": [Stratum(SampleOrigin.EVERY, nnz, 1.0), Stratum(SampleOrigin.ABSENT, count, anywhere)],
        }[sampling]


def test_random_numbers_are_uniform_and_streams_differ() -> None:
    numbers = np.arange(200_000, dtype=np.uint64)
    keys = [key_of(*words) for words in ((0,), (1,), (0, 0), (0, 1), (1 << 70,), (1 << 70, 1))]
    assert len(set(keys)) == len(keys)
    drawn = [uniform(key, numbers) for key in keys]
    for each in drawn:
        assert each.min() >= 0
        assert each.max() < 1
        counts = np.bincount((each * 64).astype(int), minlength=64)
        assert ((counts - 3125) ** 2 / 3125).sum() < 120  # chi-squared of 63 degrees of freedom
    correlations = np.corrcoef(drawn)[np.triu_indices(len(keys), 1)]
    assert np.abs(correlations).max() < 0.015


@pytest.mark.parametrize("nnz", [0, 1, 2, 500])
def test_the_table_finds_what_is_there(nnz: int) -> None:
    rng = np.random.default_rng(nnz)
    every = np.stack(np.unravel_index(rng.permutation(1000), (10, 10, 10)), axis=1).astype(np.int32)
    slots = slots_of(every[:nnz])
    assert slots.size == table_size(nnz)
    found = find(slots, every[:nnz], every)
    assert np.array_equal(found[:nnz], np.arange(nnz))
    assert (found[nnz:] == EMPTY).all()


@pytest.mark.parametrize("sampling", ["stratified", "semi", "uniform", "nonzeros"])
@pytest.mark.parametrize("name", ["poisson", "bernoulli-logit"])
def test_estimates_are_unbiased(backend: Device, name: str, sampling: str) -> None:
    case = Case(backend, name)
    strata, draws = case.strata(sampling, 40), 400
    gradients = np.array([case.gradient(strata, key_of(3, k)) for k in range(draws)])
    want = np.concatenate(case.oracle[1])
    error = np.std(gradients, axis=0) / np.sqrt(draws)
    assert np.abs((gradients.mean(axis=0) - want) / np.maximum(error, 1e-9 * np.abs(want).max())).max() < 4.5
    values = np.array([case.sampled.value(case.matrix, strata, key_of(4, k))[0] for k in range(draws)])
    assert abs(values.mean() - case.oracle[0]) < 4.5 * values.std() / np.sqrt(draws)


def test_a_pass_over_all_nonzeros_is_exact(backend: Device) -> None:
    case = Case(backend)
    (listed, _), present = case.strata("nonzeros", 1), case.array != 0
    value, gradients = oracle(case.array, case.factors, "poisson", present)
    found, slope = case.sampled.value(case.matrix, [listed], 0)
    assert found == pytest.approx(value, rel=1e-13)
    np.testing.assert_allclose(case.gradient([listed]), np.concatenate(gradients), rtol=1e-12)
    assert slope == pytest.approx(np.vdot(gradients[0], case.factors[0]), rel=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "rank"), [((7, 6), 1), (SHAPE, 8), ((3, 2, 4, 3, 2), 11)])
def test_devices_draw_the_same_samples(shape: Sequence[int], rank: int, dtype: type) -> None:
    compiled = CpuDevice(SingleComm(), 2)
    solved = [True, False] + [True] * (len(shape) - 2)
    both = [Case(device, "poisson", shape, rank, dtype, solved) for device in (PlainDevice(compiled), compiled)]
    for sampling in ("stratified", "semi", "uniform", "nonzeros"):
        strata = both[0].strata(sampling, 1100)  # more than a block
        one, other = (case.gradient(strata, 9) for case in both)
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11 * np.abs(one).max())
        assert not one[shape[0] : shape[0] + shape[1]].any()
        values = [case.sampled.value(case.matrix, strata, 9) for case in both]
        np.testing.assert_allclose(values[0], values[1], rtol=1e-11)


def steps_of_oracle(method: str, start: np.ndarray, gradients: Sequence[np.ndarray], rate: float) -> np.ndarray:
    """Return a matrix after steps that stay at or above 0, as the papers define them."""
    x, first, second = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for t, g in enumerate(gradients, 1):
        if method == "sgd":
            x = x - rate * g
        elif method == "adagrad":
            second = second + g * g
            x = x - rate * g / (np.sqrt(second) + 1e-8)
        else:
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
            x = x - rate * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
        x = np.maximum(x, 0)
    return x


@pytest.mark.parametrize("method", ["adam", "sgd", "adagrad"])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_steps(backend: Device, method: str, ridge: float) -> None:
    """Of a few rows, or all of them if there is a ridge; others keep their values and moments."""
    case, rng, rate = Case(backend, ridge=ridge), np.random.default_rng(0), 0.2
    few = np.array([0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1, 1, 1], bool)
    moments = [np.zeros_like(case.matrix) for _ in range(StepRule(method, rate, 1).moments)]  # type: ignore[arg-type]
    start, x, gradients = np.concatenate(case.factors), np.concatenate(case.factors), list[np.ndarray]()
    for t in range(1, 6):
        rows = case.sampled.gradient(case.matrix, [], 0)
        sampled = rng.standard_normal(start.shape) * few[:, None]
        rows.gradient[:, :RANK] = sampled
        rows.touched[:] = few
        gradients.append(sampled + 2 * ridge * x)
        case.sampled.step(case.matrix, moments, rows, StepRule(method, rate, t))  # type: ignore[arg-type]
        x = steps_of_oracle(method, start, gradients, rate)
        if not ridge:
            x[~few] = start[~few]
        np.testing.assert_allclose(case.matrix[:, :RANK], x, rtol=1e-12, atol=1e-14)
        assert not rows.gradient.any()
    assert not case.matrix[:, RANK:].any()
