"""New data on known components, and what a verbose call prints, on several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import amped
from amped.parallel.mpi import Comm
from partitioner.tensors.labels import Labels, as_labels

LABELS = [list("abcde"), [10, 20, 30, 40], list("wxyz")]
HOW: dict[str, Any] = {"device": "cpu", "precision": "fp64", "max_iters": 2, "tol": 0}
CPU = {"device": "cpu", "precision": "fp64"}


def tensor_of() -> amped.SparseTensor:
    rng = np.random.default_rng(0)
    dense = rng.random((5, 4, 4))
    tensor = amped.SparseTensor(np.argwhere(dense > 0.4), dense[dense > 0.4], dense.shape)
    tensor.labels = Labels(
        (as_labels(each[: tensor.shape[m]]) for m, each in enumerate(LABELS)), ["who", "size", "what"]
    )
    return tensor


def turned(tensor: amped.SparseTensor) -> amped.SparseTensor:
    """The same tensor with the indices of the last modes backwards."""
    found: amped.SparseTensor = tensor[:, ::-1, ::-1]
    return found


@pytest.mark.parametrize("kind", ["cp", "tucker"])
def test_rank_0_s_labels_are_matched(comm: Comm, kind: str) -> None:
    tensor = tensor_of()
    model: Any = amped.cp_als(tensor, 2, **HOW) if kind == "cp" else amped.tucker(tensor, (2, 2, 2), **HOW)
    want = model.transform(tensor, 0, **CPU)
    found = model.transform(turned(tensor) if comm.rank == 0 else None, 0, **CPU)
    np.testing.assert_allclose(found, want, atol=1e-12)
    assert all(np.array_equal(each, found) for each in comm.allgather(found))
    other = tensor_of()
    other.labels = [LABELS[0], list("pqrs"), LABELS[2]]
    with pytest.raises(amped.InputError, match="X: size: labels are texts, the model's numbers"):
        model.transform(other if comm.rank == 0 else None, 0, **CPU)


@pytest.fixture
def folder(comm: Comm) -> Iterator[Path]:
    """A folder that all ranks see."""
    with TemporaryDirectory() as mine:
        yield Path(comm.bcast(mine))
        comm.allgather(None)


def test_rank_0_reads_tables(comm: Comm, folder: Path) -> None:
    pytest.importorskip("duckdb")
    path = folder / "x.csv"
    if comm.rank == 0:
        rng = np.random.default_rng(1)
        lines = [
            f"{who},{size},{what}" for who, size, what in zip(*(rng.choice(each, 200) for each in LABELS), strict=True)
        ]
        path.write_text("\n".join(["who,size,what", *lines, ""]))
    comm.allgather(None)
    tensor = amped.read(path, keys=["who", "size", "what"])
    model = amped.cp_als(tensor, 2, **HOW)
    assert np.array_equal(model.transform(path, 1, **CPU), model.transform(tensor, 1, **CPU))
    with pytest.raises(amped.InputError, match="no column nobody"):
        model.transform(path, 1, where="nobody > 1", **CPU)


def test_a_verbose_call_prints_once(comm: Comm, capfd: pytest.CaptureFixture[str]) -> None:
    comm.allgather(None)
    amped.cp_als(tensor_of(), 2, verbose=True, **HOW)
    out = capfd.readouterr().out
    if comm.rank:
        assert not out
    else:
        assert out.count("iteration   2  fit ") == 1
        assert f"{comm.size} rank" in out
