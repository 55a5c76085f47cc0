"""Run every method under every distribution, and write the results of rank 0 to a file: a script, also under mpirun.

python rank_results.py OUT ORDER...    e.g. mpirun -n 6 python rank_results.py OUT 3 4
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import amped
from amped.parallel.mpi import Comm, world

SHAPES = {2: (50, 7), 3: (3, 7, 10), 4: (20, 1, 9, 4), 5: (6, 5, 4, 3, 7), 6: (4, 3, 5, 2, 6, 3)}
"""By order. Modes may be shorter than the number of ranks."""
NONZEROS, RANK = 300, 3
OPTIONS: dict[str, Any] = {"device": "cpu", "precision": "fp64"}
ALS: dict[str, dict[str, Any]] = {
    "plain": {},
    "nonnegative": {"nonnegative": True},
    "ridge": {"ridge": 0.1},
    "fixed": {"fixed_modes": (1,), "ridge": 0.1},
}


def tensor(shape: Sequence[int]) -> amped.SparseTensor:
    """Return a tensor with a heavy first row and an empty last row in each mode that has three rows."""
    rng = np.random.default_rng(len(shape))
    columns = [np.maximum(rng.integers(-n // 2, max(1, n - 1), NONZEROS), 0) for n in shape]
    indices = np.unique(np.stack(columns, 1), axis=0)
    return amped.SparseTensor(indices, rng.integers(1, 6, len(indices)).astype(float), tuple(shape))


def grids(order: int, ranks: int) -> list[str]:
    """Return distributions: all that are no grid, and grids that cut the first, the last, and two modes."""
    if ranks == 1:
        return ["auto"]
    cut = 2 if ranks % 2 == 0 else 1
    rest = ["1"] * (order - 2)
    shapes = [(f"{ranks}", "1"), ("1", f"{ranks}"), (f"{cut}", f"{ranks // cut}")]
    return ["auto", "all-gather", "replicated", *("x".join([first, *rest, last]) for first, last in shapes)]


def runs(order: int, comm: Comm) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each run, which does not depend on its distribution, and a function that returns its result."""
    shape, rng = SHAPES[order], np.random.default_rng(1)
    root = comm.rank == 0
    x = tensor(shape) if root else None
    start = [rng.random((n, RANK)) + 0.05 for n in shape]
    few: dict[str, Any] = {"max_iters": 4, "tol": 0, "init": start if root else None, **OPTIONS}
    for grid in grids(order, comm.size):
        for name, options in ALS.items():
            yield f"cp_als {name}", lambda o=options, g=grid: amped.cp_als(x, RANK, grid=g, **few, **o)
        yield "mttkrp", lambda g=grid: amped.mttkrp(x, start, order - 1, grid=g, **OPTIONS)
        yield (
            "deterministic",
            lambda g=grid: same_twice(lambda: amped.cp_als(x, RANK, grid=g, deterministic=True, **few)),
        )
    for method in ("mu", "pdnr", "pqnr"):
        yield f"cp_apr {method}", lambda m=method: amped.cp_apr(x, RANK, method=m, mu_iters=1, **few)
    core = [min(2, n) for n in shape]
    yield "tucker", lambda: amped.tucker(x, core, max_iters=3, tol=0, seed=1, **OPTIONS)
    yield "masked", lambda: amped.cp_als(x, RANK, mask="stored" if root else None, ridge=0.1, **few)
    yield "constrained", lambda: amped.cp_als(x, RANK, constraints={0: "l1:0.1"}, **few)
    for method in ("lbfgs", "newton"):
        yield (
            f"cp {method}",
            lambda m=method: amped.cp(x, RANK, loss="poisson", method=m, **{**few, "max_iters": 3}),
        )


def same_twice(run: Callable[[], amped.KruskalTensor]) -> np.ndarray:
    """Return whether two runs have the same bits, as a number."""
    first, second = run(), run()
    return np.array([float(all(map(np.array_equal, first.factors, second.factors)))])


def numbers(result: Any) -> list[Any]:
    """Return the numbers of a result that must be the same: its series, and the elements of the model."""
    if isinstance(result, np.ndarray):
        return [result]
    return [np.array(getattr(result, "series", {"fit": result.fits}).get("fit", [])), result.full()]


def main(path: str, orders: Sequence[str]) -> None:
    """Write all results, by order, name and number of the run."""
    comm, found = world(), dict[str, Any]()
    for order in map(int, orders):
        for number, (name, run) in enumerate(runs(order, comm)):
            result = run()
            if comm.rank == 0:
                found.update({f"{order} {name} {number} {k}": each for k, each in enumerate(numbers(result))})
    if comm.rank == 0:
        np.savez(path, **found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
