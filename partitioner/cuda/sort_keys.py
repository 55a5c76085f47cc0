"""64-bit sort words of the GPU sort: index bits above, the nonzero's position below.

Positions make all words distinct, so that any sort of them is stable, and the sorted words give the permutation.
Indices with more bits than fit a word are sorted in several passes, the least significant bits first. Tests use this
module to check the GPU's sort without a GPU or CuPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple

WORD = 64
KERNELS = (
    *("to_32", "to_64", "number", "join", "split", "mark"),
    *(f"{name}_{bits}" for name in ("add_up", "gather", "bounds", "squares") for bits in (32, 64)),
)
OPTIONS = ("-std=c++17",)  # of the kernels' compiler
MOST = 2**31 - 1  # nonzeros: 33 bits are left for indices, so one of 31 bits is in two passes at most


class Field(NamedTuple):
    """A field of a word: some bits of one mode's index."""

    mode: int
    down: int  # lowest bit taken from the index
    bits: int  # how many
    up: int  # lowest bit of the field in the word


def place_bits(nonzeros: int) -> int:
    """Return how many bits of a word hold the nonzero's position."""
    return (nonzeros - 1).bit_length()


def passes(modes: Sequence[int], lengths: Sequence[int], nonzeros: int) -> list[list[Field]]:
    """Return the fields of the words of each pass of a sort by `modes`, the most significant first.

    Indices of mode ``m`` are below ``lengths[m]``.
    """
    bottom = place_bits(nonzeros)
    found: list[list[Field]] = [[]]
    up = bottom
    for mode in reversed(modes):
        down, bits = 0, (lengths[mode] - 1).bit_length()
        while down < bits:
            if up == WORD:
                found.append([])
                up = bottom
            taken = min(bits - down, WORD - up)
            found[-1].append(Field(mode, down, taken, up))
            down, up = down + taken, up + taken
    return found


def text() -> str:
    """Return the CUDA source of the sort's kernels."""
    return files(__package__).joinpath("sort.cu").read_text("utf-8")
