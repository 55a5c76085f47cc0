"""How ``ttm.cu`` is compiled, and how it cuts nonzeros; needs no GPU or CuPy."""

from __future__ import annotations

from typing import Any

from ...ops.ttm import ProductForm
from ..source import REALS

VECTOR = 16  # bytes of a thread's load
THREADS, MOST_LANES = 256, 256  # of a block, and of a group that adds up a chunk
AHEAD = 8  # nonzeros whose rows are loaded together
PADDING = 3 * AHEAD  # nonzeros after the last one, which are read and not used
CHUNK, LARGE_CHUNK = 64, 256  # nonzeros: the longest sum in the matrix's precision
SLACK = 16  # nonzeros that the end of a chunk is moved by at most, to that of a fibre
NARROW = 64  # bytes of a row, at most, for large chunks: then a chunk has few threads
LARGE = 1 << 25  # nonzeros from which large chunks are enough to fill a GPU


def vectors(form: ProductForm) -> int:
    """Return the vectors of a row of the matrix."""
    return form.stride * form.dtype.itemsize // VECTOR


def lanes(form: ProductForm) -> int:
    """Return the threads that add up a chunk."""
    return min(MOST_LANES, form.width * vectors(form))


def groups(form: ProductForm) -> int:
    """Return the chunks of a block of threads."""
    return THREADS // lanes(form)


def macros(form: ProductForm) -> dict[str, Any]:
    """Return the macros of ``ttm.cu``; see there."""
    sizes = {"VECTORS": vectors(form), "LANES": lanes(form), "GROUPS": groups(form), "AHEAD": AHEAD}
    return {"REAL": REALS[form.dtype], "WIDTH": form.width, **sizes}


def chunk_size(form: ProductForm, nnz: int) -> int:
    """Return the nonzeros of a chunk."""
    return LARGE_CHUNK if form.row_bytes <= NARROW and nnz > LARGE else CHUNK
