"""CP models elsewhere: in text, in other libraries, as frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import refused, run_amped, small_tns, succeeded
from hypothesis import given
from hypothesis import strategies as st

import amped
from amped.errors import InputError
from amped.models.ktensor_text import is_ktensor
from partitioner.tensors.labels import Labels, as_labels

HOW: dict[str, Any] = {"device": "cpu", "max_iters": 1, "tol": 0}


def model_of(shape: tuple[int, ...] = (4, 3, 5), rank: int = 2, dtype: Any = np.float64) -> amped.KruskalTensor:
    rng = np.random.default_rng(rank)
    return amped.KruskalTensor(rng.random(rank), [rng.standard_normal((n, rank)).astype(dtype) for n in shape])


def same(found: amped.KruskalTensor, want: amped.KruskalTensor) -> None:
    for mine, theirs in zip((found.weights, *found.factors), (want.weights, *want.factors), strict=True):
        assert mine.shape == theirs.shape
        assert np.array_equal(mine.astype(np.float64), theirs.astype(np.float64)), "bit by bit"


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=6, max_size=6), st.integers(1, 3))
def test_text_keeps_every_number(tmp_path_factory: pytest.TempPathFactory, numbers: list[float], rank: int) -> None:
    matrix = np.resize(np.array(numbers), (5, rank))
    model = amped.KruskalTensor(matrix[0], [matrix, matrix[:2], matrix[::-1]])
    path = tmp_path_factory.mktemp("text") / "x.ktn"
    model.export(path)
    found = amped.load(path)
    assert isinstance(found, amped.KruskalTensor)
    same(found, model)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "rank"), [((4, 3), 1), ((4, 1, 5), 7), ((5000, 2, 3), 3), ((2, 3, 2, 2, 3, 2), 33)])
def test_text_of_every_size(tmp_path: Path, shape: tuple[int, ...], rank: int, dtype: Any) -> None:
    model = model_of(shape, rank, dtype)
    model.export(tmp_path / "x.ktn")
    found = amped.load(tmp_path / "x.ktn")
    assert isinstance(found, amped.KruskalTensor)
    same(found, model)
    with pytest.raises(InputError, match="exists already"):
        model.export(tmp_path / "x.ktn", replace=False)


def test_text_of_pyttb_and_for_pyttb(tmp_path: Path) -> None:
    pyttb = pytest.importorskip("pyttb", reason="pyttb is not installed (extra: test)")
    model = model_of()
    model.export(tmp_path / "ours.ktn")
    theirs = pyttb.import_data(str(tmp_path / "ours.ktn"))
    same(amped.KruskalTensor.from_pyttb(theirs), model)
    pyttb.export_data(theirs, str(tmp_path / "theirs.ktn"))
    found = amped.load(tmp_path / "theirs.ktn")
    assert isinstance(found, amped.KruskalTensor)
    same(found, model)


def test_text_as_other_programs_write_it(tmp_path: Path) -> None:
    """GenTen says facmatrix, MATLAB leaves blanks at the ends of lines, people add comments."""
    path = tmp_path / "x.txt"
    path.write_text(
        "% of somebody\n\nktensor\n2\n2 3 \n2 \n// weights\n1.5e+00 5e-01 \nfacmatrix\n2\n2 2\n1 2 \n3 4 \n"
        "# the second\nmatrix\n2 \n3 2\n1 0\n0 1\n2 2\n\n"
    )
    found = amped.load(path)
    assert isinstance(found, amped.KruskalTensor)
    assert found.weights.tolist() == [1.5, 0.5]
    assert [each.tolist() for each in found.factors] == [[[1, 2], [3, 4]], [[1, 0], [0, 1], [2, 2]]]


GOOD = "ktensor\n2\n2 3\n1\n1.5\nmatrix\n2\n2 1\n1\n2\nmatrix\n2\n3 1\n3\n4\n5\n"


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("2 3\n1\n", "2 x\n1\n", 3, "'2 x' where the mode lengths should be"),
        ("2 3\n1\n", "2 3 4\n1\n", 3, "'2 3 4' where the mode lengths"),
        ("2 3\n1\n", "2 3\n0\n", 4, "'0' where the number of components"),
        ("1.5\n", "nan\n", 16, "a weight is not finite"),
        ("1.5\n", "one\n", 5, "'one' in the weights is not a number"),
        ("1.5\n", "1.5 2\n", 5, "'2' where the matrix of mode 0 should begin with matrix"),
        ("2 1\n1\n2\n", "2 2\n1\n2\n", 8, r"the matrix of mode 0 is \(2, 2\), expected \(2, 1\)"),
        ("2 1\n1\n2\n", "2 1\n1\nx\n", 10, "'x' in the matrix of mode 0 is not a number"),
        ("3\n4\n5\n", "3\n4\n", None, "ends before the end of the matrix of mode 1"),
        ("3\n4\n5\n", "3\n4\ninf\n", None, "the matrix of mode 1 is not finite"),
        ("3\n4\n5\n", "3\n4\n5\n6\n", 17, "'6' after the last matrix"),
        ("2 3\n1\n", "2 99999999999\n1\n", None, "expected"),
    ],
)  # fmt: skip
def test_text_that_is_wrong(tmp_path: Path, old: str, new: str, line: int | None, message: str) -> None:
    path = tmp_path / "x.ktn"
    path.write_text(GOOD)
    amped.load(path)
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as caught:
        amped.load(path)
    assert line is None or caught.value.line == line
    assert "\n" not in str(caught.value)
    for cut in range(1, len(GOOD)):  # wherever the text ends, that is an error unless it is complete
        path.write_text(GOOD[:cut])
        if GOOD[:cut].split() != GOOD.split():
            with pytest.raises(InputError):
                amped.load(path)


def test_headers_that_lie_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.ktn"
    path.write_text("ktensor\n2\n2 3\n99999999999999\n1 2 3\n")
    with pytest.raises(InputError, match="the file ends before the end of the weights"):
        amped.load(path)
    assert not is_ktensor(tmp_path)
    assert not is_ktensor(tmp_path / "none")


def test_text_and_folders_are_starts(folder: Path) -> None:
    path = small_tns(folder)
    succeeded(run_amped("cpd", path, "--rank", 3, "--max-iters", 2, "--device", "cpu", "--output", "out"))
    model = amped.load("out")
    assert isinstance(model, amped.KruskalTensor)
    model.export("x.ktn")
    found = [amped.cp_als(path, 3, init=init, **HOW) for init in ("x.ktn", model, Path("x.ktn"))]
    for each in found[1:]:
        assert np.array_equal(each.factors[1], found[0].factors[1])
    plain = amped.KruskalTensor(np.ones(3), model.factors)
    for init in ("out", "out/model.npz"):
        assert np.array_equal(
            amped.cp_als(path, 3, init=init, **HOW).factors[1], amped.cp_als(path, 3, init=plain, **HOW).factors[1]
        )
    flags = ("--rank", 3, "--max-iters", 1, "--tol", 0, "--device", "cpu")
    succeeded(run_amped("cpd", path, *flags, "--init", "x.ktn", "--output", "again"))
    assert np.array_equal(amped.load("again").factors[1], found[0].factors[1])
    Path("x.ktn").write_text("ktensor\n3\n")
    refused(run_amped("cpd", path, *flags, "--init", "x.ktn"), "x.ktn", "line 2", "the file ends before")


def test_show_writes_text(folder: Path) -> None:
    path = small_tns(folder)
    succeeded(run_amped("cpd", path, "--rank", 2, "--max-iters", 2, "--device", "cpu", "--output", "out"))
    assert "x.ktn" in succeeded(run_amped("show", "out", "--export", "x.ktn")).out
    want, found = amped.load("out"), amped.load("x.ktn")
    assert isinstance(want, amped.KruskalTensor)
    assert isinstance(found, amped.KruskalTensor)
    same(found, want)
    assert "component 2" in succeeded(run_amped("show", "x.ktn")).out
    refused(run_amped("show", "out", "--export", "x.ktn"), "x.ktn", "exists already")
    succeeded(run_amped("tucker", path, "--rank", "2,2,2", "--max-iters", 1, "--device", "cpu", "--output", "core"))
    refused(run_amped("show", "core", "--export", "y.ktn"), "core", "ktensor")
    assert not Path("y.ktn").exists()


LIBRARIES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "pyttb": (amped.KruskalTensor.to_pyttb, amped.KruskalTensor.from_pyttb),
    "tensorly": (amped.KruskalTensor.to_tensorly, amped.KruskalTensor.from_tensorly),
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("shape", [(4, 3), (4, 1, 5), (2, 3, 2, 2, 3, 2)])
def test_other_libraries_and_back(library: str, shape: tuple[int, ...]) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed (extra: test)")
    model = model_of(shape, 3)
    there, back = LIBRARIES[library]
    found = back(there(model))
    same(found, model)
    found.factors[0][:] = 0
    same(model, model_of(shape, 3))
    with pytest.raises(InputError, match="not a CP model"):
        back(amped.TuckerTensor(np.ones((1, 1)), [np.ones((2, 1)), np.ones((3, 1))]))


def test_pairs_as_tensorly_has_them() -> None:
    model = model_of()
    same(amped.KruskalTensor.from_tensorly((model.weights, model.factors)), model)
    same(amped.KruskalTensor.from_tensorly((None, model.factors)), amped.KruskalTensor(np.ones(2), model.factors))


def test_frames() -> None:
    pandas = pytest.importorskip("pandas")
    model = model_of((2, 3))
    model.labels = Labels(map(as_labels, (["a", "b"], [10, 20, 30])), ["who", "size"])
    weights, factors = model.to_frames()
    assert np.array_equal(weights, model.weights)
    assert [list(each.index) for each in factors] == [["a", "b"], [10, 20, 30]]
    assert [each.index.name for each in factors] == ["who", "size"]
    assert isinstance(factors[0], pandas.DataFrame)
    assert np.array_equal(factors[1].to_numpy(), model.factors[1])
    same(amped.KruskalTensor.from_tensorly((weights, factors)), model)
