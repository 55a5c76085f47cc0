"""Synthetic tensors in host memory, and in files that are made once for all processes that measure with them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.host.threads import usable_cores
from partitioner.tensors.sparse import SparseTensor

from .counter_rng import HostRng, Recipe

BLOCK = 1 << 20  # nonzeros or elements drawn together


def drawn(recipe: Recipe, kind: Any = np.float64) -> tuple[NDArray[np.int32], Floats]:
    """Return the nonzeros of a recipe in host memory: columns of indices, (order, nnz), and values."""
    rng, order = HostRng(recipe), len(recipe.lengths)
    columns = np.empty((order, recipe.nonzeros), np.int32)
    values = np.empty(recipe.nonzeros, kind)

    def draw(begin: int) -> None:
        numbers = range(begin, min(begin + BLOCK, recipe.nonzeros))
        part = slice(numbers.start, numbers.stop)
        for mode in range(order):
            columns[mode, part] = rng.indices(mode, numbers)
        values[part] = rng.values(numbers, values.dtype)

    with ThreadPoolExecutor(usable_cores()) as threads:
        list(threads.map(draw, range(0, recipe.nonzeros, BLOCK)))
    return columns, values


def tensor(recipe: Recipe) -> SparseTensor:
    """Return the tensor of a recipe in host memory, nonzeros of equal indices added up."""
    return SparseTensor.from_columns(*drawn(recipe), recipe.lengths)


def archive(path: Path, recipe: Recipe) -> None:
    """Write the nonzeros of a recipe as a NumPy archive."""
    columns, values = drawn(recipe)
    np.savez(path, indices=np.ascontiguousarray(columns.T), values=values, shape=np.array(recipe.lengths))


def array(path: Path, lengths: tuple[int, ...], seed: int = 1) -> None:
    """Write a dense array of uniform random numbers."""
    out = np.lib.format.open_memmap(path, "w+", np.float64, lengths)
    flat, rng = out.reshape(-1), np.random.default_rng(seed)
    for begin in range(0, flat.size, BLOCK):
        flat[begin : begin + BLOCK] = rng.random(min(BLOCK, flat.size - begin))
    out.flush()


def once(path: Path, make: Callable[[Path], None]) -> Path:
    """Return a path; if nothing is there, `make` writes it under another name first, so that it is complete."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"draft-{path.name}")
        if draft.is_dir():
            shutil.rmtree(draft)
        draft.unlink(missing_ok=True)
        make(draft)
        draft.rename(path)
    return path
