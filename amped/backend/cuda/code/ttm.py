"""Compile-time parameters of ``ttm.cu``, and its chunk sizes; needs no GPU or CuPy."""

from __future__ import annotations

from ...ops.ttm import ProductForm
from ..source import REALS, Macros

VECTOR = 16  # bytes that a thread loads at once
THREADS, MOST_LANES = 256, 256  # of a block, and of a group that processes a chunk
AHEAD = 8  # nonzeros whose rows are loaded together
PADDING = 3 * AHEAD  # nonzeros after the last one that are read but not used
CHUNK, LARGE_CHUNK = 64, 256  # nonzeros: longest sum in the matrix's precision
SLACK = 16  # largest shift of a chunk's end, in nonzeros, to the end of a fibre
NARROW = 64  # bytes of a row up to which chunks may be large, because few threads process a chunk
LARGE = 1 << 25  # nonzeros from which large chunks suffice to occupy a GPU


def vectors(form: ProductForm) -> int:
    """Return the vectors of a row of the matrix."""
    return form.stride * form.dtype.itemsize // VECTOR


def lanes(form: ProductForm) -> int:
    """Return the threads that process a chunk."""
    return min(MOST_LANES, form.width * vectors(form))


def groups(form: ProductForm) -> int:
    """Return the chunks per thread block."""
    return THREADS // lanes(form)


def macros(form: ProductForm) -> Macros:
    """Return the macros of ``ttm.cu``."""
    sizes = {"VECTORS": vectors(form), "LANES": lanes(form), "GROUPS": groups(form), "AHEAD": AHEAD}
    return {"REAL": REALS[form.dtype], "WIDTH": form.width, **sizes}


def chunk_size(form: ProductForm, nnz: int) -> int:
    """Return the nonzeros of a chunk."""
    return LARGE_CHUNK if form.row_bytes <= NARROW and nnz > LARGE else CHUNK
