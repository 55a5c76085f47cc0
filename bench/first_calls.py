"""Small problems of `bench.first_use`, each a function of one package, and a process that calls one of them.

``python -m bench.first_calls NAME PACKAGE DATA CALLS`` prints the seconds of each call, and its CPU seconds, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats, Integers

from .bundled import bundled

Call = Callable[[], object]
Array = NDArray[np.float64]
NATIONS = "nations_3d.tns.gz"
RANK, COUNT_RANK, GRID_RANK = 6, 5, 3
ITERATIONS = 50


def grid() -> Array:
    """Return a dense array of the shape of fluorescence spectra."""
    factors = [np.random.default_rng(m).random((n, GRID_RANK)) for m, n in enumerate((5, 201, 61))]
    noise: Array = np.random.default_rng(9).random((5, 201, 61))
    return np.einsum("ir,jr,kr->ijk", *factors) + 0.1 * noise


def amped_dense(data: Path) -> Call:
    """Return CP-ALS of a dense array with non-negative components."""
    import amped

    X = grid()
    return lambda: amped.cp_als(X, GRID_RANK, nonnegative=True)


def amped_sparse(data: Path) -> Call:
    """Return CP-ALS of the bundled tensor, from its file."""
    import amped

    return lambda: amped.cp_als(bundled(), RANK)


def amped_counts(data: Path) -> Call:
    """Return CP-APR of a small tensor of counts, from its file."""
    import amped

    return lambda: amped.cp_apr(data / NATIONS, COUNT_RANK)


def amped_scan(data: Path) -> Call:
    """Return a scan of the bundled tensor, from its file."""
    import amped

    return lambda: amped.scan(bundled(), "1-6", starts=3)


def amped_tucker(data: Path) -> Call:
    """Return HOOI of the bundled tensor, from its file."""
    import amped

    return lambda: amped.tucker(bundled(), rank=(3, 3, 3))


def amped_ttm(data: Path) -> Call:
    """Return a product of the bundled tensor with a matrix."""
    import amped

    X = amped.read(bundled())
    matrix = np.random.default_rng(0).random((X.shape[2], 8))
    return lambda: amped.ttm(X, matrix, 2)


def amped_mttkrp(data: Path) -> Call:
    """Return an MTTKRP of the bundled tensor."""
    import amped

    X = amped.read(bundled())
    factors = [np.random.default_rng(m).random((n, RANK)) for m, n in enumerate(X.shape)]
    return lambda: amped.mttkrp(X, factors, 0)


def tensorly_dense(data: Path) -> Call:
    """Return TensorLy's CP by HALS of the dense array."""
    from tensorly.decomposition import non_negative_parafac_hals

    X = grid()
    return lambda: non_negative_parafac_hals(X, GRID_RANK, n_iter_max=ITERATIONS)


def tensorly_sparse(data: Path) -> Call:
    """Return TensorLy's CP-ALS of the bundled tensor, as a dense array."""
    from tensorly.decomposition import parafac

    indices, values, shape = _nonzeros()
    X = np.zeros(shape)
    X[tuple(indices.T)] = values
    return lambda: parafac(X, RANK, n_iter_max=ITERATIONS, init="random", random_state=0)


def tensorly_tucker(data: Path) -> Call:
    """Return TensorLy's HOOI of the bundled tensor, as a dense array."""
    from tensorly.decomposition import tucker

    indices, values, shape = _nonzeros()
    X = np.zeros(shape)
    X[tuple(indices.T)] = values
    return lambda: tucker(X, (3, 3, 3))


def pyttb_sparse(data: Path) -> Call:
    """Return pyttb's CP-ALS of the bundled tensor."""
    import pyttb

    indices, values, shape = _nonzeros()
    X = pyttb.sptensor(indices.astype(int), values[:, None].astype(float), tuple(map(int, shape)))
    return lambda: pyttb.cp_als(X, RANK, maxiters=ITERATIONS, stoptol=1e-5, printitn=0)


def pyttb_dense(data: Path) -> Call:
    """Return pyttb's CP-ALS of the dense array, without constraints."""
    import pyttb

    X = pyttb.tensor(grid())
    return lambda: pyttb.cp_als(X, GRID_RANK, maxiters=ITERATIONS, stoptol=1e-5, printitn=0)


def pyttb_counts(data: Path) -> Call:
    """Return pyttb's CP-APR of a small tensor of counts."""
    import pyttb

    import amped

    X = amped.read(data / NATIONS)
    tensor = pyttb.sptensor(X.indices.astype(int), X.values[:, None].astype(float), X.shape)
    return lambda: pyttb.cp_apr(tensor, COUNT_RANK, maxiters=ITERATIONS, printitn=0, printinneritn=0)


def _nonzeros() -> tuple[Integers, Floats, Integers]:
    with np.load(bundled()) as arrays:
        return arrays["indices"], arrays["values"], arrays["shape"]


PROGRAMS: dict[str, dict[str, Callable[[Path], Call]]] = {
    "dense 5 x 201 x 61, three non-negative components": {
        "amped": amped_dense, "TensorLy (HALS)": tensorly_dense, "pyttb (no constraint)": pyttb_dense,
    },
    "cp_als of the bundled tensor, rank 6": {
        "amped": amped_sparse, "TensorLy (dense)": tensorly_sparse, "pyttb": pyttb_sparse,
    },
    "cp_apr of nations, rank 5": {"amped": amped_counts, "pyttb": pyttb_counts},
    "scan 1-6 x 3 of the bundled tensor": {"amped": amped_scan},
    "tucker of the bundled tensor, 3 x 3 x 3": {"amped": amped_tucker, "TensorLy (dense)": tensorly_tucker},
    "ttm of the bundled tensor": {"amped": amped_ttm},
    "mttkrp of the bundled tensor": {"amped": amped_mttkrp},
}  # fmt: skip
"""The call of each package, by problem."""


def main() -> None:
    """Print the seconds of one program's calls."""
    problem, package, data, calls = sys.argv[1:]
    call = PROGRAMS[problem][package](Path(data))
    times = []
    for _ in range(int(calls)):
        began, used = time.perf_counter(), time.process_time()
        call()
        times.append((time.perf_counter() - began, time.process_time() - used))
    print(json.dumps(times))


if __name__ == "__main__":
    main()
