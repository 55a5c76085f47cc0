"""Sparse tensors of the shapes of the FROSTT collection, with indices of a chosen skew, deterministic in the seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.coo import SparseTensor

SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "nell2": ((12092, 9184, 28818), 76_879_419),
    "enron": ((6066, 5699, 244268, 1176), 54_202_099),
    "uber": ((183, 24, 1140, 1717), 3_309_490),
    "lbnl": ((1605, 4198, 1631, 4209, 868131), 1_698_825),
}
BLOCK = 1 << 24
SCRAMBLE = 2654435761  # spreads the popular indices over the mode


def zipf_indices(rng: np.random.Generator, count: int, length: int, skew: float) -> NDArray[np.int32]:
    """Return `count` indices below `length`, bounded Zipf of exponent `skew`, the popular ones spread out."""
    uniform = rng.random(count)
    if skew == 0:
        index = uniform * length
    elif skew == 1:
        index = np.exp(uniform * np.log(length)) - 1
    else:
        index = (uniform * (length ** (1 - skew) - 1) + 1) ** (1 / (1 - skew)) - 1
    whole = np.clip(index.astype(np.int64), 0, length - 1)
    return ((whole * SCRAMBLE + 12345) % length).astype(np.int32)


def synthetic(shape: Sequence[int], nonzeros: int, skew: float, seed: int = 1) -> SparseTensor:
    """Return a random tensor of about `nonzeros` nonzeros (duplicates are summed), values uniform in (0, 1]."""
    columns = np.empty((len(shape), nonzeros), np.int32)
    values = np.empty(nonzeros, np.float32)
    rng = np.random.default_rng(seed)
    for start in range(0, nonzeros, BLOCK):
        stop = min(start + BLOCK, nonzeros)
        for mode, length in enumerate(shape):
            columns[mode, start:stop] = zipf_indices(rng, stop - start, length, skew)
        values[start:stop] = 1 - rng.random(stop - start, dtype=np.float32)
    return SparseTensor.from_columns(columns, values, shape)
