"""The line that warnings name: that of the user's code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import amped
from amped.errors import warn

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"a": ["x", "x", "y", "y"], "b": ["u", "v", "u", "v"], "n": [1.0, 2.0, 3.0, 5.0]})
OTHERS = pd.DataFrame({"a": ["x", "x", "y"], "b": ["u", "v", "w"], "n": [1.0, 2.0, 3.0]})


@pytest.fixture(scope="module")
def model() -> amped.KruskalTensor:
    return amped.cp_als(amped.from_frame(TABLE, ["a", "b"], value="n"), 1)


def _table_with_gaps() -> object:
    return amped.from_frame(TABLE.assign(a=["x", None, "y", "y"]), ["a", "b"], value="n")


def _ambiguous_file(folder: Path) -> object:
    path = folder / "pairs.tns"
    path.write_text("1 1 1\n1 2 1\n2 2 3\n1 1 2\n")
    return amped.cp_als(path, 1, max_iters=1, tol=0)


def _western_file(folder: Path) -> object:
    path = folder / "t.csv"
    path.write_bytes("a,b\nx,ü\ny,v\n".encode("cp1252"))
    return amped.read(path, keys=["a", "b"])


CALLS: dict[str, Callable[[Any, Path], object]] = {
    "cp_als": lambda _, __: amped.cp_als(RNG.standard_normal((9, 9, 9)), 1, tol=1e-2),
    "cp_als of a file": lambda _, folder: _ambiguous_file(folder),
    "CP.fit": lambda _, __: amped.CP(1, tol=1e-2).fit(RNG.standard_normal((9, 9, 9))),
    "from_frame": lambda _, __: _table_with_gaps(),
    "read": lambda _, folder: _western_file(folder),
    "predict": lambda model, _: model.predict({"a": ["x", "z"], "b": ["u", "v"]}),
    "transform": lambda model, _: model.transform(OTHERS, 0, unknown="drop"),
    "score": lambda model, _: model.score(OTHERS, unknown="drop"),
    "residuals": lambda model, _: model.residuals(OTHERS, unknown="drop"),
}


@pytest.mark.parametrize("name", CALLS)
def test_warnings_name_the_line_of_the_caller(name: str, model: amped.KruskalTensor, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"\w") as caught:
        CALLS[name](model, tmp_path)
    assert {Path(each.filename).name for each in caught} == {Path(__file__).name}


def test_a_warning_within_the_standard_library_names_the_caller() -> None:
    with pytest.warns(amped.InputWarning, match="hello") as caught:
        partial(warn, "hello")()
    assert caught[0].filename == __file__
