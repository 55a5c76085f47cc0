"""The kernels' text and how it is compiled: all that is needed to check them where there is no GPU and no CuPy."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np

REALS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


def text(name: str) -> str:
    """Return the source of a file of kernels."""
    return files(__package__).joinpath(f"{name}.cu").read_text()


def compile_options(macros: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options of the compiler."""
    return ("-std=c++17", *(f"-D{name}={value}" for name, value in macros.items()))


def by_value(*arrays: Any) -> Any:
    """Return the arrays' bytes as one structure, which is passed to a kernel by value."""
    data = b"".join(array.tobytes() for array in arrays)
    return np.frombuffer(data, np.dtype((np.void, len(data))))[0]


def coordinate_macros(
    inputs: int, dtype: np.dtype[Any], lanes: int, width: int, column: int, atomic: bool
) -> dict[str, Any]:
    """Return what ``coordinates.cu`` is compiled for; it says what they are."""
    real = REALS[dtype]
    return {"INPUTS": inputs, "REAL": real, "LANES": lanes, "WIDTH": width, "COLUMN": column, "ATOMIC": int(atomic)}
