"""A loss that is defined outside the package: value, gradient and Newton step over all ranks, by dense oracles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from forms import STANDARD
from losses import GAUSSIAN, HUBER, LOGIT, POISSON
from oracle import machine_of, random_factors, random_nonzeros, small_pieces

import amped
from amped.backend.exchange import Machine
from amped.backend.formulas import Formula
from amped.backend.losses import Loss, Moments
from amped.errors import InputError
from amped.methods.newton import RowDerivatives, derivatives, newton_steps
from amped.operators.products import RowSystems
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs.assembly import open_tensor, setting_for
from amped.runs.kinds import SPARSE

pytestmark = pytest.mark.mpi
LENGTHS = {3: (13, 9, 7), 4: (13, 1, 6, 7)}


@pytest.fixture(scope="module")
def machine(comm: Comm, device: str) -> Machine:
    """Used by many operators: connecting GPUs takes long."""
    return machine_of(device, comm)


def systems_of(
    machine: Machine, tensor: amped.SparseTensor, factors: list[np.ndarray], loss: Loss, zeros: bool, **options: Any
) -> list[np.ndarray]:
    """Return the row systems of each mode, of all its rows, on every rank."""
    chosen = Options(**options)
    source = open_tensor(tensor if machine.comm.rank == 0 else None, machine, chosen)
    maps = loss.maps(curved=True, absent_are_zero=zeros)
    setting = setting_for(source, factors[0].shape[1], machine, chosen)
    setting = setting._replace(product=RowSystems(maps), pipelined=False, overlaps=False)
    operator = SPARSE.place(source, machine, setting, None)
    for mode, factor in enumerate(factors):
        operator.set_factor(mode, factor)
    found = []
    for mode in range(len(factors)):
        mine = np.array(machine.device.to_host(operator.compute(RowSystems(maps), mode)))
        found.append(np.concatenate(machine.comm.allgather(mine)))
    return found


def dense_derivatives(dense: np.ndarray, counts: np.ndarray, factors: list[np.ndarray], loss: Loss, mode: int) -> Any:
    """Return value, gradient and curvature of rows by their definition over all elements that count."""
    letters, value, first, second = "abcd"[: dense.ndim], *map(Formula, (loss.value, loss.first, loss.second))
    model = np.maximum(np.einsum(",".join(f"{c}z" for c in letters) + f"->{letters}", *factors), loss.lower)
    others = [m for m in range(dense.ndim) if m != mode]
    form, row = ",".join(f"{letters[m]}z" for m in others), letters[mode]
    twice, inputs = f"{form},{form.replace('z', 'y')}", [factors[m] for m in others]
    gradient = np.einsum(f"{letters},{form}->{row}z", counts * first(dense, model), *inputs)
    curvature = np.einsum(f"{letters},{twice}->{row}zy", counts * second(dense, model), *inputs, *inputs)
    return (counts * value(dense, model)).sum(), gradient, curvature


@pytest.mark.parametrize(("order", "rank", "precision"), STANDARD)
@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize(
    ("loss", "zeros"),
    [(HUBER, False), (LOGIT, False), (GAUSSIAN, True), (POISSON, True)],
    ids=lambda v: getattr(v, "name", None),
)
def test_value_gradient_and_newton_step(
    machine: Machine, loss: Loss, zeros: bool, placement: str, order: int, rank: int, precision: str
) -> None:
    dtype = np.dtype(np.float32 if precision == "fp32" else np.float64)
    shape = LENGTHS[order]
    columns, values = random_nonzeros(order, shape, 300)
    tensor = amped.SparseTensor(columns.T, values.astype(dtype), shape)
    factors = [f.astype(dtype).astype(np.float64) for f in random_factors(order, shape, rank)]
    dense, counts = np.zeros(shape), np.full(shape, float(zeros))
    dense[tuple(tensor.columns)], counts[tuple(tensor.columns)] = tensor.values, 1.0
    with small_pieces(40):
        found = systems_of(machine, tensor, factors, loss, zeros, precision=precision, placement=placement)
    for mode, systems in enumerate(found):
        value, gradient, curvature = dense_derivatives(dense, counts, factors, loss, mode)
        got = derivatives(systems, rank)
        assert got.curvature is not None
        if zeros:
            moments = Moments.of(factors)
            values, rows = loss.rows_everywhere(moments.others(), mode, factors[mode])
            matrix = loss.curvature_everywhere(moments.others(), mode)
            got = RowDerivatives(got.values + values, got.gradient + rows, got.curvature + matrix)
        assert got.curvature is not None
        assert got.values.sum() == pytest.approx(value, rel=1e-11)
        np.testing.assert_allclose(got.gradient, gradient, atol=1e-11 * abs(gradient).max())
        np.testing.assert_allclose(got.curvature, curvature, atol=1e-11 * abs(curvature).max())
        steps = newton_steps(got.gradient, got.curvature)
        well = np.linalg.cond(curvature) < 1e6
        want = -np.linalg.solve(curvature[well], gradient[well][..., None])[..., 0]
        assert well.any()
        np.testing.assert_allclose(steps[well], want, atol=1e-8 * abs(want).max())
        assert np.all(np.einsum("ir,ir->i", steps, gradient) <= 1e-12)


def test_one_newton_step_solves_least_squares(machine: Machine) -> None:
    """Of observed elements only: after it the gradient of these rows is zero."""
    shape = (7, 20, 18)
    columns, values = random_nonzeros(1, shape, 900)
    tensor, factors = amped.SparseTensor(columns.T, values, shape), random_factors(1, shape, 3)
    systems = systems_of(machine, tensor, factors, GAUSSIAN, False, precision="fp64")[0]
    got = derivatives(systems, 3)
    assert got.curvature is not None
    factors[0] = factors[0] + newton_steps(got.gradient, got.curvature)
    after = derivatives(systems_of(machine, tensor, factors, GAUSSIAN, False, precision="fp64")[0], 3)
    assert abs(after.gradient).max() < 1e-10 * abs(got.gradient).max()
    assert after.values.sum() < got.values.sum()


def test_a_kernel_without_row_systems_is_named(comm: Comm) -> None:
    tensor, factors = amped.SparseTensor(np.eye(3, dtype=int), np.ones(3), (3, 3, 3)), random_factors(0, (3, 3, 3), 2)
    with pytest.raises(InputError, match="kernel 'blocked' computes no row systems; use segmented"):
        systems_of(machine_of("cpu", comm), tensor, factors, HUBER, False, kernel="blocked")
