"""Labels, and nonzeros that are hard to partition."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partitioner.store.format import Store, write_files
from partitioner.store.staging import drafted
from partitioner.tensors.labels import Labels, as_labels
from partitioner.tensors.sparse import SparseTensor

Nonzeros = tuple[np.ndarray, np.ndarray]


def labels_of(*labels: Any, names: Sequence[str] | None = None, units: Any = None) -> Labels:
    """Return the labels of each mode."""
    return Labels(map(as_labels, labels), names, units=units)


def random_nonzeros(shape: tuple[int, ...], count: int, seed: int) -> Nonzeros:
    rng = np.random.default_rng(seed)
    return np.array([rng.integers(0, length, count) for length in shape], np.int32), rng.standard_cauchy(count)


def hard_nonzeros() -> dict[str, Nonzeros]:
    """Return indices, (order, nnz), and values, by name of the difficulty."""
    rng = np.random.default_rng(9)
    cases = {
        "spread": random_nonzeros((50, 2**31 - 2, 300), 3000, 0),
        "many duplicates": random_nonzeros((4, 5, 3), 3000, 1),
        "order 6": random_nonzeros((9, 1, 40, 2, 1000, 7), 2000, 2),
        "few": random_nonzeros((3, 3), 5, 3),
    }
    columns, values = random_nonzeros((60, 70, 80), 3000, 4)
    columns[:, rng.random(3000) < 0.7] = np.array([[7], [8], [9]])
    cases["one coordinate has most"] = columns, values
    columns, values = random_nonzeros((60, 70, 80), 3000, 5)
    columns[0, rng.random(3000) < 0.8] = 33
    cases["one row has most"] = columns, values
    columns, values = random_nonzeros((60, 70, 80), 1500, 6)
    cases["half sums to zero"] = (
        np.concatenate([columns, columns[:, :700], columns[:, -100:]], axis=1),
        np.concatenate([values, -values[:700], 0 * values[-100:]]),
    )
    columns, values = random_nonzeros((60, 70, 80), 3000, 7)
    cases["single precision"] = columns, values.astype(np.float32).astype(np.float64)
    columns, values = random_nonzeros((1, 1), 3000, 8)
    cases["one coordinate"] = columns, values
    return cases


def write_tns(path: Path, columns: np.ndarray, values: np.ndarray) -> None:
    """Write nonzeros as text."""
    lines = zip((columns + 1).T.tolist(), values.tolist(), strict=True)
    path.write_text("".join(f"{' '.join(map(str, indices))} {value!r}\n" for indices, value in lines))


def files_of(store: Path) -> dict[str, bytes]:
    """Return the contents of a store's files."""
    return {file.name: file.read_bytes() for file in store.iterdir()}


def write_store(tensor: SparseTensor, path: Path, *, force: bool = False) -> Store:
    """Write a tensor as a store, like `partition` does if it fits into memory."""
    target = Path(os.path.realpath(path))
    with drafted(target, force) as draft:
        write_files(tensor, draft)
    return Store(target)
