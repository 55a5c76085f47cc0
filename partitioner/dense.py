"""The dense tensor: an array in memory, or one that stays in its file until it is used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .coo import MAX_MODE_LENGTH, SparseTensor, check_order, refuse_masked
from .digest import MASK, stir
from .errors import InputError
from .threads import side_by_side, usable_cores

BLOCK = 1 << 20  # elements that are looked at together
KINDS = "biuf"
WIDEST = 8  # bytes of an element


class Facts(NamedTuple):
    """What is known of some elements. Sums of squares are divided by the square of the `largest` magnitude.

    `single` is that sum after the elements were rounded to single precision; `bad`, the number of the first element
    that is not finite, in memory order, or -1.
    """

    low: float
    high: float
    squares: float
    single: float
    nonzeros: int
    bad: int

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))

    def norm(self, rounded: bool = False) -> float:
        """Return the Frobenius norm."""
        return self.largest * math.sqrt(self.single if rounded else self.squares)


class DenseTensor:
    """A dense tensor: all elements, zeros among them.

    Parameters
    ----------
    array : array-like
        Of 2 to 8 dimensions; of floating-point numbers, integers or bools, which are kept as they are and converted
        when they are used. It is not copied if its modes lie in memory in any order without gaps (C, Fortran), and must
        not change afterwards. From a GPU it is copied to the host.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        Of the elements as they are kept.
    modes : tuple of int
        The modes in memory order: the one that varies slowest comes first. Modes of length 1 come last.
    memory : array
        The elements with modes in memory order, C-contiguous.
    path : path, or None
        The file that they are in.

    Raises
    ------
    InputError
        If the order is not in 2..8, a mode has length 0, or elements are no real numbers.
    """

    def __init__(self, array: Any, path: str | PathLike[str] | None = None) -> None:
        self.path = path
        with _of(path):
            refuse_masked(array, "the array")
            found = _on_host(array)
            check_elements(found.shape, found.dtype)
            self.shape, self.dtype = found.shape, found.dtype
            steps = [(found.shape[m] == 1, -abs(found.strides[m]), m) for m in range(found.ndim)]
            self.modes = tuple(m for _, _, m in sorted(steps))
            memory = found.transpose(self.modes)
            if not memory.flags.c_contiguous:  # steps of zero, backwards, or over others
                self.modes = tuple(sorted(range(found.ndim), key=lambda m: (found.shape[m] == 1, m)))
                memory = np.ascontiguousarray(found.transpose(self.modes))
            self.memory: NDArray[Any] = memory

    @classmethod
    def of_sparse(cls, tensor: SparseTensor, room: int | None = None) -> DenseTensor:
        """Return a sparse tensor with its zeros; refuse one that needs more than `room` bytes."""
        need = math.prod(tensor.shape) * tensor.values.dtype.itemsize
        if room is not None and need > room:
            shape = " x ".join(map(str, tensor.shape))
            raise InputError(f"as a dense tensor, {shape} needs {need:,} bytes of host memory, {room:,} are there")
        array = np.zeros(tensor.shape, tensor.values.dtype)
        array[tuple(tensor.columns)] = tensor.values
        return cls(array)

    @property
    def order(self) -> int:
        """The number of modes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the elements, as they are kept."""
        return self.size * self.dtype.itemsize

    @property
    def mapped(self) -> bool:
        """Whether the elements stay in a file."""
        return isinstance(self.memory, np.memmap)

    def array(self) -> NDArray[Any]:
        """Return the elements with the modes in their own order."""
        found: NDArray[Any] = np.asarray(self.memory).transpose(np.argsort(self.modes))
        return found

    def norm(self) -> float:
        """Return the Frobenius norm, computed in double precision; raise `InputError` if an element is not finite."""
        facts = self.facts()
        self.check_finite(facts)
        return facts.norm()

    def facts(self, begin: int = 0, end: int | None = None) -> Facts:
        """Return what is known of the elements `begin` to `end`, in memory order."""
        end = self.size if end is None else end
        flat = self.memory.reshape(-1)
        starts = range(begin, end, BLOCK)
        threads = min(usable_cores(), max(1, len(starts)))
        return joined(side_by_side(lambda at: _facts(flat[at : min(at + BLOCK, end)], at), starts, threads))

    def check_finite(self, facts: Facts) -> None:
        """Raise `InputError` if `facts` name an element that is not finite; the message says where it is."""
        if facts.bad < 0:
            return
        place = np.unravel_index(facts.bad, self.memory.shape)
        index = tuple(int(place[self.modes.index(m)]) for m in range(self.order))
        value = self.memory[place]
        raise InputError(f"element {list(index)} is {value}: every element must be finite", path=self.path)

    def digest(self, begin: int = 0, end: int | None = None) -> int:
        """Return the sum, modulo 2**64, of a hash of each of the elements `begin` to `end`, in memory order.

        The digests of parts add up. Equal tensors have equal ones, in whatever order their modes are in memory.
        """
        total, flat = 0, self.memory.reshape(-1)
        end = self.size if end is None else end
        for at in range(begin, end, BLOCK):
            numbers = np.arange(at, min(at + BLOCK, end))
            places = np.unravel_index(numbers, self.memory.shape)
            own = np.ravel_multi_index([places[self.modes.index(m)] for m in range(self.order)], self.shape)
            hashes = np.array(flat[at : at + numbers.size], np.float64).view(np.uint64)
            stir(hashes, own)
            total += int(hashes.sum(dtype=np.uint64))
        return total & MASK

    def __repr__(self) -> str:
        return f"DenseTensor(shape={self.shape}, dtype={self.dtype})"


def joined(parts: Sequence[Facts]) -> Facts:
    """Return the facts of all parts together, which are in memory order."""
    low, high = min([p.low for p in parts], default=math.inf), max([p.high for p in parts], default=-math.inf)
    largest = max(abs(low), abs(high))
    scales = [(p.largest / largest) ** 2 if 0 < largest < math.inf and p.low <= p.high else 0.0 for p in parts]
    squares = math.fsum(p.squares * scale for p, scale in zip(parts, scales, strict=True))
    single = math.fsum(p.single * scale for p, scale in zip(parts, scales, strict=True))
    nonzeros = sum(p.nonzeros for p in parts)
    return Facts(low, high, squares, single, nonzeros, next((p.bad for p in parts if p.bad >= 0), -1))


def blocks(tensor: DenseTensor, mode: int, elements: int) -> Iterator[tuple[slice, ...]]:
    """Yield where blocks of about so many elements lie in `memory`, cut along the mode of that place alone."""
    length = tensor.memory.shape[mode]
    step = max(1, elements * length // tensor.size)
    for begin in range(0, length, step):
        yield tuple(slice(begin, begin + step) if m == mode else slice(None) for m in range(tensor.order))


def _facts(block: NDArray[Any], first: int) -> Facts:
    exact = block.astype(np.float64)
    finite = np.isfinite(exact)
    if not finite.all():
        return Facts(0.0, 0.0, 0.0, 0.0, 0, first + int(np.argmin(finite)))
    low, high = float(exact.min()), float(exact.max())
    largest = max(abs(low), abs(high))
    if not largest:
        return Facts(low, high, 0.0, 0.0, 0, -1)
    with np.errstate(over="ignore", under="ignore"):
        rounded = exact.astype(np.float32).astype(np.float64) if block.dtype.itemsize > 2 else exact
        single = math.inf if not np.isfinite(rounded).all() else float(np.square(rounded / largest).sum())
        squares = float(np.square(exact / largest).sum())
        return Facts(low, high, squares, single, int(np.count_nonzero(block)), -1)


def check_elements(shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Refuse a shape or a type that no dense tensor has."""
    if dtype.kind not in KINDS or dtype.itemsize > WIDEST:
        raise InputError(f"elements are {dtype}, expected real numbers of at most {8 * WIDEST} bits")
    check_order(len(shape))
    for mode, length in enumerate(shape):
        if not 1 <= length <= MAX_MODE_LENGTH:
            raise InputError(f"length {length} of mode {mode} is outside 1..{MAX_MODE_LENGTH}")


def _on_host(array: Any) -> NDArray[Any]:
    """Return an array of NumPy's; what is on a GPU is copied."""
    if isinstance(array, np.ndarray):
        return array if isinstance(array, np.memmap) else np.asarray(array)
    if hasattr(array, "detach"):  # torch
        array = array.detach().cpu()
    elif hasattr(array, "__cuda_array_interface__"):
        array = array.get()
    try:
        return np.asarray(array)
    except (TypeError, ValueError) as error:
        raise InputError(f"no array can be made of a {type(array).__name__}: {error}") from None


@contextmanager
def _of(path: str | PathLike[str] | None) -> Iterator[None]:
    """Name the file, if there is one, in errors of what is in it."""
    try:
        yield
    except InputError as error:
        raise InputError(error.cause, path=path) from None
