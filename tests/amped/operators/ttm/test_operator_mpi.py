"""Products of a sparse tensor on several ranks, which may share fibres, or have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forms import exhaustive
from oracle import splitmix_factors
from tensors import write_store, write_tns
from ttmcases import SHAPES, dense_of, dense_product, gathered, operator_of, small_pieces, source_of, tensor_of

import amped
from amped.backend.null.device import NullDevice
from amped.errors import InputError
from amped.operators.sources.distributed import evened
from amped.parallel.mpi import Comm, on_root

pytestmark = pytest.mark.mpi


@pytest.fixture
def folder(comm: Comm, tmp_path: Path) -> Path:
    """A folder that all ranks see."""
    return comm.bcast(tmp_path)


def same(found: Any, want: np.ndarray, mode: int, comm: Comm, tolerance: float = 1e-13) -> None:
    """Hold a result to a dense one, and to those of the other ranks."""
    assert isinstance(found, amped.SemiSparseTensor)
    assert found.modes[-1] == mode
    assert np.linalg.norm(found.to_dense() - want) <= tolerance * np.linalg.norm(want)
    assert len(set(comm.allgather((found.indices.tobytes(), found.values.tobytes())))) == 1


@pytest.mark.parametrize("shape", [shape if len(shape) < 5 else exhaustive(shape) for shape in SHAPES], ids=str)
@pytest.mark.parametrize(("nonzeros", "heavy"), [(3, 0.0), (200, 1.0), exhaustive(1, 0.0), exhaustive(200, 0.0)])
def test_every_rank_has_the_result(comm: Comm, shape: tuple[int, ...], nonzeros: int, heavy: float) -> None:
    tensor = tensor_of(shape, nonzeros, 3, heavy)
    for mode, length in enumerate(shape):
        matrix = np.random.default_rng(mode).random((length, 5)) + 0.5
        for placement in ("resident", "stream"):
            of_root = tensor if comm.rank == 0 else None
            found = amped.ttm(of_root, matrix, mode, device="cpu", precision="fp64", placement=placement)  # type: ignore[arg-type]
            same(found, dense_product(dense_of(tensor), matrix, mode), mode, comm)


@pytest.mark.parametrize("heavy", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("piece", [1, 4, 30])
def test_fibres_that_pieces_and_ranks_share(comm: Comm, piece: int, heavy: float) -> None:
    tensor, device = tensor_of((5, 200, 3), 300, 1, heavy), NullDevice(comm)
    array, matrix = dense_of(tensor), np.random.default_rng(0).random((200, 4))
    with small_pieces(piece):
        for memory in (2 << 13, 1 << 30):
            source = source_of(tensor if comm.rank == 0 else None, comm)
            try:
                operator = operator_of(source, device, comm, 1, 4, precision="fp64", device_memory=memory)
            except InputError:
                assert memory < 1 << 30
                continue
            operator.set_matrix(matrix)
            for _ in range(2):
                operator._out.fill(np.nan)
                indices, values = gathered(operator, comm)
                found = amped.SemiSparseTensor(indices, values, 1, (5, 4, 3))
                same(found, dense_product(array, matrix, 1), 1, comm)


@pytest.mark.parametrize("kind", ["tns", "store"])
@pytest.mark.parametrize("heavy", [0.0, 1.0])
def test_what_ranks_read_together(comm: Comm, folder: Path, kind: str, heavy: float) -> None:
    tensor, path = tensor_of((30, 40, 20), 900, 2, heavy), folder / f"t.{kind}"

    def write() -> None:
        if kind == "tns":
            write_tns(path, tensor.columns, tensor.values)
        else:
            write_store(tensor, path)

    on_root(comm, write)
    there = amped.read(path)  # a text's modes end with the last index in use
    assert isinstance(there, amped.SparseTensor)
    for mode in range(3):
        matrix = np.random.default_rng(mode).random((there.shape[mode], 6))
        want = dense_product(dense_of(there), matrix, mode)
        found = amped.ttm(path, matrix, mode, device="cpu", precision="fp64")
        same(found, want, mode, comm)


@pytest.mark.parametrize("memory", [None, 40_000])
def test_a_file_that_ranks_write_together(comm: Comm, folder: Path, memory: int | None) -> None:
    tensor, path = tensor_of((30, 40, 20), 900, 1), folder / "y.npz"
    factors = splitmix_factors(tensor.shape, 7)
    of_root = tensor if comm.rank == 0 else None
    how: dict[str, Any] = {"device": "cpu", "precision": "fp64"}
    whole = amped.ttm(of_root, factors[1], 1, **how)
    with small_pieces(20):
        assert amped.ttm(of_root, factors[1], 1, output=path, device_memory=memory, **how) == str(path)
    comm.allgather(None)
    found = amped.SemiSparseTensor.load(path)
    assert isinstance(whole, amped.SemiSparseTensor)
    np.testing.assert_array_equal(found.indices, whole.indices)
    np.testing.assert_allclose(found.values, whole.values, rtol=1e-13)
    assert (found.shape, found.modes) == (whole.shape, (1,))

    # A chain, of the file and of the tensor in memory: in a sparse mode, and in the dense one.
    for mode in (0, 1):
        matrix = np.random.default_rng(mode).random((found.shape[mode], 3))
        want = dense_product(found.to_dense(), matrix, mode)
        for given in (path, found if comm.rank == 0 else None):
            same(amped.ttm(given, matrix, mode, **how), want, mode, comm)


def test_every_rank_refuses_what_one_finds(comm: Comm, folder: Path) -> None:
    tensor = tensor_of((30, 40, 20), 900)
    of_root = tensor if comm.rank == 0 else None
    with pytest.raises(InputError, match="cannot write"):
        amped.ttm(of_root, np.ones((30, 2)), 0, output=folder / "missing" / "y.npz", device="cpu")
    huge = np.full((30, 2), 3e38)
    for output in (None, folder / "y.npz"):
        with pytest.raises(InputError, match=r"not finite|failed"):
            amped.ttm(of_root, huge, 0, output=output, device="cpu")
    assert not (folder / "y.npz").exists()


def test_equal_shares(comm: Comm) -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        sizes = rng.choice([0, 0, 1, 5, 40], comm.size)
        whole = np.arange(sizes.sum())
        begin = int(sizes[: comm.rank].sum())
        mine = [whole[begin : begin + sizes[comm.rank]].astype(kind) for kind in (np.int32, np.float64)]
        for found in evened(mine, comm):
            parts = comm.allgather(found)
            np.testing.assert_array_equal(np.concatenate(parts), whole)
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
