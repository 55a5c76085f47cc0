"""Wrong arguments of the Python interface: an `InputError` that says what is wrong, before any work."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import random_tensor, small_tns, write_factors
from tensors import write_store

import amped
from amped import InputError, KruskalTensor, Options, SparseTensor
from amped.backend.cuda import probe
from partitioner.store.format import Store

SHAPE, RANK = (9, 7, 5), 4


@pytest.fixture
def tensor() -> SparseTensor:
    return SparseTensor(*random_tensor())


def factors(shape: tuple[int, ...] = SHAPE, rank: int = RANK) -> list[np.ndarray]:
    return [np.ones((length, rank)) for length in shape]


def test_input_error_is_a_value_error_that_knows_where() -> None:
    error = InputError("bad value", path="t.tns", line=7)
    assert isinstance(error, ValueError)
    assert (str(error), error.cause, error.path, error.line) == ("t.tns, line 7: bad value", "bad value", "t.tns", 7)
    assert str(InputError("bad value", path=Path("t.tns"))) == "t.tns: bad value"
    assert str(InputError("bad value")) == "bad value"
    # Ranks exchange errors by pickling them.
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.line) == (InputError, str(error), 7)


CP_ALS: list[tuple[dict[str, Any], str]] = [
    ({"rank": 0}, "rank 0: expected an integer from 1 to 4096"),
    ({"rank": 1025}, "rank 1025: expected an integer from 1 to 1024"),
    ({"rank": -3}, "rank -3"),
    ({"max_iters": 0}, "max_iters 0"),
    ({"tol": -1e-9}, "tol -1e-09"),
    ({"tol": float("nan")}, "tol nan"),
    ({"seed": -1}, "seed -1"),
    ({"init": "none.npz"}, "none.npz: No such file or directory, and not a start such as 'nvecs'"),
    ({"init": factors(rank=3)}, r"factor_0 of the start is \(9, 3\), expected \(9, 4\)"),
    ({"init": factors((9, 7))}, "start of 2 factor matrices for a tensor of order 3"),
    ({"init": [np.full((n, RANK), np.inf) for n in SHAPE]}, "factor_0 of the start is not finite"),
    ({"init": [np.ones(RANK) for _ in SHAPE]}, "factor_0"),
    ({"init": [np.full((n, RANK), "x") for n in SHAPE]}, "factor_0"),
    ({"device": "tpu"}, "device 'tpu'"),
    ({"precision": "fp16"}, "precision 'fp16'"),
    ({"placement": "disk"}, "placement 'disk'"),
    ({"kernel": "fastest"}, "kernel 'fastest'"),
    ({"device_memory": 1000}, "device memory"),
    ({"device_memory": 0}, "device memory"),
    ({"threads": 0}, "threads 0"),
    ({"threads": -2}, "threads -2"),
]


@pytest.mark.parametrize(("change", "message"), CP_ALS, ids=[f"{next(iter(c))}-{k}" for k, (c, _) in enumerate(CP_ALS)])
def test_cp_als(tensor: SparseTensor, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        amped.cp_als(tensor, **{"rank": RANK, "device": "cpu", **change})


WRONG_TYPES: list[tuple[str, Any, str]] = [
    ("rank", 3.0, r"rank 3\.0: expected an integer from 1 to 4096"),
    ("rank", "3", "rank '3': expected an integer"),
    ("rank", None, "rank None: expected"),
    ("rank", True, "rank True: expected"),
    ("rank", 10**5000, "rank of 16610 bits: expected"),
    ("max_iters", 2.5, r"max_iters 2\.5: expected an integer of at least 1"),
    ("tol", "small", "tol 'small': expected a number"),
    ("tol", float("nan"), "tol nan: expected"),
    ("seed", 1.5, r"seed 1\.5: expected"),
    ("threads", 2.0, r"threads 2\.0: expected"),
    ("threads", 10**400, "threads of 1329 bits: expected an integer from 1 to 4096"),
    ("kernel", 7, "kernel 7: expected a name"),
    ("precision", np.float32, "expected fp32 or fp64"),
    ("device", ["cpu"], "expected auto or cpu or cuda"),
    ("deadline", "soon", "deadline 'soon': expected seconds"),
    ("callback", "print", "callback is of type str"),
    ("callback", lambda iteration: None, "callback: it is called with the iteration and the fit"),
    ("init", 5, "init: expected matrices"),
    ("init", [[[1.0], [1.0, 2.0]]] * 3, "init: expected matrices"),
    ("X", 1.5, "X is of type float: expected a tensor or array of a known library, or the path"),
    ("X", np.ones(3), "X: order 1 tensor"),
]


@pytest.mark.parametrize(("name", "given", "message"), WRONG_TYPES, ids=[message for _, _, message in WRONG_TYPES])
def test_an_argument_of_another_type_is_named(tensor: SparseTensor, name: str, given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        amped.cp_als(**{"X": tensor, "rank": RANK, "device": "cpu", name: given})


def test_numbers_of_numpy_are_numbers(tensor: SparseTensor) -> None:
    numbers: dict[str, Any] = {
        "rank": np.int32(RANK),
        "max_iters": np.uint8(3),
        "seed": np.int64(2),
        "threads": np.int8(1),
    }
    plain: dict[str, Any] = {name: int(number) for name, number in numbers.items()}
    options: dict[str, Any] = {"device": "cpu", "deterministic": True}
    model = amped.cp_als(tensor, tol=np.float32(0), device_memory=np.int64(1 << 30), **numbers, **options)
    assert model.fits == amped.cp_als(tensor, tol=0, device_memory=1 << 30, **plain, **options).fits


def test_matrices_may_come_from_a_generator(tensor: SparseTensor) -> None:
    options: dict[str, Any] = {"max_iters": 2, "device": "cpu", "deterministic": True, "threads": 1}
    start = factors()
    model = amped.cp_als(tensor, RANK, init=(each for each in start), **options)
    assert model.fits == amped.cp_als(tensor, RANK, init=start, **options).fits


def test_the_name_that_was_meant(tensor: SparseTensor) -> None:
    with pytest.raises(TypeError, match=r"cp_als\(\) got an unexpected keyword argument 'max_iter'.*max_iters"):
        amped.cp_als(tensor, RANK, max_iter=5)  # type: ignore[call-arg]


def test_unknown_option_is_a_type_error(tensor: SparseTensor) -> None:
    with pytest.raises(TypeError, match="colour"):
        amped.cp_als(tensor, RANK, colour="red")
    with pytest.raises(TypeError, match="colour"):
        amped.mttkrp(tensor, factors(), 0, colour="red")


@pytest.mark.parametrize("mode", [-1, 3, 99, 1.0])
def test_mttkrp_mode(tensor: SparseTensor, mode: Any) -> None:
    with pytest.raises(InputError, match=rf"mode {mode}(: expected an integer| is outside 0\.\.2)"):
        amped.mttkrp(tensor, factors(), mode)


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        factors((9, 7)),
        factors((9, 7, 6)),
        [np.ones((9, 4)), np.ones((7, 4)), np.ones((5, 3))],
        [np.ones((9, 4)), np.full((7, 4), np.nan), np.ones((5, 4))],
        [np.ones(9), np.ones(7), np.ones(5)],
        [np.ones((9, 0)), np.ones((7, 0)), np.ones((5, 0))],
    ],
    ids=["none", "too few", "too long", "unequal ranks", "nan", "vectors", "no columns"],
)
def test_mttkrp_factors(tensor: SparseTensor, wrong: list[np.ndarray]) -> None:
    with pytest.raises(InputError):
        amped.mttkrp(tensor, wrong, 0, device="cpu")


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (None, "0 factor matrices for a tensor of order 3"),
        (factors((9, 7)), "2 factor matrices for a tensor of order 3"),
        ([np.ones(9), np.ones(7), np.ones(5)], r"factor_0 is of shape \(9,\): expected a matrix"),
    ],
)
def test_objective_factors(tensor: SparseTensor, wrong: Any, cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        amped.objective(tensor, wrong, device="cpu")


@pytest.mark.parametrize("call", [lambda x: amped.cp_als(x, RANK), lambda x: amped.mttkrp(x, factors(), 0), amped.read])
def test_a_path_is_read_or_refused(tmp_path: Path, call: Callable[[Any], Any]) -> None:
    missing, bad = tmp_path / "none.tns", tmp_path / "bad.tns"
    for given in (missing, str(missing)):
        with pytest.raises(InputError, match=r"none\.tns: no such file") as caught:
            call(given)
        assert caught.value.path == str(missing)
    bad.write_text("1 1 1 2.0\n1 0 1 2.0\n")
    with pytest.raises(InputError, match=r"bad\.tns, line 2: ") as caught:
        call(bad)
    assert caught.value.line == 2


def test_no_tensor() -> None:
    with pytest.raises(InputError, match="no tensor"):
        amped.cp_als(None, RANK)


@pytest.mark.skipif(not probe(), reason="this machine has a GPU")
def test_no_gpu(tensor: SparseTensor) -> None:
    with pytest.raises(InputError, match="cuda"):
        amped.cp_als(tensor, RANK, device="cuda")


INDICES, VALUES = np.array([[0, 0, 0], [1, 2, 1]]), np.array([1.0, 2.0])
TENSORS: list[tuple[Any, Any, Any, str]] = [
    (INDICES[:, :1], VALUES, None, "order 1"),
    (np.zeros((2, 9), int), VALUES, None, "order 9"),
    (INDICES.ravel(), VALUES, None, "1 dimensions"),
    (INDICES * 1.0, VALUES, None, "expected integers"),
    (INDICES - 1, VALUES, None, "negative index -1 in mode 0"),
    (INDICES, VALUES, (2, 2, 2), "index 2 of mode 1 is outside its length 2"),
    (INDICES, VALUES, (2, 3), "shape has 2 modes, the indices have 3"),
    (INDICES, VALUES, (2, 3, 2**31), "length 2147483648 of mode 2"),
    (INDICES, VALUES, (2, 3, 0), "length 0 of mode 2"),
    (INDICES + 2**31, VALUES, None, "outside 1..2147483647"),
    (np.array([[0, 2**64 - 1], [1, 0]], np.uint64), VALUES, None, "outside 1..2147483647"),
    (INDICES, VALUES[:1], None, "2 coordinates"),
    (INDICES, VALUES[:, None], None, "2 coordinates"),
    (INDICES, np.array([1.0, np.nan]), None, "value of nonzero 1 is not finite"),
    (INDICES, np.array([np.inf, 1.0]), None, "value of nonzero 0 is not finite"),
    (INDICES, np.array([1j, 1.0]), None, "complex"),
    (INDICES, np.array(["a", "b"]), None, "expected real numbers"),
    (INDICES[:0], VALUES[:0], None, "no nonzeros"),
]


@pytest.mark.parametrize(("indices", "values", "shape", "message"), TENSORS, ids=[t[3] for t in TENSORS])
def test_tensor(indices: Any, values: Any, shape: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SparseTensor(indices, values, shape)


def test_kruskal_tensor(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="for 2 weights"):
        KruskalTensor(np.ones(2), [np.ones((4, 3)), np.ones((5, 3))])
    with pytest.raises(InputError, match=r"none\.npz: No such file"):
        KruskalTensor.load(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    with pytest.raises(InputError, match=r"other\.npz: contains no factor_0"):
        KruskalTensor.load(tmp_path / "other.npz")
    with pytest.raises(InputError, match=r"small\.tns: "):
        KruskalTensor.load(small_tns(tmp_path))
    np.savez(tmp_path / "pickle.npz", factor_0=np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"pickle\.npz: "):
        KruskalTensor.load(tmp_path / "pickle.npz")
    write_factors(tmp_path / "bare.npz", SHAPE, RANK)
    assert KruskalTensor.load(tmp_path / "bare.npz").weights.tolist() == [1.0] * RANK
    with pytest.raises(InputError, match="no/such"):
        KruskalTensor.load(tmp_path / "bare.npz").save("no/such/model.npz")


def test_store(tensor: SparseTensor, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a store"):
        Store(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        write_store(tensor, tmp_path / "no" / "store")
    write_store(tensor, tmp_path / "store")
    with pytest.raises(InputError, match="exists already"):
        write_store(tensor, tmp_path / "store")
    (tmp_path / "store" / "mode1.index0.npy").unlink()
    with pytest.raises(InputError, match=r"mode1\.index0\.npy"):
        amped.cp_als(tmp_path / "store", RANK)


def test_options_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Options().device = "cuda"  # type: ignore[misc]
    with pytest.raises(InputError, match="expected fp32 or fp64"):
        _ = Options(precision="half").dtype  # type: ignore[arg-type]
