"""Estimates of losses from samples, on each backend, compared with their definition and with each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from gcp import model_array, oracle, values_for
from oracle import random_factors

from amped.backend.choose import choose
from amped.backend.coordinate_table import EMPTY, find, slots_of, table_size
from amped.backend.counter_rng import key_of, uniform
from amped.backend.cpu.device import CpuDevice
from amped.backend.cuda import probe
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

pytestmark = pytest.mark.in_turn

SHAPE, RANK = (5, 4, 6), 3


@pytest.fixture(params=["plain", "1", "2", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> Device:
    """A CPU without compiled code, or with threads, or a GPU."""
    if request.param == "cuda":
        return gpu()
    if request.param == "plain":
        return PlainDevice(CpuDevice(SingleComm(), 1))
    return CpuDevice(SingleComm(), int(request.param))


def gpu() -> Device:
    """Return the GPU, or skip the test."""
    if missing := probe():
        pytest.skip(missing)
    return choose("cuda", SingleComm())


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
        exact: bool = False,
    ) -> None:
        self.backend = backend
        self.factors = random_factors(0, shape, rank)
        self.array = values_for(name, model_array(self.factors) / 4)
        self.array.flat[0] = 1
        coordinates, loss = np.argwhere(self.array).astype(np.int32, order="C"), loss_of(name)
        self.values = self.array[tuple(coordinates.T)].astype(dtype)
        offsets = np.concatenate([[0], np.cumsum(shape)]).tolist()
        order, self.offsets, self.rank = len(shape), offsets, rank
        bound = 0.0 if loss.nonnegative else -np.inf
        rows = MatrixRows(offsets, rank, [bound] * order, [ridge] * order, list(solved) or [True] * order)
        provider, to_device = SAMPLED.require(backend), backend.to_device
        stride, coordinates = provider.stride(rank, np.dtype(dtype)), to_device(coordinates)
        self.matrix = backend.zeros((offsets[-1], stride), dtype)
        self.matrix[:, :rank] = to_device(np.concatenate(self.factors).astype(dtype))
        self.elements = ListedElements(
            coordinates, to_device(self.values), provider.slots(coordinates), [0] * len(shape), list(shape)
        )
        formulas = SampledFormulas(loss.of, loss.slope, loss.lower)
        self.sampled: SampledLoss = provider.make(self.elements, rows, formulas, stride, exact)
        self.oracle = oracle(self.array, self.factors, name)

    def gradient(self, strata: Sequence[Stratum], key: int = 1) -> np.ndarray:
        """Return the estimated gradient, and clear it."""
        rows = self.sampled.gradient(self.matrix, strata, key)
        whole, touched = (np.array(self.backend.to_host(each)) for each in rows)
        result = whole[:, : self.rank].astype(np.float64)
        assert np.array_equal(np.flatnonzero(np.any(whole, axis=1) & (touched == 0)), [])
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
    moments = [backend.zeros(case.matrix.shape, case.matrix.dtype) for _ in range(StepRule(method, rate, 1).moments)]  # type: ignore[arg-type]
    start, x, gradients = np.concatenate(case.factors), np.concatenate(case.factors), list[np.ndarray]()
    for t in range(1, 6):
        rows = case.sampled.gradient(case.matrix, [], 0)
        sampled = rng.standard_normal(start.shape) * few[:, None]
        rows.gradient[:, :RANK] = backend.to_device(sampled)
        rows.touched[:] = backend.to_device(few.astype(np.uint8))
        gradients.append(sampled + 2 * ridge * x)
        case.sampled.step(case.matrix, moments, rows, StepRule(method, rate, t))  # type: ignore[arg-type]
        x = steps_of_oracle(method, start, gradients, rate)
        if not ridge:
            x[~few] = start[~few]
        np.testing.assert_allclose(backend.to_host(case.matrix)[:, :RANK], x, rtol=1e-12, atol=1e-14)
        assert not rows.gradient.any()
    assert not case.matrix[:, RANK:].any()


GPU_FORMS = [
    ((7, 6), 1), (SHAPE, 8), ((3, 2, 4, 3, 2), 11), ((9, 8, 7, 6), 16), ((20, 30, 10), 40), (SHAPE, 300),
    ((16_400, 3, 4), 16),  # with short runs
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "rank"), GPU_FORMS)
def test_a_gpu_draws_the_same_samples(shape: Sequence[int], rank: int, dtype: type, exact: bool) -> None:
    plain, device = PlainDevice(CpuDevice(SingleComm(), 1)), gpu()
    solved = [True, False] + [True] * (len(shape) - 2)
    host, cuda = (Case(each, "poisson", shape, rank, dtype, solved, exact=exact) for each in (plain, device))
    error = {np.float32: 1e-5, np.float64: 1e-9 if exact else 1e-12}[dtype]
    for sampling in ("stratified", "semi", "uniform", "nonzeros"):
        strata = host.strata(sampling, 1100)
        one, other = host.gradient(strata, 9), cuda.gradient(strata, 9)
        np.testing.assert_allclose(one, other, rtol=0, atol=error * np.abs(one).max())
        assert not exact or np.array_equal(other, cuda.gradient(strata, 9))
        values = [case.sampled.value(case.matrix, strata, 9) for case in (host, cuda)]
        np.testing.assert_allclose(values[0], values[1], rtol=1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["adam", "sgd", "adagrad"])
def test_steps_that_a_gpu_takes_in_graphs(method: str) -> None:
    plain, device = PlainDevice(CpuDevice(SingleComm(), 1)), gpu()
    host, cuda = (Case(each, ridge=0.1) for each in (plain, device))
    rule = StepRule(method, {"adam": 0.01, "adagrad": 0.05, "sgd": 1e-4}[method], 3)  # type: ignore[arg-type]
    strata, keys = host.strata("stratified", 20), [key_of(5, k) for k in range(150)]
    moments = [
        [case.backend.zeros(case.matrix.shape, np.float64) for _ in range(rule.moments)] for case in (host, cuda)
    ]
    for k, key in enumerate(keys):
        rows = host.sampled.gradient(host.matrix, strata, key)
        host.sampled.step(host.matrix, moments[0], rows, rule._replace(number=3 + k))
    assert cuda.sampled.queue(cuda.matrix, moments[1], strata, keys, rule)
    for one, other in zip([host.matrix, *moments[0]], [cuda.matrix, *moments[1]], strict=True):
        found = device.to_host(other)[:, :RANK]
        np.testing.assert_allclose(found, one[:, :RANK], rtol=1e-8, atol=1e-10)


@pytest.mark.gpu
def test_the_table_that_a_gpu_fills() -> None:
    rng, device = np.random.default_rng(0), gpu()
    every = np.stack(np.unravel_index(rng.permutation(8000), (20, 20, 20)), axis=1).astype(np.int32)
    slots = SAMPLED.require(device).slots(device.to_device(every[:3000]))
    found = find(device.to_host(slots), every[:3000], every)
    assert np.array_equal(found[:3000], np.arange(3000))
    assert (found[3000:] == EMPTY).all()
