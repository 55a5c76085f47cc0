"""Elements of files on their way to a device, in parts that threads take in runs."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from densecases import dense_operator

import amped
from amped.backend.choose import choose
from amped.backend.cpu import device as cpu_device
from amped.operators.dense import load as dense_load
from amped.operators.dense import plan as dense_plan
from amped.operators.dense.load import begin_copy
from amped.parallel.mpi import Comm, SingleComm
from partitioner.tensors import stored as stored_elements
from partitioner.tensors.stored import Place, Stored

pytestmark = pytest.mark.in_turn

ARRAY = np.random.default_rng(0).integers(0, 100, (13, 6, 9))
SLACK = 1 << 19  # bytes of other objects
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
    for module, sizes in ((dense_load, {"PART": part, "RUN": run}), (stored_elements, {"PART": part, "PIECE": 40})):
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


@pytest.mark.parametrize("kind", ["u1", "i8", "f8", "f4"])
@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize("ending", ["npy", "h5"])
def test_what_reading_takes_is_planned(
    tmp_path: Path, comm: Comm, kind: str, placement: Any, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads buffer at most the elements that plans count, for any type."""
    for module, sizes in (
        (dense_load, {"PART": 1 << 19, "RUN": 1, "PIECE": 1 << 19}),
        (stored_elements, {"PART": 1 << 16, "PIECE": 1 << 17}),
        (cpu_device, {"PART": 1 << 19, "RUN": 1, "PIECE": 1 << 17}),
        (dense_plan, {"PIECE": 1 << 19}),
    ):
        for name, value in sizes.items():
            monkeypatch.setattr(module, name, value)
    array = np.ones((1 << 8, 1 << 7, 1 << 7), kind)
    path = saved(tmp_path, array, ending)
    factors = [np.ones((length, 2)) for length in array.shape]
    how = {"placement": placement, "precision": "fp32", "device": "cpu", "threads": 2, "late": True}
    operator = dense_operator(path, factors, comm, **how)  # compiles
    operator.mttkrp(0)
    told = operator.plan.host_bytes - operator.machine.device.host_bytes - 2 * operator.machine.device.code_bytes
    del operator
    tracemalloc.start()
    operator = dense_operator(path, factors, comm, **how)
    operator.mttkrp(0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= told + SLACK, f"{told:,} planned, {peak:,} used"


def saved(folder: Path, array: np.ndarray, ending: str) -> Path:
    if ending == "npy":
        np.save(folder / "x.npy", array)
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(folder / "x.h5", "w") as file:
            file.create_dataset("x", data=array, chunks=(16, 64, 64))
    return folder / f"x.{ending}"
