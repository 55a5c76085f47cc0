"""64-bit words of the GPU sort: index bits above, the nonzero's position below.

Positions make all words distinct, so any sort of them is stable and the sorted words contain the permutation. Indices
with more bits than fit a word are sorted in several passes, the least significant bits first. This module needs neither
a GPU nor CuPy, so tests can check the sort anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple

WORD = 64
KERNELS = (
    *("to_32", "to_64", "number", "join", "split", "mark", "mark_changes", "mark_between"),
    *("count_marks", "sum_before", "select_marked", "count_indices"),
    *(f"{name}_{bits}" for name in ("add_up", "gather", "bounds", "squares") for bits in (32, 64)),
)
OPTIONS = ("-std=c++17",)  # of NVRTC
MOST = 2**31 - 1  # nonzeros; this leaves 33 bits for indices, so an index of 31 bits needs at most two passes


class Field(NamedTuple):
    """A field of a word: a range of bits of one mode's index."""

    mode: int
    down: int  # lowest bit taken from the index
    bits: int  # number of bits
    up: int  # lowest bit of the field in the word


def place_bits(nonzeros: int) -> int:
    """Return the number of bits of a word that hold the nonzero's position."""
    return (nonzeros - 1).bit_length()


def passes(modes: Sequence[int], lengths: Sequence[int], nonzeros: int) -> list[list[Field]]:
    """Return the fields of the words in each pass of a sort by `modes`, the most significant first.

    Indices of mode ``m`` are below ``lengths[m]``.
    """
    bottom = place_bits(nonzeros)
    fields: list[list[Field]] = [[]]
    up = bottom
    for mode in reversed(modes):
        down, bits = 0, (lengths[mode] - 1).bit_length()
        while down < bits:
            if up == WORD:
                fields.append([])
                up = bottom
            width = min(bits - down, WORD - up)
            fields[-1].append(Field(mode, down, width, up))
            down, up = down + width, up + width
    return fields


def text() -> str:
    """Return the CUDA source of the sort's kernels."""
    return files(__package__).joinpath("sort.cu").read_text("utf-8")
