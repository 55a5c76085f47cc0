"""The kernels' text and how it is compiled: all that is needed to check them where there is no GPU and no CuPy."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np

REALS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


def text() -> str:
    """Return the source of the kernels."""
    return files(__package__).joinpath("segmented.cu").read_text()


def compile_options(order: int, dtype: Any) -> tuple[str, ...]:
    """Return the options that make the kernels for tensors of `order` modes and factors of `dtype`."""
    return ("-std=c++17", f"-DORDER={order}", f"-DREAL={REALS[np.dtype(dtype)]}", "-DWIDE=double")
