"""Oracles for count data: CP-APR by definition, in NumPy and double precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from oracle import load, reference, splitmix_factors
from rowproblem import RowProblem, pdnr, pqnr

import amped

REFERENCES = (
    ("nycflights_5d", 10), ("uber393k_4d", 10), ("nations_3d", 8), ("kinships_3d", 10), ("sparten_cpapr100_3d", 5),
    ("kdd99_6d", 5),
)  # fmt: skip
LIKELIHOOD, KKT = {"fp64": 1e-9, "fp32": 1e-4}, {"fp64": 1e-6, "fp32": 1e-2}  # relative
FIRST = 5  # iterations in which KKT violations are compared


class Path(NamedTuple):
    """The state of CP-APR after each outer iteration."""

    loglikelihood: list[float]
    kkt: list[float]
    inner_iterations: list[int]
    model: np.ndarray  # dense, after the last one


def random_counts(seed: int, shape: Sequence[int], density: float = 0.3) -> amped.SparseTensor:
    """Return a tensor of counts; the last row of each mode is empty."""
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random(shape) < density, rng.poisson(3, shape) + 1, 0)
    for mode in range(len(shape)):
        np.moveaxis(dense, mode, 0)[-1] = 0
    dense[(0,) * len(shape)] = 50
    return amped.SparseTensor(np.argwhere(dense), dense[dense > 0].astype(float), shape)


def mu(tensor: amped.SparseTensor, start: Sequence[np.ndarray], iterations: int, tol: float = 1e-4) -> Path:
    """Return the path of multiplicative updates (Chi and Kolda 2012, Algorithms 1 to 3), with the usual constants."""
    sums = [f.sum(axis=0) for f in start]
    factors, weights = [f / s for f, s in zip(start, sums, strict=True)], np.prod(sums, axis=0)
    indices, values, order = tensor.columns, tensor.values, len(start)
    last: list[np.ndarray | None] = [None] * order
    path = Path([], [], [], np.zeros(tensor.shape))
    for _ in range(iterations):
        violations, updates = [0.0] * order, 0
        for n in range(order):
            phi = last[n]
            shift = 0.0 if phi is None else 1e-2 * ((phi > 1) & (factors[n] < 1e-10))
            b = (factors[n] + shift) * weights
            pi = np.prod([factors[m][indices[m]] for m in range(order) if m != n], axis=0)
            for _ in range(10):
                model = (b[indices[n]] * pi).sum(axis=1)
                phi = np.zeros_like(b)
                np.add.at(phi, indices[n], (values / np.maximum(model, 1e-10))[:, None] * pi)
                violations[n] = np.abs(np.minimum(b, 1 - phi)).max()
                if violations[n] < tol:
                    break
                b, updates = b * phi, updates + 1
            last[n], weights = phi, b.sum(axis=0)
            factors[n] = b / np.where(weights > 0, weights, 1)
        model = np.prod([f[indices[m]] for m, f in enumerate(factors)], axis=0) @ weights
        path.loglikelihood.append(float(values @ np.log(np.maximum(model, 1e-10)) - weights.sum()))
        path.kkt.append(max(violations))
        path.inner_iterations.append(updates)
        if not updates:
            break
    return path._replace(model=amped.KruskalTensor(weights, factors).full())


def by_rows(
    tensor: amped.SparseTensor, start: Sequence[np.ndarray], iterations: int, method: str, tol: float = 1e-4
) -> Path:
    """Return the path of PDNR or PQNR, row by row, with the usual constants, without MU iterations."""
    solve = {"pdnr": pdnr, "pqnr": pqnr}[method]
    sums = [f.sum(axis=0) for f in start]
    factors, weights = [f / s for f, s in zip(start, sums, strict=True)], np.prod(sums, axis=0)
    indices, values, order = tensor.columns, tensor.values, len(start)
    path = Path([], [], [], np.zeros(tensor.shape))
    for _ in range(iterations):
        violation, updates = 0.0, 0
        for n in range(order):
            b = factors[n] * weights
            pi = np.prod([factors[m][indices[m]] for m in range(order) if m != n], axis=0)
            for i in range(len(b)):
                in_row = indices[n] == i
                row = RowProblem(values[in_row], pi[in_row])
                violation = max(violation, row.violation(b[i]))
                b[i], steps = solve(row, b[i], 10, tol) if in_row.any() else (np.zeros_like(weights), 0)
                updates += steps
            weights = b.sum(axis=0)
            factors[n] = b / np.where(weights > 0, weights, 1)
        model = np.prod([f[indices[m]] for m, f in enumerate(factors)], axis=0) @ weights
        path.loglikelihood.append(float(values @ np.log(np.maximum(model, 1e-10)) - weights.sum()))
        path.kkt.append(violation)
        path.inner_iterations.append(updates)
        if not updates:
            break
    return path._replace(model=amped.KruskalTensor(weights, factors).full())


def assert_the_reference(name: str, rank: int, precision: str, **options: object) -> None:
    """Compare a run with the independent results for a real tensor."""
    tensor = load(name)  # or the test is skipped
    want = reference("cp_apr.json", f"{name}|R{rank}")
    start, iterations = splitmix_factors(tensor.shape, rank), len(want["kkt"])
    model = amped.cp_apr(
        tensor, rank, init=start, max_iters=iterations, precision=precision, **options  # type: ignore[arg-type]
    )  # fmt: skip
    series = model.series
    np.testing.assert_allclose(series["loglikelihood"], want["loglikelihood"], rtol=LIKELIHOOD[precision])
    np.testing.assert_allclose(series["kkt"][:FIRST], want["kkt"][:FIRST], rtol=KKT[precision])
    if precision == "fp64":
        assert list(series["inner_iterations"]) == want["inner_iterations"]
