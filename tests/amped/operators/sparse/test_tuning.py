"""Choosing kernels: what is timed, what is remembered, and what a run may spend on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import random_tensor

from amped.backend.cpu.shard import HostShard
from amped.backend.device import Array
from amped.backend.exchange import connect
from amped.backend.null.device import NullDevice
from amped.backend.null.ops.mttkrp import RecordedKernel
from amped.backend.ops.mttkrp import MTTKRP, Shard, Share
from amped.operators import tuning_cache
from amped.operators.modes import ModePlan
from amped.operators.products import Mttkrp
from amped.operators.sources.sparse import TensorSource
from amped.operators.sparse import tuning
from amped.operators.sparse.tuning import Budget, Tuner
from amped.options import Options
from amped.parallel.mpi import world
from amped.runs.assembly import place
from partitioner.host.cache import save_entry
from partitioner.tensors.sparse import SparseTensor
from partitioner.tensors.value_range import ValueRange

SECONDS = {"slow": 3e-3, "fast": 1e-3}
ORDER = 3


class Steady(NullDevice):
    """A device whose times are remembered; what is made for it, or compiled, is written down."""

    steady = True

    def __init__(self, model: str = "a model") -> None:
        super().__init__(world())
        self.model = model
        self.made, self.prepared, self.timed = list[str](), list[str](), list[str]()


class Written(RecordedKernel):
    """A kernel of that device."""

    def __init__(self, name: str, device: Steady) -> None:
        super().__init__(name, device)
        self._device = device

    def prepare(self, share: Share) -> None:
        self._device.prepared.append(self.name)

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> HostShard:
        self._device.made.append(self.name)
        return super().make(columns, values, share, continues)


@pytest.fixture
def steady(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Steady]:
    """The device, with nothing in the folder of what is remembered, and times as in `SECONDS`."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))

    def run(self: Tuner, shards: Sequence[Shard], mode: ModePlan) -> float:
        device: Any = self._machine.device
        device.timed += [shard.kernel.name for shard in shards]
        return sum(SECONDS[shard.kernel.name] for shard in shards)

    monkeypatch.setattr(Tuner, "_run", run)
    monkeypatch.setattr(MTTKRP, "providers", lambda device: [Written(name, device) for name in SECONDS])
    return Steady


def kernels(device: Steady, budget: Budget | None = None, /, **options: Any) -> list[str]:
    """Place a tensor; return the kernels of its modes."""
    comm = world()
    source = TensorSource(SparseTensor(*random_tensor((30, 20, 10), 500, 1)), comm)
    return list(place(source, 4, connect(device, comm), Options(**options), budget=budget).kernels)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "amped").glob("kernel-*.json"))


def test_what_was_timed_is_not_timed_again(steady: type[Steady], tmp_path: Path) -> None:
    first, second = steady(), steady()
    assert kernels(first) == kernels(second) == ["fast"] * ORDER
    assert first.made == ["slow", "fast"] * ORDER
    assert second.made == ["fast"] * ORDER
    assert first.prepared == ["slow", "fast"] * ORDER
    assert second.prepared == ["fast"] * ORDER
    assert second.timed == []
    assert len(files(tmp_path)) == ORDER


@pytest.mark.parametrize("other", [{"model": "another model"}, {"precision": "fp64"}, {"placement": "stream"}])
def test_another_device_or_kind_of_run_is_timed_by_itself(steady: type[Steady], other: dict[str, str]) -> None:
    kernels(steady())
    device = steady(other.pop("model", "a model"))
    kernels(device, **other)
    assert set(device.made) == {"slow", "fast"}


@pytest.mark.parametrize("options", [{"deterministic": True}, {"kernel": "slow"}])
def test_a_run_that_chooses_nothing_remembers_nothing(
    steady: type[Steady], tmp_path: Path, options: dict[str, Any]
) -> None:
    kernels(steady())
    before = files(tmp_path)
    device = steady()
    assert kernels(device, **options) == ["slow"] * ORDER
    assert device.timed == []
    assert files(tmp_path) == before


