"""The division of a tensor's modes into the two groups of a `Tree`, and the size of its trees."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Integers

MOST_TUPLES = 16  # per nonzero: up to this number of possible tuples of a group, an array marks those that exist


def prefix_starts(columns: Sequence[Integers]) -> Iterator[NDArray[np.bool_]]:
    """Yield, for each number of leading modes, which sorted tuples differ from the previous one in these modes."""
    differs = np.zeros(columns[0].size, bool)
    differs[:1] = True
    for column in columns:
        differs = differs.copy()
        differs[1:] |= column[1:] != column[:-1]
        yield differs


def split_of(columns: Sequence[Integers], prefixes: Sequence[int], lengths: Sequence[int]) -> int:
    """Return the number of modes in the first group for which the trees have the fewest leaves.

    `prefixes` has the number of distinct prefixes of each length. Distinct tuples of the second group, which are not
    sorted, are counted only if few are possible.
    """
    last, splits = len(lengths) - 1, {len(lengths) - 1: prefixes[-2] + lengths[-1]}
    for split in range(last - 1, 0, -1):
        if math.prod(lengths[split:]) > MOST_TUPLES * columns[0].size:
            break
        splits[split] = prefixes[split - 1] + int(np.count_nonzero(marked(columns[split:], lengths[split:])[0]))
    return min(splits, key=lambda split: splits[split])


def marked(columns: Sequence[Integers], lengths: Sequence[int]) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """Return which index tuples exist, and the number of each nonzero's tuple among all possible ones."""
    numbers = columns[0].astype(np.intp)
    for column, length in zip(columns[1:], lengths[1:], strict=True):
        numbers *= length
        numbers += column
    exists = np.zeros(math.prod(lengths), bool)
    exists[numbers] = True
    return exists, numbers


def tree_rows(columns: Sequence[Integers], lengths: Sequence[int]) -> int:
    """Return the rows of the matrices that products with the trees of sorted nonzeros compute or read.

    These are the nodes of both trees, and the rows of the factor matrices that nonzeros can use.
    """
    prefixes = [int(np.count_nonzero(differs)) for differs in prefix_starts(columns)]
    split = split_of(columns, prefixes, lengths)
    nodes = sum(prefixes[:split]) if split > 1 else 0  # the leaves of one mode are its indices
    if split < len(lengths) - 1:
        exists, _ = marked(columns[split:], lengths[split:])
        for length in reversed(lengths[split:]):  # from the tuples of all its modes to those of the first one
            nodes += int(np.count_nonzero(exists))
            exists = np.logical_or.reduce(exists.reshape(-1, length), axis=1)
    return nodes + sum(min(length, columns[0].size) for length in lengths)
