"""A dense tensor on several ranks, some of them without any element."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from denseblocks import use_dimension_trees
from densecases import dense_operator, low_rank
from forms import in_turn
from oracle import assert_rounding_only, dense_mttkrp, random_factors

import amped
from amped.backend.ops.dimension_tree import DimensionTreeSweep
from amped.errors import InputError
from amped.methods.als import CpAls
from amped.methods.driver import StopRule, iterate
from amped.parallel.mpi import Comm

SHAPES = [(9, 4, 7), (2, 9, 5), (1, 3, 40), (2, 2), (1, 1, 6), (30, 5), (3, 1, 4, 5, 2)]


@pytest.fixture
def shared(comm: Comm, tmp_path: Path) -> Path:
    """A folder of rank 0's, the same on all ranks."""
    return comm.bcast(tmp_path)


@pytest.mark.parametrize(("shape", "precision"), in_turn(SHAPES), ids=str)
@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_mttkrps_are_right(
    comm: Comm, device: str, shared: Path, shape: tuple[int, ...], precision: str, placement: str
) -> None:
    array, factors = np.random.default_rng(1).random(shape), random_factors(2, shape, 5)
    if comm.rank == 0:
        np.save(shared / "c.npy", array)
        np.save(shared / "f.npy", np.asfortranarray(array))
    comm.allgather(None)
    for tensor in (array, np.asfortranarray(array), shared / "c.npy", shared / "f.npy"):
        operator = dense_operator(tensor, factors, comm, precision=precision, placement=placement, device=device)
        for mode in range(len(shape)):
            for double in (False, True):
                got = operator.gathered(mode, operator.mttkrp(mode, double=double))
                assert_rounding_only(got, dense_mttkrp(array, factors, mode), precision)
        assert operator.norm == pytest.approx(np.linalg.norm(array), rel=1e-6)


@pytest.mark.parametrize("kind", ["file", "array"])
def test_one_rank_alone_streams(comm: Comm, shared: Path, kind: str) -> None:
    """Each rank has its own device, with this much memory."""
    array = np.random.default_rng(1).random((40, 30, 20))
    factors = random_factors(2, array.shape, 5)
    if comm.rank == 0:
        np.save(shared / "x.npy", array)
    comm.allgather(None)
    tensor, last = shared / "x.npy" if kind == "file" else array, comm.rank == comm.size - 1
    options = {"precision": "fp32"}  # an array of another type is not used where it is
    plan = dense_operator(tensor, factors, comm, **options).plan
    little = sum(plan.device_bytes.values()) - 1 if last else None
    operator = dense_operator(tensor, factors, comm, device_memory=little, **options)
    assert operator.plan.streamed == last
    assert operator.norm == pytest.approx(np.linalg.norm(array), rel=1e-6)
    for mode in range(3):
        got = operator.gathered(mode, operator.mttkrp(mode))
        assert_rounding_only(got, dense_mttkrp(array, factors, mode), "fp32")


@pytest.mark.parametrize("shape", [(20, 6, 9), (2, 30, 9)], ids=str)
@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_all_ranks_find_the_same_model_as_one(comm: Comm, device: str, shape: tuple[int, ...], placement: str) -> None:
    array = low_rank(shape, 3, noise=0.05)
    alone = amped.cp_als(array, 3, tol=0, max_iters=12, precision="fp64", device=device, placement=placement)
    start = [f.copy() for f in random_factors(0, shape, 3)]
    model = amped.cp_als(
        array, 3, init=start, tol=0, max_iters=12, precision="fp64", device=device, placement=placement
    )
    sparse = amped.SparseTensor(np.argwhere(array), array[array != 0], shape)
    other = amped.cp_als(sparse, 3, init=start, tol=0, max_iters=12, precision="fp64", device=device)
    assert np.abs(np.subtract(model.fits, other.fits)).max() <= 1e-11
    for found, want in zip(model.factors, other.factors, strict=True):
        assert np.abs(found - want).max() <= 1e-9
    assert len(set(comm.allgather(alone.fits[-1]))) == 1


def test_every_rank_says_where_an_element_is_not_finite(comm: Comm, shared: Path) -> None:
    array = np.ones((11, 7, 5))
    array[8, 2, 3] = np.nan
    if comm.rank == 0:
        np.save(shared / "x.npy", array)
    comm.allgather(None)
    for tensor in (shared / "x.npy", array):
        with pytest.raises(InputError, match=r"element \[8, 2, 3\] is nan"):
            dense_operator(tensor, random_factors(0, array.shape, 2), comm)


def test_a_digest_is_the_same_on_any_number_of_ranks(comm: Comm, shared: Path) -> None:
    array = np.random.default_rng(0).random((11, 7, 5))
    if comm.rank == 0:
        np.save(shared / "x.npy", array)
    comm.allgather(None)
    from amped.operators.sources.dense import of_array, open_dense_source
    from partitioner.tensors.dense import DenseTensor

    want = DenseTensor(array).digest()
    assert open_dense_source(shared / "x.npy", comm).digest() == want
    assert of_array(DenseTensor(array) if comm.rank == 0 else None, comm).digest() == want


@pytest.mark.parametrize("shape", [(20, 6, 9), (2, 30, 9)], ids=str)
def test_constraints_are_kept(comm: Comm, device: str, shape: tuple[int, ...]) -> None:
    array = abs(low_rank(shape, 3))
    model = amped.cp_als(array, 3, nonnegative=True, max_iters=5, tol=0, precision="fp64", device=device)
    assert all((factor >= 0).all() for factor in model.factors)
    assert model.fits[-1] >= model.fits[0]


@pytest.mark.parametrize("shape", [(20, 6, 9), (2, 30, 9)], ids=str)
@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_products_that_serve_pairs_of_modes(
    comm: Comm, device: str, shape: tuple[int, ...], placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where partial results are whole, on any number of ranks; rows of a single rank may be passed on, too."""
    use_dimension_trees(monkeypatch)
    array, options = low_rank(shape, 3, noise=0.05), {"device": device, "placement": placement}
    start = [f.copy() for f in random_factors(0, shape, 3)]
    found = []
    for deterministic in (False, True):
        operator = dense_operator(array, start, comm, deterministic=deterministic, **options)
        if operator.plan.form.elements:
            assert isinstance(operator._sweep, DimensionTreeSweep) != deterministic
        method = CpAls(operator)
        for _ in iterate(method, StopRule(7, 0)):
            pass
        found.append((method.state.series["fit"], [method.factor(mode) for mode in range(3)]))
    (fits, got), (others, want) = found
    assert np.abs(np.subtract(fits, others)).max() <= 1e-12
    for mode in range(3):
        assert np.abs(got[mode] - want[mode]).max() <= 1e-9 * np.abs(want[mode]).max()
