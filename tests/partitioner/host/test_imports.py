"""Imports of SciPy."""

from __future__ import annotations

import re
from pathlib import Path

from command import in_process, succeeded

import partitioner

FOLDER = Path(partitioner.__file__).parents[1]
LEAN = """
import sys, threading, numpy
names = list(numpy.__all__), dir(numpy)
from partitioner.host.imports import scipy_module
threads = [threading.Thread(target=scipy_module, args=(name,)) for name in ("sparse", "linalg", "sparse")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sparse = scipy_module("sparse")
assert not {"numpy.f2py", "numpy.testing"} & sys.modules.keys(), "they take longer to load than SciPy"
assert (list(numpy.__all__), dir(numpy)) == names
layer = sys.modules["scipy._lib.array_api_compat.numpy"]
assert layer.testing is numpy.testing and layer.ma is numpy.ma
import scipy.optimize, scipy.signal, scipy.stats
assert scipy.stats.rankdata([3, 1, 2]).tolist() == [3, 1, 2]
assert (sparse.csr_array([[1, 0], [0, 2]]) @ [1, 1]).tolist() == [1, 2]
try:
    layer.missing
except AttributeError:
    print("as NumPy")
"""


def test_scipy_is_imported_without_the_rest_of_numpy(tmp_path: Path) -> None:
    """And its array-API layer has the rest when it is used."""
    (tmp_path / "lean.py").write_text(LEAN)
    assert "as NumPy" in succeeded(in_process(script=tmp_path / "lean.py")).out


def test_nothing_else_imports_scipy() -> None:
    sources = [each for name in ("amped", "partitioner") for each in (FOLDER / name).rglob("*.py")]
    assert len(sources) > 400
    found = [each.name for each in sources if re.search(r"^\s*(from|import) scipy\b", each.read_text(), re.M)]
    assert not found, "scipy_module takes less time"


SMALL = """
import sys
from amped.run import main
code = main(sys.argv[1:])
assert not code, code
assert not {"psutil", "email.parser", "numpy.ma"} & sys.modules.keys(), "they took a tenth of a small run"
"""


def test_a_small_run_loads_no_slow_modules(tmp_path: Path, without_compiled_code: None) -> None:
    (tmp_path / "small.py").write_text(SMALL)
    tensor = FOLDER / "amped" / "data" / "uber_pickups.npz"
    run = in_process("cpd", tensor, "--rank", 2, "--device", "cpu", "--output", tmp_path, script=tmp_path / "small.py")
    assert "fit" in succeeded(run).out + run.err
