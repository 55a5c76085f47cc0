"""One copy of the nonzeros for all modes, over all ranks: partial sums of any row go to the row's owner."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from forms import exhaustive
from hypothesis import strategies as st
from oracle import (
    Case,
    assert_rounding_only,
    cases,
    coo_mttkrp,
    kernel_of,
    machine_of,
    make_operator,
    mttkrp_all,
    on_examples,
    random_factors,
    random_nonzeros,
    small_pieces,
)
from tensors import write_store

import amped
from amped.backend.exchange import Machine
from amped.errors import InputError
from amped.operators.sources.sparse import open_source
from amped.parallel.mpi import Comm
from partitioner.tensors.sparse import SparseTensor

pytestmark = pytest.mark.mpi
SHAPE = (30, 7, 40)
COLUMNS, VALUES = random_nonzeros(1, SHAPE, 20_011)
FACTORS = random_factors(1, SHAPE, 7)


@pytest.fixture(scope="module")
def machine(comm: Comm, device: str) -> Machine:
    """Used by many operators: connecting GPUs takes long."""
    return machine_of(device, comm)


def tensor_on_rank_0(comm: Comm) -> SparseTensor | None:
    return SparseTensor(COLUMNS.T, VALUES, SHAPE) if comm.rank == 0 else None


@pytest.mark.parametrize("precision", ["fp32", exhaustive("fp64")])
def test_any_tensor(comm: Comm, machine: Any, precision: str) -> None:
    kind = type(kernel_of(machine.device, "permuted"))

    def check(example: tuple[Case, int]) -> None:
        case, most = example
        tensor = case.tensor if comm.rank == 0 else None
        with small_pieces(most), mock.patch.object(kind, "most_nonzeros", most):
            operator = make_operator(tensor, case.factors, machine, precision=precision, kernel="permuted")
            owned = [np.array(operator.machine.device.to_host(operator.mttkrp(mode))) for mode in range(operator.order)]
            whole = mttkrp_all(operator, range(operator.order))
        for mode, share in enumerate(operator.plan.modes):
            assert share.nnz == operator.plan.modes[0].nnz
            assert np.array_equal(owned[mode], case.mttkrp(mode)[share.owned])
            assert np.array_equal(whole[mode], case.mttkrp(mode))

    on_examples(comm, st.tuples(cases(), st.integers(1, 40)), check)


@pytest.mark.parametrize("precision", ["fp32", exhaustive("fp64")])
def test_rows_that_all_ranks_have(comm: Comm, machine: Any, precision: str) -> None:
    operator = make_operator(tensor_on_rank_0(comm), FACTORS, machine, precision=precision, kernel="permuted")
    usual = make_operator(tensor_on_rank_0(comm), FACTORS, machine, precision=precision)
    for mode, result in enumerate(mttkrp_all(operator, range(3))):
        assert_rounding_only(result, coo_mttkrp(COLUMNS, VALUES, FACTORS, mode), precision)
        plan, other = operator.plan.modes[mode], usual.plan.modes[mode]
        assert plan.owned == other.owned, "the same ranks solve the same rows"
        assert plan.any_row == (mode > 0)
        assert plan.cut.imbalance <= 0.02
        assert (plan.cut.split_rows.size > 0) == (comm.size > 1 and mode == 0)


@pytest.mark.parametrize("nonzeros", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(1, 1), (2, 1, 3), (1000, 2, 1, 2)])
def test_fewer_nonzeros_or_rows_than_ranks(comm: Comm, machine: Any, shape: tuple[int, ...], nonzeros: int) -> None:
    columns, values = random_nonzeros(nonzeros, shape, nonzeros)
    factors = random_factors(2, shape, 3)
    tensor = SparseTensor(columns.T, values, shape) if comm.rank == 0 else None
    operator = make_operator(tensor, factors, machine, kernel="permuted")
    for mode, result in enumerate(mttkrp_all(operator, range(len(shape)))):
        assert_rounding_only(result, coo_mttkrp(columns, values, factors, mode), "fp32")


@pytest.mark.parametrize("precision", ["fp32", exhaustive("fp64")])
def test_a_store_is_read_for_mode_0_alone(comm: Comm, machine: Any, tmp_path: Any, precision: str) -> None:
    path = comm.bcast(tmp_path) / "store"
    if comm.rank == 0:
        written = write_store(SparseTensor(COLUMNS.T, VALUES, SHAPE), path)
        for name in written.mode(2).names[1:]:  # all but what the rows' owners are found by
            file = path / name
            file.write_bytes(bytes(file.stat().st_size))
    comm.allgather(None)
    source = open_source(path, comm)
    operator = make_operator(source, FACTORS, machine, kernel="permuted", precision=precision)
    for mode, result in enumerate(mttkrp_all(operator, range(3))):
        assert_rounding_only(result, coo_mttkrp(COLUMNS, VALUES, FACTORS, mode), precision)


def test_the_fits_of_other_kernels(comm: Comm, machine: Any) -> None:
    options: dict[str, Any] = {"tol": 0, "max_iters": 5, "device": machine.device.name}
    tensor = tensor_on_rank_0(comm)
    usual, one = (amped.cp_als(tensor, 3, kernel=kernel, **options) for kernel in ("auto", "permuted"))
    np.testing.assert_allclose(one.fits, usual.fits, rtol=0, atol=1e-5)
    again = amped.cp_als(tensor, 3, kernel="permuted", **options)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one.factors, again.factors, strict=True))
    assert len(set(comm.allgather(tuple(f.tobytes() for f in one.factors)))) == 1


def test_it_is_not_streamed(comm: Comm) -> None:
    with pytest.raises(InputError, match="'stream'") as caught:
        amped.cp_als(tensor_on_rank_0(comm), 2, device="cpu", kernel="permuted", placement="stream")
    assert len(set(comm.allgather(str(caught.value)))) == 1
