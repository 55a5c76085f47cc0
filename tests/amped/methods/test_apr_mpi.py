"""CP-APR over all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counts import REFERENCES, assert_the_reference, by_rows, mu, random_counts
from forms import exhaustive
from oracle import random_factors, small_pieces

import amped
from amped.backend.exchange import connect
from amped.backend.null.device import NullDevice
from amped.errors import InputError
from amped.methods.driver import StopRule, iterate
from amped.methods.poisson import Poisson
from amped.operators.sources.sparse import TensorSource
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs.assembly import begin, counts, open_tensor

pytestmark = pytest.mark.mpi
SHAPES = [((6, 2, 8), 3), ((2, 3, 40), 3), ((4, 6, 5, 3), 5), exhaustive((9, 7), 3), exhaustive((4, 6, 5, 3), 3)]


@pytest.mark.parametrize(
    ("name", "rank"), [run if run[0] == "uber393k_4d" else exhaustive(*run) for run in REFERENCES[:3]]
)
def test_the_reference_results(comm: Comm, device: str, name: str, rank: int) -> None:
    assert_the_reference(name, rank, "fp64", device=device)


@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize(("shape", "rank"), SHAPES)
def test_the_same_path_as_an_oracle(comm: Comm, device: str, shape: tuple[int, ...], rank: int, placement: Any) -> None:
    """Modes of two rows are split over ranks."""
    tensor, start = random_counts(len(shape), shape, 0.6), random_factors(0, shape, rank)
    want = mu(tensor, start, 6)
    with small_pieces(20):
        model = amped.cp_apr(
            tensor if comm.rank == 0 else None, rank, init=start, max_iters=6, precision="fp64",
            device=device, placement=placement,
        )  # fmt: skip
    for name in ("loglikelihood", "kkt", "inner_iterations"):
        np.testing.assert_allclose(model.series[name], getattr(want, name), rtol=1e-9, atol=1e-12, err_msg=name)
    mine = (model.weights.tobytes(), *(f.tobytes() for f in model.factors), str(model.series))
    assert all(other == mine for other in comm.allgather(mine))


@pytest.mark.parametrize("method", ["pdnr", "pqnr"])
@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize(("shape", "rank"), [*SHAPES, ((1, 5, 6), 3)])
def test_row_problems_take_the_path_of_an_oracle(
    comm: Comm, device: str, shape: tuple[int, ...], rank: int, placement: Any, method: Any
) -> None:
    """Rows are shared by ranks, all ranks among them, and by shards."""
    tensor, start = random_counts(len(shape), shape, 0.6), random_factors(0, shape, rank)
    want = by_rows(tensor, start, 5, method)
    with small_pieces(10):
        model = amped.cp_apr(
            tensor if comm.rank == 0 else None, rank, init=start, max_iters=5, precision="fp64",
            device=device, placement=placement, method=method, mu_iters=0,
        )  # fmt: skip
    np.testing.assert_allclose(model.series["loglikelihood"], want.loglikelihood, rtol=1e-9)
    np.testing.assert_allclose(model.series["kkt"], want.kkt, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(model.series["inner_iterations"], want.inner_iterations, atol=1)
    mine = (model.weights.tobytes(), *(f.tobytes() for f in model.factors), str(model.series))
    assert all(other == mine for other in comm.allgather(mine))


@pytest.mark.parametrize("method", ["pdnr", "pqnr"])
@pytest.mark.parametrize("nonzeros", [1, 2])
def test_ranks_without_nonzeros(comm: Comm, device: str, method: Any, nonzeros: int) -> None:
    """The rows that they own become zero, and count in the first violation."""
    tensor = amped.SparseTensor([[1, 0, 2], [1, 3, 0]][:nonzeros], [5.0, 3.0][:nonzeros], (2, 4, 9))
    start = random_factors(0, tensor.shape, 2)
    want = by_rows(tensor, start, 3, method)
    model = amped.cp_apr(
        tensor, 2, init=start, max_iters=3, tol=1e-4, precision="fp64", device=device, method=method, mu_iters=0
    )
    np.testing.assert_allclose(model.series["loglikelihood"], want.loglikelihood, rtol=1e-9)
    np.testing.assert_allclose(model.series["kkt"], want.kkt, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(model.full(), want.model, atol=1e-9)


def test_rows_in_single_precision(comm: Comm, device: str) -> None:
    tensor, start = random_counts(3, (4, 30, 20)), random_factors(0, (4, 30, 20), 3)
    found = [
        amped.cp_apr(tensor, 3, init=start, max_iters=8, device=device, precision=p, method="pdnr").series  # type: ignore[arg-type]
        for p in ("fp32", "fp64")
    ]
    np.testing.assert_allclose(*(each["loglikelihood"] for each in found), rtol=1e-5)


def test_what_is_wrong_is_told_on_all_ranks(comm: Comm) -> None:
    tensor = amped.SparseTensor([[0, 0], [1, 1]], [-1.0, 2.0]) if comm.rank == 0 else None
    with pytest.raises(InputError, match="a value is -1"):
        amped.cp_apr(tensor, 2, device="cpu")


@pytest.mark.parametrize("shape", [(6, 2, 8), (4, 6, 5, 3), (2, 3, 40)])
def test_updates_that_are_skipped_change_nothing(comm: Comm, shape: tuple[int, ...]) -> None:
    """Modes that are done before the others, with rows of several ranks: a device computes on, the host does not."""
    machine, options = connect(NullDevice(comm), comm), Options("cpu", precision="fp64")
    tensor = random_counts(len(shape), shape, 0.6)
    want = mu(tensor, random_factors(0, shape, 3), 12)
    assert min(want.inner_iterations) < 10 * len(shape)
    method = counts(open_tensor(tensor, machine, options), 3, machine, options, Poisson())
    method._update._asks = False
    begin(method, TensorSource(tensor, comm), init=random_factors(0, shape, 3))
    list(iterate(method, StopRule(12, 1e-4)))
    np.testing.assert_allclose(method.state.series["loglikelihood"], want.loglikelihood, rtol=1e-9)
    np.testing.assert_allclose(method.state.series["inner_iterations"], want.inner_iterations)
