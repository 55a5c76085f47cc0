"""Arrays of callers are only read: they may be read-only, and they are the same afterwards, on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from command import random_tensor
from forms import exhaustive

import amped
from amped.errors import InputError
from amped.parallel import mpi
from amped.parallel.mpi import Comm, share
from partitioner.host import ranks

pytestmark = pytest.mark.mpi

SHAPE, RANK = (9, 7, 5), 3
HOW: dict[str, Any] = {"device": "cpu", "threads": 1, "deterministic": True}
RUN: dict[str, Any] = {**HOW, "max_iters": 2, "tol": 0}


class Given:
    """Arrays of a caller, and what was in them."""

    def __init__(self, writeable: bool) -> None:
        self._writeable = writeable
        self._all: list[tuple[np.ndarray, np.ndarray]] = []

    def __call__(self, array: np.ndarray) -> np.ndarray:
        array.flags.writeable = self._writeable
        self._all.append((array, array.copy()))
        return array

    def check(self) -> None:
        assert self._all
        for array, before in self._all:
            assert array.tobytes() == before.tobytes()
            assert array.flags.writeable == self._writeable


def matrices(given: Given, dtype: str, order: Any, columns: int = RANK, shape: tuple[int, ...] = SHAPE) -> list[Any]:
    rng = np.random.default_rng(1)
    return [given(np.array(rng.random((length, columns)), dtype, order=order)) for length in shape]


def sparse(given: Given, index: str, value: str, order: Any) -> amped.SparseTensor:
    """Of rows in no order, with a coordinate that is there twice and a zero."""
    indices, values = random_tensor(SHAPE)
    mixed = np.random.default_rng(2).permutation(len(indices))
    indices, values = np.vstack([indices[mixed], indices[:2]]), np.concatenate([values[mixed], [0.5, 0.0]])
    return amped.SparseTensor(given(np.array(indices, index, order=order)), given(values.astype(value)), SHAPE)


def dense(given: Given, dtype: str, order: Any) -> np.ndarray:
    return given(np.array(np.random.default_rng(3).random(SHAPE), dtype, order=order))


def semisparse(given: Given, dtype: str, order: Any) -> amped.SemiSparseTensor:
    """The product of a tensor and a matrix, from the caller's arrays."""
    found = amped.ttm(sparse(given, "i4", dtype, order), matrices(given, dtype, order)[1], 1, **HOW)
    indices, values = (given(np.array(each, order=order)) for each in (found.indices, found.values))
    return amped.SemiSparseTensor(indices, values, 1, found.shape)


def cp_model(given: Given, dtype: str, order: Any) -> amped.KruskalTensor:
    return amped.KruskalTensor(given(np.array([2.0, 1.0, 0.5])), matrices(given, dtype, order))


def tucker_model(given: Given, dtype: str, order: Any) -> amped.TuckerTensor:
    found = matrices(given, "f8", "C", 2)
    factors = [given(np.array(np.linalg.qr(each)[0], dtype, order=order)) for each in found]
    return amped.TuckerTensor(given(np.random.default_rng(4).random((2, 2, 2))), factors)


def labelled(given: Given) -> Any:
    """A tensor and a model with labels that are another way round."""
    tensor = sparse(given, "i4", "f8", "C")
    tensor.labels = [given(np.arange(10, 10 + length)) for length in SHAPE]
    return tensor


