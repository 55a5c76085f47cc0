"""Tables under mpirun: the same tensor and labels on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from planted import GROUPS, KEYS, found_groups, planted
from tensors import files_of

import amped
from amped.parallel.mpi import Comm, SingleComm
from amped.runs.assembly import open_path
from partitioner.build import partition
from partitioner.errors import InputError
from partitioner.readers import ReadOptions, read

duckdb = pytest.importorskip("duckdb")
pyarrow = pytest.importorskip("pyarrow")
FORM = ReadOptions(key=tuple(KEYS))
pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module", params=["csv", "parquet"])
def path(comm: Comm, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The planted table, in a folder that all ranks see."""
    with TemporaryDirectory() as mine:
        folder = Path(comm.bcast(mine))
        name = folder / f"events.{request.param}"
        if comm.rank == 0:
            getattr(duckdb.from_arrow(pyarrow.table(planted())), f"write_{request.param}")(str(name))
        comm.allgather(None)
        yield name
        comm.allgather(None)


def test_every_rank_has_its_share_and_all_labels(comm: Comm, path: Path) -> None:
    whole = read(path, keys=KEYS)
    source = open_path(path, comm, form=FORM)
    assert isinstance(whole, amped.SparseTensor)
    assert (source.shape, source.nnz, source.norm) == (whole.shape, whole.nnz, whole.norm())
    assert source.labels is not None
    assert whole.labels is not None
    assert [each.tolist() for each in source.labels] == [each.tolist() for each in whole.labels]
    assert source.labels.names == tuple(KEYS)
    assert source.digest() == open_path(path, SingleComm(), form=FORM).digest()


def test_a_store_has_the_same_bytes(comm: Comm, path: Path) -> None:
    for name, form in (("store", FORM), ("summed", ReadOptions(key=FORM.key, value="1::DOUBLE"))):
        store = partition(path, path.parent / f"{name}-{path.suffix[1:]}", ranks=comm, form=form)
        if comm.rank == 0:
            single = partition(path, path.parent / f"single-{name}-{path.suffix[1:]}", form=form)
            assert files_of(store.path) == files_of(single.path)
        comm.allgather(None)


def test_planted_groups_come_back(comm: Comm, path: Path) -> None:
    frame = amped.from_frame(pyarrow.table(planted()), KEYS) if comm.rank == 0 else None
    store = partition(path, path.parent / f"planted-{path.suffix[1:]}", ranks=comm, form=FORM, force=True).path
    for tensor in (frame, store):
        model = amped.cp_als(tensor, len(GROUPS), nonnegative=True, device="cpu", starts=2, max_iters=20)
        assert found_groups(model) == GROUPS
        assert model.labels is not None
        first = comm.bcast([each.tolist() for each in model.labels])
        assert [each.tolist() for each in model.labels] == first


@pytest.mark.parametrize("key", ["nothing", "hour(", "user::INT"])
def test_every_rank_raises_what_is_wrong(comm: Comm, path: Path, key: str) -> None:
    form = ReadOptions(key=("host", key))
    told = []
    for make in (
        lambda: open_path(path, comm, form=form),
        lambda: partition(path, path.parent / "none", ranks=comm, form=form),
    ):
        with pytest.raises(InputError) as error:
            make()
        told.append(str(error.value))
    assert len(set(comm.allgather(tuple(told)))) == 1


def test_compact(comm: Comm, path: Path) -> None:
    form = ReadOptions(key=FORM.key, compact=True)
    source, whole = open_path(path, comm, form=form), read(path, keys=KEYS, compact=True)
    assert source.shape == whole.shape
    assert source.labels is not None
    assert source.labels[2].tolist() == np.unique([hour for group in GROUPS for hour in group[2]]).tolist()
