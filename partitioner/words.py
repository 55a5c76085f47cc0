"""Nonzeros as words of 64 bits, whose order is theirs: bits of indices above, the place that each comes from below.

Places make all words different, so that any sort of them is stable, and the sorted words say the order. Where indices
have more bits than a word has room for, nonzeros are sorted several times, by the least significant bits first. This
is all that is needed to check the GPU's sort where there is no GPU and no CuPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple

WORD = 64
KERNELS = ("join", "split", "mark", "add_up_32", "add_up_64", "gather_32", "gather_64")
OPTIONS = ("-std=c++17",)  # of their compiler
MOST = 2**31 - 1  # nonzeros: 33 bits are left for indices, so one of 31 bits is in two passes at most


class Field(NamedTuple):
    """Some bits of an index in a word.

    Attributes
    ----------
    mode : int
    down : int
        The bits of the index below them.
    bits : int
    up : int
        Where they are in the word.
    """

    mode: int
    down: int
    bits: int
    up: int


def place_bits(nonzeros: int) -> int:
    """Return the bits of a word that say where a nonzero comes from."""
    return (nonzeros - 1).bit_length()


def passes(modes: Sequence[int], lengths: Sequence[int], nonzeros: int) -> list[list[Field]]:
    """Return what is in the words of each sort, in their order.

    Parameters
    ----------
    modes : sequence of int
        To sort by, the most significant first.
    lengths : sequence of int
        Mode lengths: indices of mode ``m`` are below ``lengths[m]``.
    nonzeros : int
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
    """Return the source of the GPU's kernels."""
    return files(__package__).joinpath("cuda_sort.cu").read_text()
