"""Plain MTTKRP and Phi over coordinates, with an atomic addition for each nonzero and column: see ``pasta.cu``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from amped.backend.cuda.source import REALS, by_value, compile_options
from partitioner.array_types import FloatDType

from .phi_problem import FLOOR, Action, Array, Nonzeros

THREADS, WARP = 256, 32


def actions(nonzeros: Nonzeros, stores: bool = False, out: Array = None) -> dict[str, Action]:
    """Return what computes `mttkrp`, and on a GPU `phi`; where it `stores` sums instead of adding them, wrongly.

    Each sets its output to zeros before. It is of the factor matrices' type, as with PASTA, and may be given.
    """
    if out is None:
        out = nonzeros.device.empty((len(nonzeros.own), nonzeros.share.stride), nonzeros.share.dtype)
    return _on_host(nonzeros, out) if nonzeros.device.on_host else _on_device(nonzeros, stores, out)


def macros(inputs: int, dtype: FloatDType, columns: int, stores: bool) -> dict[str, object]:
    """Return the macros with which ``pasta.cu`` is compiled."""
    lanes = min(WARP, 1 << (columns - 1).bit_length())
    return {"INPUTS": inputs, "REAL": REALS[dtype], "COLUMNS": columns, "LANES": lanes, "STORES": int(stores)}


def text() -> str:
    """Return the text of ``pasta.cu``."""
    return Path(__file__).with_name("pasta.cu").read_text()


def _on_device(nonzeros: Nonzeros, stores: bool, out: Array) -> dict[str, Action]:
    share, indices = nonzeros.share, nonzeros.columns[:-1]
    named = macros(len(nonzeros.factors), share.dtype, share.stride, stores)
    module = _module(tuple(named.items()), nonzeros.device.number)  # type: ignore[attr-defined]
    places = by_value(np.array([a.data.ptr for a in (*indices, *nonzeros.factors)], np.uint64))
    count, floor = np.int64(share.nnz), share.dtype.type(FLOOR)
    blocks = [-(-share.nnz * each // THREADS) for each in (share.stride, named["LANES"])]
    plain, phi = (module.get_function(name) for name in ("mttkrp", "phi"))

    def run_plain() -> None:
        out.data.memset_async(0, out.nbytes)
        plain((blocks[0],), (THREADS,), (places, nonzeros.columns[-1], out, count))  # `places` are those of `nonzeros`

    def run_phi() -> None:
        out.data.memset_async(0, out.nbytes)
        phi((blocks[1],), (THREADS,), (places, nonzeros.columns[-1], nonzeros.own, out, floor, count))

    return {"mttkrp": run_plain, "phi": run_phi}


@cache
def _module(named: tuple[tuple[str, object], ...], device: int) -> Any:
    import cupy

    return cupy.RawModule(code=text(), options=compile_options(dict(named)))


def _on_host(nonzeros: Nonzeros, out: Array) -> dict[str, Action]:
    """As PASTA's OpenMP code: threads take nonzeros, and each addition to the output is atomic."""
    import numba

    kernel, threads = _host_kernel(len(nonzeros.factors)), nonzeros.device.threads.count  # type: ignore[attr-defined]
    indices, values = nonzeros.columns[:-1], nonzeros.columns[-1]

    def run() -> None:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        out.fill(0)
        kernel(threads, values, out, *indices, *nonzeros.factors)

    return {"mttkrp": run}


@cache
def _host_kernel(inputs: int) -> Any:
    import numba

    named = "; ".join(f"a{m} = i{m}[p]" for m in range(inputs))
    product = " * ".join(f"f{m}[a{m}, r]" for m in range(inputs))
    names = ", ".join(["rows", *(f"i{m}" for m in range(inputs)), *(f"f{m}" for m in range(inputs))])
    source = f"""
def kernel(parts, values, out, {names}):
    for part in prange(parts):
        for p in range(part * values.size // parts, (part + 1) * values.size // parts):
            {named}
            for r in range(out.shape[1]):
                add(out, rows[p], r, values[p] * {product})
"""
    scope: dict[str, Any] = {"prange": numba.prange, "add": _atomic_add()}
    exec(source, scope)
    return numba.njit(parallel=True, fastmath=True)(scope["kernel"])


@cache
def _atomic_add() -> Any:
    """Return a function that Numba compiles: add a number to an element of a matrix, atomically."""
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def add(typing: Any, matrix: Any, row: Any, column: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(matrix)(context, builder, args[0])
            shape, strides = (cgutils.unpack_tuple(builder, part) for part in (array.shape, array.strides))
            at = [context.cast(builder, a, kind, types.intp) for a, kind in zip(args[1:3], (row, column), strict=True)]
            place = cgutils.get_item_pointer2(context, builder, array.data, shape, strides, matrix.layout, at)
            number = context.cast(builder, args[3], value, matrix.dtype)
            builder.atomic_rmw("fadd", place, number, "monotonic")
            return context.get_dummy_value()

        return types.none(matrix, row, column, value), generate

    return add
