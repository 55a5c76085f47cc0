"""Source and compile options of the CUDA kernels; needs no GPU or CuPy, so that tests can compile them anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from partitioner.cuda.cubins import CudaSource

PARTS = {  # files that are put together to be compiled
    "eigh": ("tridiagonal", "eigh"),
    "dense_multiply": ("dense_tiles", "dense_multiply"),
    "dense_wgmma": ("dense_tiles", "dense_steps", "dense_wgmma"),
    "equations": ("state", "batch_index", "equations", "snapshot"),
    "mttkrp": ("packed", "mttkrp"),
    "nonnegative": ("state", "batch_index", "nonnegative"),
    "phi": ("packed", "quotients", "phi"),
    "phi_sums": ("combine", "phi_sums"),
    "interleaved": ("packed", "quotients", "interleaved"),
    "interleaved_sums": ("combine", "interleaved_sums"),
    "rowproblems": ("packed", "rowproblems"),
    "solve": ("state", "batch_index", "solve"),
    "equations_large": ("state", "block_cholesky", "equations_large", "snapshot"),
    "rows_large": ("state", "rows_large"),
    "ttmc": ("ttmc_rows", "ttmc"),
    "ttmc_products": ("ttmc_rows", "ttmc_products"),
}
REALS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


@cache
def text(name: str) -> str:
    """Return the text of the CUDA source `name`: that of one file or several."""
    parts = PARTS.get(name, (name,))
    return "\n".join(files(__package__).joinpath("kernels", f"{part}.cu").read_text("utf-8") for part in parts)


def compile_options(macros: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options for NVRTC."""
    return ("-std=c++17", *(f"-D{name}={value}" for name, value in macros.items()))


def unit(name: str, macros: Mapping[str, Any]) -> CudaSource:
    """Return a CUDA source and its macros, to be compiled."""
    return CudaSource(name, text(name), compile_options(macros))


def by_value(*arrays: Any) -> Any:
    """Return the arrays' bytes as one structure, to pass to a kernel by value."""
    data = b"".join(array.tobytes() for array in arrays)
    return np.frombuffer(data, np.dtype((np.void, len(data))))[0]


ALONE = by_value(np.zeros(3, np.uint64))
"""The `Runs` of ``batch_index.cu`` where a launch serves one run."""


def lanes(rank: int) -> int:
    """Return how many threads share a row of so many columns in ``nonnegative.cu``."""
    return 32 if rank > 64 else next(count for count in (4, 8) if 8 * count >= rank)


def coordinate_macros(
    inputs: int, dtype: np.dtype[Any], lanes: int, width: int, column: int, atomic: bool, double: bool = False
) -> dict[str, Any]:
    """Return the macros with which ``coordinates.cu`` is compiled; see there."""
    types = {"STORED": REALS[dtype], "REAL": "double" if double else REALS[dtype]}
    return {"INPUTS": inputs, **types, "LANES": lanes, "WIDTH": width, "COLUMN": column, "ATOMIC": int(atomic)}
