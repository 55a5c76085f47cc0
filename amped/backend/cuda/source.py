"""Source and compile options of CUDA kernels. Needs neither a GPU nor CuPy, so tests can compile kernels anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

import numpy as np

from partitioner.array_types import FloatDType, HostArray
from partitioner.cuda.cubins import CudaSource

from ..formulas import Formula

Macros = dict[str, str | int]
"""Values of the preprocessor's macros, by name."""
INCLUDE = re.compile(r'#include "(\w+\.cuh)"')
REALS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


@cache
def text(name: str) -> str:
    """Return the text of a CUDA source, with the text of each header in place of its first ``#include``.

    The compiler then needs no include path, and the text determines the compiled code completely, which caching needs.
    """
    return "\n".join(_lines("kernels", f"{name}.cu", set())) + "\n"


def _lines(folder: str, name: str, included: set[str]) -> Iterator[str]:
    """Yield the lines of a file and of headers not yet `included`, with ``#line`` directives for messages."""
    for number, line in enumerate(files(__package__).joinpath(folder, name).read_text("utf-8").splitlines(), 1):
        header = INCLUDE.fullmatch(line)
        if header is None:
            yield "" if line == "#pragma once" else line  # headers are included once by this function
        elif header[1] not in included:
            included.add(header[1])
            yield '#line 1 "' + header[1] + '"'
            yield from _lines("include", header[1], included)
            yield f'#line {number + 1} "{name}"'
        else:
            yield ""


def compile_options(macros: Mapping[str, str | int]) -> tuple[str, ...]:
    """Return the options for NVRTC."""
    return ("-std=c++17", *(f"-D{name}={value}" for name, value in macros.items()))


def unit(name: str, macros: Mapping[str, str | int]) -> CudaSource:
    """Return a CUDA source with its macros, ready to be compiled."""
    return CudaSource(name, text(name), compile_options(macros))


def packer(inputs: int, dtype: FloatDType) -> CudaSource:
    """Return the code that packs nonzeros with indices of `inputs` modes besides those of their rows."""
    return unit("pack", {"INPUTS": inputs, "REAL": REALS[dtype]})


def with_formulas(name: str, formulas: Mapping[str, Formula | None], kind: str = "double") -> str:
    """Return the text of a CUDA source after functions such as `map_value`, which evaluate formulas of a type.

    A formula that is None is 0.
    """
    head = f"__device__ __forceinline__ {kind} map_{{}}({kind} x, {kind} m) {{{{ return {{}}; }}}}\n"
    functions = (head.format(key, each.cuda_of(kind) if each else "0") for key, each in formulas.items())
    return "".join(functions) + text(name)


def by_value(*arrays: HostArray) -> np.void:
    """Return the arrays' bytes as one structure, to pass to a kernel by value."""
    data = b"".join(array.tobytes() for array in arrays)
    structure: np.void = np.frombuffer(data, np.dtype((np.void, len(data))))[0]
    return structure


ALONE = by_value(np.zeros(3, np.uint64))
"""The argument `Runs` of ``batch_index.cuh`` for a launch that serves one run."""


def coordinate_macros(
    inputs: int, dtype: FloatDType, lanes: int, width: int, column: int, atomic: bool, double: bool = False
) -> Macros:
    """Return the macros of ``coordinates.cu``."""
    types = {"STORED": REALS[dtype], "REAL": "double" if double else REALS[dtype]}
    return {"INPUTS": inputs, **types, "LANES": lanes, "WIDTH": width, "COLUMN": column, "ATOMIC": int(atomic)}
