"""Synthetic tensors in files, made once and read by every process that measures with them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from partitioner.host.threads import usable_cores

from .draws import HostDraws, Recipe

BLOCK = 1 << 20  # nonzeros or elements drawn together


def archive(path: Path, recipe: Recipe) -> None:
    """Write the nonzeros of a recipe as a NumPy archive."""
    draws, order = HostDraws(recipe), len(recipe.lengths)
    indices = np.empty((recipe.nonzeros, order), np.int32)
    values = np.empty(recipe.nonzeros, np.float32)

    def draw(begin: int) -> None:
        numbers = range(begin, min(begin + BLOCK, recipe.nonzeros))
        for mode in range(order):
            indices[numbers.start : numbers.stop, mode] = draws.indices(mode, numbers)
        values[numbers.start : numbers.stop] = draws.values(numbers, values.dtype)

    with ThreadPoolExecutor(usable_cores()) as threads:
        list(threads.map(draw, range(0, recipe.nonzeros, BLOCK)))
    np.savez(path, indices=indices, values=values, shape=np.array(recipe.lengths))


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