def test_where_times_vary_they_are_not_remembered(steady: type[Steady], tmp_path: Path) -> None:
    device = steady()
    device.steady = False
    assert kernels(device) == ["fast"] * ORDER
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    "harm",
    [b"", b"{", b"[1]", b'{"fast": "quick"}', b'{"fast": -1, "slow": NaN}', b'{"fast": true}', b'{"other": 1.0}'],
)
def test_what_makes_no_sense_is_timed_again(steady: type[Steady], tmp_path: Path, harm: bytes) -> None:
    kernels(steady())
    for file in files(tmp_path):
        save_entry(file.name, harm)
    device = steady()
    assert kernels(device) == ["fast"] * ORDER
    assert "slow" in device.made
    again = steady()
    assert kernels(again) == ["fast"] * ORDER
    assert again.timed == []


def test_a_file_that_is_no_longer_whole_is_timed_again(steady: type[Steady], tmp_path: Path) -> None:
    kernels(steady())
    for file in files(tmp_path):
        file.write_bytes(file.read_bytes()[:-1])
    device = steady()
    assert kernels(device) == ["fast"] * ORDER
    assert device.made == ["slow", "fast"] * ORDER


def test_a_folder_that_cannot_be_made_costs_time_alone(steady: type[Steady], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    for _ in range(2):
        device = steady()
        assert kernels(device) == ["fast"] * ORDER
        assert device.made == ["slow", "fast"] * ORDER


class Clock:
    """Makes each look at the time a second later than the one before."""

    def __init__(self) -> None:
        self._ticks = count()

    def perf_counter(self) -> float:
        return float(next(self._ticks))


def test_a_run_of_few_iterations_chooses_nothing(
    steady: type[Steady], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "time", Clock())
    device = steady()
    assert kernels(device, Budget(repeats=1, began=0.0)) == ["slow"] * ORDER
    assert device.made == ["slow"] * ORDER
    assert files(tmp_path) == []


def test_a_run_goes_on_where_the_one_before_has_stopped(
    steady: type[Steady], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run has time for a candidate or two."""
    chosen, timed = [], []
    for _ in range(2 * ORDER + 1):
        monkeypatch.setattr(tuning, "time", Clock())
        device = steady()
        chosen.append(kernels(device, Budget(repeats=1, began=-20.0)))
        timed.append(len(device.timed))
    assert chosen[0] != ["fast"] * ORDER
    assert chosen[-1] == ["fast"] * ORDER
    assert sum(runs > ORDER for runs in timed) > 1  # more than a single run of each mode
    assert timed[-1] == 0


def test_what_a_run_may_spend() -> None:
    """A tenth of what it takes; without a number of repeats, anything."""
    assert Budget(None).affords(1e9)
    budget = Budget(repeats=100)
    assert not budget.affords(5.0)
    budget.expect(0.6)
    assert budget.affords(5.0)
    budget.spent = 3.0
    assert not budget.affords(5.0)


def test_numbers_of_nonzeros_that_differ_by_little_are_one_choice() -> None:
    share = Share((10, 20), slice(0, 1000), 100_000, 4, np.dtype(np.float32), ValueRange(0.0, 1.0, 0.0))
    mode = ModePlan(0, 4, None, slice(0, 1000), share, Mttkrp(), resident=1)  # type: ignore[arg-type]
    facts = json.dumps(tuning._tuning_key(mode))
    for nnz, same in ((100_400, True), (110_000, False)):
        other = replace(mode, share=replace(share, nnz=nnz))
        assert (json.dumps(tuning._tuning_key(other)) == facts) is same


@pytest.mark.parametrize("path", ["device.py", "kernels/k.cu", "include/h.cuh", "ops/mttkrp.py", "code/deep/er.py"])
def test_times_depend_on_every_source_of_a_device(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_cache, "files", lambda package: tmp_path)
    place = tmp_path / path
    place.parent.mkdir(parents=True, exist_ok=True)
    digests = set[str]()
    for text in ("one", "other"):
        place.write_text(text)
        digests.add(tuning_cache._code.__wrapped__("cuda"))
    assert len(digests) == 2
