"""Losses of dense tensors and their gradients on each device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from forms import some_of
from gcp import check_gradients

import amped
from amped.backend.choose import choose
from amped.backend.known_losses import loss_of
from amped.backend.ops.loss_tiles import LOSS_TILES, tiles
from amped.parallel.mpi import world
from amped.runs.assembly import bring_up, open_tensor
from amped.runs.loss_elements import LossRun, LossWork, loss_elements
from amped.runs.observed_runs import observe
from amped.runs.observing import ObservedParams
from partitioner.tensors.dense import DenseTensor

CASES = [
    ((6, 5, 4), 3, "poisson"), ((9, 1), 1, "bernoulli-logit"), ((2, 9, 1, 3), 7, "huber:0.5"),
    ((1, 5, 6), 33, "gaussian"), ((40, 3, 30), 16, "poisson-log"),
]  # fmt: skip
MORE = [((3, 4, 2, 5, 3), 7, "beta:0.5"), ((1, 1, 4), 1, "gamma"), ((70, 90), 33, "bernoulli-odds")]


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("placement", ["auto", "stream"])
@pytest.mark.parametrize(("shape", "rank", "name"), some_of(CASES, MORE))
def test_values_and_gradients(
    device: str, shape: tuple[int, ...], rank: int, name: str, placement: str, precision: str
) -> None:
    check_gradients(world(), (shape, rank, name), device=device, placement=placement, precision=precision)


def test_tiles_cover_a_matrix_once() -> None:
    seen = np.zeros((11, 9), int)
    for rows, columns in tiles((2, 11), (1, 9), 3, 7):
        seen[rows, columns] += 1
    np.testing.assert_array_equal(seen[2:, 1:], 1)
    assert not seen[:2].any()
    assert not seen[:, 0].any()


@pytest.mark.gpu
def test_tiles_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several rows and columns of tiles, with an incomplete last one; equal results are equal bit by bit."""
    from amped.backend.cuda.code import loss_tiles as code
    from amped.backend.cuda.ops import loss_tiles as ops

    array = np.random.default_rng(0).poisson(1.0, (50, 7, 60)).astype(float)
    factors = [np.random.default_rng(k).random((length, 5)) for k, length in enumerate(array.shape)]
    given: dict[str, Any] = {"loss": "poisson", "device": "cuda"}
    want, others = amped.objective(array, factors, **given)
    for module in (code, ops):
        monkeypatch.setattr(module, "WIDTH", 25)
        monkeypatch.setattr(module, "ELEMENTS", 25 * 8)
    results = [amped.objective(array, factors, **given) for _ in range(2)]
    assert results[0][0] == results[1][0] == pytest.approx(want, rel=1e-12)
    for one, other, expected in zip(results[0][1], results[1][1], others, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, expected, rtol=1e-10)


@pytest.mark.gpu
def test_the_plan_of_a_gpu_holds() -> None:
    """Device memory for the elements, weights, tiles and matrices of an evaluation."""
    shape = (300, 80, 120)
    array = np.random.default_rng(0).poisson(1.0, shape).astype(np.float32)
    options = amped.Options(device="cuda", precision="fp32")
    machine = bring_up(options, world())
    source = open_tensor(DenseTensor(array), machine, options)
    observed = observe(source, ObservedParams(None, DenseTensor(np.ones(shape))), machine, options)
    machine.device.rest()
    work = LossWork(loss_of("poisson"), 16, 10)
    gradient = loss_elements(LossRun(source, observed, machine, options, work)).gradient()
    for mode, length in enumerate(shape):
        gradient.operator.set_factor(mode, np.ones((length, 16)))
    gradient.evaluate()
    planned = sum(gradient.operator.plan.device_bytes.values())
    assert machine.device.peak_bytes() == pytest.approx(planned, rel=0.1)


@pytest.mark.parametrize("loss", ["gaussian", "poisson", "bernoulli-logit"])
@pytest.mark.parametrize("sparse", [False, True])
def test_an_overflow_is_no_warning(loss: str, sparse: bool) -> None:
    """The loss is infinite or not a number, and a line search takes a shorter step."""
    shape = 300, 40, 9
    array: Any = np.ones(shape)
    if sparse:
        array = amped.SparseTensor(np.argwhere(np.eye(*shape[:2])[:, :, None] * np.ones(9)), np.ones(360), shape)
    for size in (1e120, 1e200):
        large = [np.full((length, 2), size) for length in shape]
        assert not np.isfinite(amped.objective(array, large, loss=loss, gradient=False, device="cpu"))


def test_functions_of_numpy_use_a_cpu(device: str) -> None:
    """Only text can be compiled for a GPU: `auto` takes the CPU, and `cuda` is refused."""
    squares = amped.Loss(value=lambda x, m: (x - m) ** 2, first=lambda x, m: 2 * (m - x))
    array, factors = np.arange(12.0).reshape(3, 4), [np.ones((3, 1)), np.ones((4, 1))]
    assert amped.objective(array, factors, loss=squares, gradient=False) == np.square(array - 1).sum()
    assert LOSS_TILES.first(choose(device, world(), None), lambda provider: provider.suits(squares)) is None
    if device == "cuda":
        with pytest.raises(amped.InputError, match="only supported on a CPU so far"):
            amped.objective(array, factors, loss=squares, device="cuda")