Call = Callable[[Given, str, Any], Any]
CALLS: dict[str, Call] = {
    "cp_als init": lambda g, t, o: amped.cp_als(sparse(g, "i8", t, o), RANK, init=matrices(g, t, o), **RUN),
    "cp_als dense init": lambda g, t, o: amped.cp_als(dense(g, t, o), RANK, init=matrices(g, t, o), **RUN),
    "cp_als constrained": lambda g, t, o: amped.cp_als(
        sparse(g, "i4", t, o),
        RANK,
        init=matrices(g, t, o),
        nonnegative=(0,),
        ridge=(0.1, 0, 0),
        fixed_modes=(1,),
        **RUN,
    ),
    "cp_als nvecs": lambda g, t, o: amped.cp_als(sparse(g, "i4", t, o), RANK, init="nvecs", **RUN),
    "cp_als labels": lambda g, t, o: amped.cp_als(labelled(g), RANK, **RUN),
    "cp_apr init": lambda g, t, o: amped.cp_apr(sparse(g, "i4", t, o), RANK, init=matrices(g, t, o), **RUN),
    "cp_apr pdnr": lambda g, t, o: amped.cp_apr(
        sparse(g, "i4", t, o), RANK, init=matrices(g, t, o), method="pdnr", mu_iters=1, **RUN
    ),
    "tucker init": lambda g, t, o: amped.tucker(sparse(g, "i4", t, o), (2, 2, 2), init=matrices(g, t, o, 2), **RUN),
    "tucker dense": lambda g, t, o: amped.tucker(dense(g, t, o), (2, 2, 2), init=matrices(g, t, o, 2), **RUN),
    "tucker hosvd": lambda g, t, o: amped.tucker(dense(g, t, o), (2, 2, 2), method="hosvd", **HOW),
    "mttkrp": lambda g, t, o: amped.mttkrp(sparse(g, "i4", t, o), matrices(g, t, o), 1, **HOW),
    "mttkrp dense": lambda g, t, o: amped.mttkrp(dense(g, t, o), matrices(g, t, o), 1, **HOW),
    "ttm": lambda g, t, o: amped.ttm(sparse(g, "i4", t, o), matrices(g, t, o)[1], 1, **HOW),
    "ttm of a product": lambda g, t, o: amped.ttm(semisparse(g, t, o), matrices(g, t, o)[2], 2, **HOW),
    "core_consistency": lambda g, t, o: amped.core_consistency(sparse(g, "i4", t, o), cp_model(g, t, o), **HOW),
    "core_consistency dense": lambda g, t, o: amped.core_consistency(dense(g, t, o), cp_model(g, t, o), **HOW),
    "transform cp": lambda g, t, o: cp_model(g, t, o).transform(sparse(g, "i4", t, o), 0, **HOW),
    "transform tucker": lambda g, t, o: tucker_model(g, t, o).transform(sparse(g, "i4", t, o), 0, **HOW),
    "scan": lambda g, t, o: amped.scan(sparse(g, "i4", t, o), RANK, starts=1, max_iters=2, tol=0, **HOW).models[0],
    "scan dense": lambda g, t, o: amped.scan(dense(g, t, o), RANK, starts=1, max_iters=2, tol=0, **HOW).models[0],
}


def arrays_of(result: Any) -> list[np.ndarray]:
    """Return all numbers of a result."""
    if isinstance(result, amped.KruskalTensor):
        return [result.weights, *result.factors]
    if isinstance(result, amped.TuckerTensor):
        return [result.core, *result.factors]
    if isinstance(result, amped.SemiSparseTensor):
        return [result.indices, result.values]
    return [np.asarray(result)]


@pytest.mark.filterwarnings("ignore::amped.InputWarning")
@pytest.mark.parametrize(("order", "precision"), [("C", "fp32"), ("F", "fp32"), exhaustive("C", "fp64")])
@pytest.mark.parametrize("name", CALLS)
def test_arrays_of_callers_are_only_read(
    name: str, order: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HOW, "precision", precision)
    monkeypatch.setitem(RUN, "precision", precision)
    found = []
    for writeable in (True, False):
        given = Given(writeable)
        found.append(arrays_of(CALLS[name](given, {"fp32": "f4", "fp64": "f8"}[precision], order)))
        given.check()
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_mode_of_length_1_at_rank_1(comm: Comm) -> None:
    """A matrix of one number has strides that say nothing."""
    tensor = amped.SparseTensor(np.array([[0, 0, 0], [1, 0, 2]]), np.array([1.0, 2.0]), (2, 1, 3))
    factors = [np.array([[1.0], [2.0]]), np.broadcast_to(np.array(3.0), (1, 1)), np.array([[1.0], [2.0], [3.0]])]
    for mode, want in enumerate(([[3.0], [18.0]], [[13.0]], [[3.0], [0.0], [12.0]])):
        found = amped.mttkrp(tensor, factors, mode, **HOW, precision="fp64")
        assert comm.allgather(found.tolist()) == [want] * comm.size


@pytest.mark.parametrize("message", [8, 24, 1 << 30])
def test_rank_0_shares_what_it_may_not_write_to(comm: Comm, message: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one message or several, from columns or rows."""
    monkeypatch.setattr(ranks, "MESSAGE", message)
    for shape in ((5, 3), (1, 1), (0, 3), (7,), (2, 3, 4)):
        for order in ("C", "F"):
            mine = np.array(np.arange(np.prod(shape)).reshape(shape), "f8", order=order)
            mine.flags.writeable = False
            found = share(comm, mine if comm.rank == 0 else None)
            np.testing.assert_array_equal(found, mine)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("together", [mpi.together, mpi.on_root])
def test_any_error_on_one_rank_is_raised_by_all(comm: Comm, bad: int, together: Any) -> None:
    """Also one that no input explains: the others would wait for ever."""

    def work() -> None:
        if comm.rank == bad:
            raise BufferError("read-only")

    if together is mpi.on_root and bad:
        assert together(comm, work) is None  # only rank 0 runs it
        return
    with pytest.raises(BufferError if comm.rank == bad else InputError, match="read-only"):
        together(comm, work)
    assert comm.allgather(comm.rank) == list(range(comm.size)), "ranks are in step afterwards"
