"""The combinations that tests of kernels use by default, and the budget of variants."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations, product
from pathlib import Path
from typing import Any

import forms
import pytest

KERNELS = """
from partitioner.host.jit import inner, jit

@inner
def step(x):
    return x

@jit
def kernel(x, lanes):
    return step(x)

@jit
def other(x):
    return step(x)
"""
TESTS = """
import pytest
from kernels import kernel, other

@pytest.mark.parametrize("x", [1, 1.0])
@pytest.mark.parametrize("lanes", [(0,), (0, 0)])
def test_kernels(x, lanes):
    kernel(x, lanes)
    other(x)

def test_again():
    kernel(1, (0,))
"""
PLUGIN = """
from budget import Budget

def pytest_configure(config):
    config.pluginmanager.register(Budget({most}))
"""


def columns(row: tuple[Any, ...]) -> set[tuple[int, Any]]:
    """Return order, rank, precision, kernel, and whether that is permuted."""
    kernel = {"permuted": "plain", "phi permuted": "phi"}.get(row[3], row[3])
    return set(enumerate((*row[:3], kernel, "permuted" in row[3])))


def test_each_pair_of_values_occurs() -> None:
    """Of orders up to 4."""
    every = product(forms.ORDERS[:3], forms.RANKS, forms.PRECISIONS, forms.KERNELS)
    valid = [row for row in every if row[0] > 2 or row[3] != "fibre"]
    wanted, found = (
        {pair for row in rows for pair in combinations(sorted(columns(row)), 2)} for rows in (valid, forms.COVERING)
    )
    assert wanted <= found
    assert {row[0] for row in forms.COVERING} == set(forms.ORDERS)


@pytest.mark.parametrize(
    ("most", "status", "workers"), [(3, 1, 2), *(forms.exhaustive(*each) for each in ((4, 0, 2), (4, 0, 0), (3, 1, 0)))]
)
def test_too_many_variants_fail(tmp_path: Path, most: int, status: int, workers: int) -> None:
    """What several workers have, and what comes from the cache on the disk, counts once."""
    for name, text in (("kernels", KERNELS), ("test_kernels", TESTS), ("conftest", PLUGIN.format(most=most))):
        (tmp_path / f"{name}.py").write_text(text)
    root, options = Path(__file__).parents[1], [f"-n{workers}"] if workers else []
    path = f"pythonpath={root} {root / 'tests/helpers'} {tmp_path}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", path, *options, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert f"4 compiled or loaded, of at most {most}" in ended.stdout, ended.stdout + ended.stderr
    assert "5 passed" in ended.stdout
    assert ended.returncode == status
    assert ended.stdout.count("kernels.kernel(") == (4 if status else 0)
