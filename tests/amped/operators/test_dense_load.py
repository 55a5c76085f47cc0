"""Elements of files on their way to a device, in parts that threads take in runs."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amped
from amped.backend.choose import choose
from amped.operators import dense_load
from amped.operators.dense_load import begin_copy
from amped.parallel.mpi import SingleComm
from partitioner import dense
from partitioner.dense import Place, Stored
from partitioner.facts import looked_at

ARRAY = np.random.default_rng(0).integers(0, 100, (13, 6, 9))
PLACES: list[Place] = [(), (slice(3, 11),), (slice(0, 13), slice(2, 5)), (slice(1, 2), slice(0, 6), slice(4, 5))]


def stored(folder: Path, array: np.ndarray) -> Stored:
    np.save(folder / "x.npy", array)
    tensor = amped.read(folder / "x.npy")
    assert isinstance(tensor, amped.DenseTensor)
    assert isinstance(tensor.memory, Stored)
    return tensor.memory


@pytest.mark.parametrize("kinds", [("f8", "f8"), ("f8", "f4"), ("u1", "u1"), ("i2", "f4")], ids="-".join)
@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize(("part", "run"), [(8, 1), (200, 3), (1 << 23, 4)])
def test_all_parts_arrive_and_are_looked_at(
    tmp_path: Path,
    device: str,
    kinds: tuple[Any, Any],
    place: Place,
    part: int,
    run: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, sizes in ((dense_load, {"PART": part, "RUN": run}), (dense, {"PART": part, "PIECE": 40})):
        for name, value in sizes.items():
            monkeypatch.setattr(module, name, value)
    if device == "cuda":
        monkeypatch.setattr("amped.backend.cuda.device.LARGE", 0)
    backend, seen = choose(device, SingleComm(), None), list[int]()
    array = ARRAY.astype(kinds[0])
    elements = stored(tmp_path, array).within(place) if place else stored(tmp_path, array)
    target = backend.zeros(elements.shape, np.dtype(kinds[1]))
    begin_copy(target, elements, backend, lambda found: seen.append(int(found.astype(np.int64).sum())))()
    assert np.array_equal(backend.to_host(target), array[place])
    assert sum(seen) == array[place].astype(np.int64).sum()
    assert len(seen) > 1 or part > 200 or elements.shape[0] == 1


@pytest.mark.parametrize("kinds", [("u1", "f4"), ("i8", "f4"), ("f8", "f4"), ("f8", "f8")], ids="-".join)
def test_what_reading_takes_is_planned(tmp_path: Path, kinds: tuple[Any, Any]) -> None:
    """Threads hold no more copies of what they have read than are told, whatever the type."""
    array, wanted = np.ones((1 << 12, 1 << 12), kinds[0]), np.dtype(kinds[1])
    backend, elements = choose("cpu", SingleComm(), 2), stored(tmp_path, array)
    target = np.empty(elements.shape, wanted)
    copies = int(array.dtype != wanted) + int(looked_at(array.dtype) != array.dtype)
    begin_copy(target, elements, backend, lambda found: dense_load.known_of(found, elements.shape))()  # compiles
    tracemalloc.start()
    begin_copy(target, elements, backend, lambda found: dense_load.known_of(found, elements.shape))()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= backend.reading_bytes(array.size * wanted.itemsize, copies) + (1 << 20)
