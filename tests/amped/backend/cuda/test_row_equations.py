"""The row solver of GPUs (``row_equations.cuh``) by a C++ compiler: its results, but not its barriers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import amped.backend.cuda

INCLUDE = Path(amped.backend.cuda.__file__).parent / "include"
ROWS = 400
Matrix = NDArray[np.float64]


@pytest.fixture(scope="module", params=[1, 4, 7])
def rank(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def solver(rank: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program for a number of columns."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    program = tmp_path_factory.mktemp("row_equations") / "solve"
    flags = ["-std=c++17", "-w", f"-DRANK={rank}", f"-I{INCLUDE}", "-o", str(program)]
    subprocess.run([compiler, *flags, Path(__file__).with_name("row_equations.cpp")], check=True)
    return program


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("span", [0, 3, 9, 16, 31])
def test_rows_are_least_squares(solver: Path, rank: int, span: int, ridge: float) -> None:
    """Of components that differ in size by up to 10**span, some of which are zero, with few or many elements."""
    rng = np.random.default_rng(span)
    problems = list[tuple[Matrix, Matrix]]()
    for number in range(ROWS):
        products = rng.standard_normal((int(rng.integers(1, 2 * rank + 1)), rank)) * 10.0 ** rng.uniform(-span, 0, rank)
        products[:, rng.integers(rank)] *= number % 7 > 0
        problems.append((products, rng.standard_normal(len(products))))
    numbers = [[*(v.T @ v).ravel(), *(v.T @ x), ridge] for v, x in problems]
    text = "\n".join([str(ROWS), *(" ".join(f"{number:.17g}" for number in each) for each in numbers)])
    found = subprocess.run([solver], input=text, capture_output=True, text=True, check=True).stdout
    for line, (v, x) in zip(found.splitlines(), problems, strict=True):
        *row, change, deficient = map(float, line.split())
        check(np.array(row), change, v, x, ridge)
        best = np.linalg.lstsq(v, x, rcond=None)[0]
        if span <= 3 and not ridge:
            np.testing.assert_allclose(row, best, atol=1e-4 * max(np.abs(best).max(), 1e-300))
            assert deficient == (len(x) < rank or not v.any(axis=0).all())


def check(row: Matrix, change: float, v: Matrix, x: Matrix, ridge: float) -> None:
    """Check that a row is as good as the solution of the scaled problem, and the change of the squared residuals."""
    both = np.concatenate([v, np.sqrt(ridge) * np.eye(len(row))])
    scale = np.maximum(np.abs(both).max(axis=0), 1e-300)
    right = np.concatenate([x, np.zeros(len(row))])
    best = np.linalg.lstsq(both / scale, right, rcond=None)[0]
    total = float(x @ x)
    assert np.isfinite(row).all()
    assert np.sum((both @ row - right) ** 2) <= np.sum((both / scale @ best - right) ** 2) + 1e-6 * total
    assert total + change == pytest.approx(np.sum((v @ row - x) ** 2), abs=1e-6 * total)
