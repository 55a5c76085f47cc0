"""Checkpoints of decompositions, from which a run can resume on any number of ranks and any device.

A checkpoint is a folder, ``iteration-N`` or ``iteration-N-mode-M``, with checksums (`checksums`). The last two are
kept. Rank 0 copies the factor matrices, and a thread writes the copy while the run continues; `saver.py` decides when.
Only one run at a time writes to a folder, in which it claims the name `CLAIM_NAME`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.host import checksums
from partitioner.readers.arrays.npz import DAMAGED
from partitioner.store.shared_fs import REMEDY
from partitioner.store.staging import OLD, draft_of
from partitioner.tensors.labels import Labels, find, mode_names, named
from partitioner.tensors.relabel import same_labels

from ..errors import InputError, OutputError
from ..files import Outputs, factors_in, read_array
from ..methods.driver import Method, MethodState
from ..operators.sources.protocols import DescribedSource
from ..parallel.mpi import Comm

KIND = "checkpoint"
FORMAT, VERSION, FIRST_VERSION = "amped-checkpoint", 2, 1
CLAIM_NAME = "checkpoints"
KEEP = 2  # newest checkpoints
CAUSES = "mask", "holdout", "held_out"  # facts that explain differences in others, such as the number of nonzeros
NAME = re.compile(r"iteration-(\d+)(?:-mode-(\d+))?")
DRAFT = re.compile(rf"\.{NAME.pattern}\.[0-9a-f]+\.(part|old)")


class Origin(NamedTuple):
    """The input, start and options of the run that writes a checkpoint."""

    facts: dict[str, Any]  # must be equal in a run that resumes: the method, the tensor's shape and digest, the rank
    seed: int
    init: str | None  # the start, None if random; empty if unknown, as in old checkpoints
    options: dict[str, Any]  # may differ in a run that resumes


class Checkpoint(NamedTuple):
    """The state of a decomposition between two modes."""

    state: MethodState
    factors: list[Floats]  # (I_n, R), as stored by the operator
    origin: Origin
    labels: Labels | None = None  # of the tensor; None in old checkpoints

    @property
    def name(self) -> str:
        """The name of its folder, from the iteration and mode."""
        return name_of(self.state)


def name_of(state: MethodState) -> str:
    """Return the name of the checkpoint of `state`."""
    return f"iteration-{state.iterations}" + (f"-mode-{state.mode}" if state.mode else "")


def facts_of(source: DescribedSource, rank: int | list[int], method: str) -> dict[str, object]:
    """Return the facts that must be equal in a checkpoint and the run that resumes it. Collective."""
    tensor = {"shape": list(source.shape), "nonzeros": source.nnz, "hash": f"{source.digest():016x}"}
    labels = {"labels": source.labels.checksum()} if source.labels else {}
    return {"method": method, **tensor, **labels, "rank": rank}


def checkpoint_of(method: Method, origin: Origin, labels: Labels | None = None) -> Checkpoint:
    """Return a checkpoint with a copy of a method's state and factor matrices. Collective."""
    factors = [method.factor(mode) for mode in range(method.order)]
    return Checkpoint(method.state.copy(), factors, origin, labels)


def check_hosts(folder: Path | None, comm: Comm) -> None:
    """Raise `InputError` if `folder` has checkpoints on another host but none on rank 0's. Collective.

    Only rank 0 reads checkpoints, so the run would silently start from the beginning.
    """
    seen = comm.allgather((names_in(folder)[:1] if folder else [], os.uname().nodename))
    for rank, (names, host) in enumerate(seen):
        if names and not seen[0][0]:
            cause = f"rank {rank} on {host} sees {names[0]} there, rank 0 on {seen[0][1]} no checkpoint: {REMEDY}"
            raise InputError(cause, path=folder)


def check_removable(folder: Path) -> None:
    """Raise `InputError` if a folder with the name of a checkpoint contains other files: it may not be a checkpoint."""
    for path in (folder / name for name in names_in(folder)):
        for name in sorted(os.listdir(path)) if path.is_dir() and not path.is_symlink() else [path.name]:
            if name != checksums.MANIFEST and not name.endswith(".npy"):
                raise InputError(f"contains {name}, which is not part of a checkpoint: not replaced", path=path)


def claim(folder: Path, outputs: Outputs, resume: bool, replace: bool, advice: str) -> None:
    """Claim a folder for the checkpoints of a run. Called on rank 0.

    Raise `InputError`, with the `advice`, if the folder has checkpoints and the run may neither resume nor replace
    them.
    """
    names = names_in(folder)
    if names and not (resume or replace):
        raise InputError(f"exists already; {advice}", path=folder / names[0])
    check_removable(folder)
    outputs.folder(folder)
    outputs.claim(folder / CLAIM_NAME)


def is_metrics_of(folder: Path, first: dict[str, Any], has_rank: Callable[[object], bool], tensor: str | None) -> bool:
    """Return whether metrics with this `first` event belong to the run that wrote the checkpoints in a folder.

    They do if the ranks are equal, and the tensors have the same name, or the same shape and number of nonzeros. If
    the run ended before its first checkpoint, the first event has to name the folder.
    """
    facts = newest_facts(folder)
    same_size = bool(facts) and all(first.get(name) == facts[name] for name in ("shape", "nonzeros"))
    same_name = tensor is not None and first.get("tensor") == tensor
    same_folder = not facts and first.get("checkpoint") == str(folder)
    is_same = same_size or same_name or same_folder
    return first.get("event") == "start" and has_rank(first.get("rank")) and is_same


class CheckpointWriter:
    """Writes checkpoints to a folder in a separate thread, one at a time.

    The checkpoint named `resumed`, from which the run resumes, is kept; any others are removed.
    """

    def __init__(self, folder: Path, resumed: str | None = None) -> None:
        self._folder = folder
        self._names = [resumed] if resumed else []
        self._thread = ThreadPoolExecutor(1, "amped-checkpoint")
        self._writing: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written; raise `OutputError`, once, if the last one failed."""
        if self._writing is not None and self._writing.done():
            self.finish()
        return self._writing is not None

    def write(self, checkpoint: Checkpoint) -> None:
        """Start writing a checkpoint, after the previous one is written."""
        self.finish()
        self._writing = self._thread.submit(self._write, checkpoint)

    def finish(self) -> None:
        """Wait until the last checkpoint is written; raise `OutputError`, once, if it failed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Wait for the thread to end."""
        self._thread.shutdown()

    def _write(self, checkpoint: Checkpoint) -> None:
        target = self._folder / checkpoint.name
        draft = draft_of(target)
        try:
            self._remove_all_but(self._names)
            draft.mkdir()
            _write_files(checkpoint, draft)
            os.rename(draft, target)
            checksums.sync_folder(self._folder)
            self._names = [*self._names, checkpoint.name][-KEEP:]
            self._remove_all_but(self._names)
        except OSError as error:
            raise OutputError(f"cannot write: {error.strerror or error}", path=target) from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _remove_all_but(self, names: list[str]) -> None:
        """Remove other checkpoints, and the drafts of killed runs; a checkpoint is renamed before it is removed."""
        check_removable(self._folder)
        for name in set(names_in(self._folder)) - set(names):
            os.rename(self._folder / name, draft_of(self._folder / name, OLD))
        for name in os.listdir(self._folder):
            if DRAFT.fullmatch(name):
                shutil.rmtree(self._folder / name, ignore_errors=True)


def _write_files(checkpoint: Checkpoint, folder: Path) -> None:
    state, origin = checkpoint.state, checkpoint.origin
    series = {name: np.array(numbers) for name, numbers in state.series.items()}
    factors = {f"factor_{mode}": factor for mode, factor in enumerate(checkpoint.factors)}
    arrays = {**state.arrays, **series, **factors, **named(checkpoint.labels)}
    body = {
        "format": FORMAT, "version": VERSION, "block_bytes": checksums.BLOCK,
        "iterations": state.iterations, "mode": state.mode, "arrays": list(state.arrays), "series": list(series),
        **origin._asdict(),
        "files": {name: checksums.write_array(folder / f"{name}.npy", array) for name, array in arrays.items()},
    }  # fmt: skip
    checksums.write_manifest(folder, body)


def names_in(folder: str | os.PathLike[str]) -> list[str]:
    """Return the names of the checkpoints in `folder`, the newest first."""
    try:
        matches = [match for name in os.listdir(folder) if (match := NAME.fullmatch(name))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [m[0] for m in sorted(matches, key=lambda m: (int(m[1]), int(m[2] or 0)), reverse=True)]


def newest_facts(folder: Path) -> dict[str, Any]:
    """Return the facts of the newest checkpoint in `folder` with a valid manifest; empty if there is none."""
    for name in names_in(folder):
        with suppress(InputError, KeyError, TypeError, ValueError):
            return dict(checksums.read_manifest(folder / name, KIND, FORMAT, VERSION, FIRST_VERSION)["facts"])
    return {}


def load_newest(folder: Path, verify: bool = True) -> tuple[Checkpoint | None, list[InputError]]:
    """Return the newest valid checkpoint in `folder`, None if there is none, and the errors of newer checkpoints.

    Raise `InputError` if there are checkpoints but none is valid.
    """
    damages: list[InputError] = []
    for name in names_in(folder):
        try:
            return load(folder / name, verify), damages
        except InputError as error:
            damages.append(error)
    if damages:
        raise damages[0]
    return None, []


def load(path: Path, verify: bool = True) -> Checkpoint:
    """Read the checkpoint at `path`; if `verify`, check its checksums. Raise `InputError` if it is damaged."""
    manifest = checksums.read_manifest(path, KIND, FORMAT, VERSION, FIRST_VERSION)
    try:
        if manifest["block_bytes"] != checksums.BLOCK:
            raise ValueError(f"blocks of {manifest['block_bytes']} bytes")
        arrays = {}
        for name, entry in dict(manifest["files"]).items():
            file = path / f"{name}.npy"
            checksums.check_entry(file, entry, KIND)
            if verify:
                checksums.verify(file, entry, KIND)
            with checksums.open_regular(file) as content:
                arrays[name] = read_array(content, entry["bytes"])
        if manifest["version"] == FIRST_VERSION:
            manifest, arrays = _of_first_version(manifest, arrays)
        factors = factors_in(arrays, path)
        init = manifest.get("init", "")
        start = int(manifest["seed"]), None if init is None else str(init)
        origin = Origin(dict(manifest["facts"]), *start, dict(manifest["options"]))
        labels = find(arrays, len(factors))
        return Checkpoint(_state(manifest, arrays, len(factors)), factors, origin, labels)
    except InputError:
        raise
    except DAMAGED as error:
        raise InputError(f"damaged checkpoint: {error!r}", path=path) from None


def _of_first_version(
    manifest: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Convert a checkpoint of the first version, which supported only CP-ALS, to the current version."""
    known = {"arrays": ["weights", "norms", "scales"], "series": ["fit"], "iterations": arrays["fits"].size}
    return {**manifest, **known, "facts": {"method": "als", **manifest["facts"]}}, {**arrays, "fit": arrays["fits"]}


def _state(manifest: dict[str, Any], arrays: dict[str, NDArray[Any]], order: int) -> MethodState:
    iterations, mode = int(manifest["iterations"]), int(manifest["mode"])
    for name in (*manifest["arrays"], *manifest["series"]):
        array = arrays[name]
        if array.dtype != np.float64 or not np.all(np.isfinite(array)):
            raise ValueError(f"{name} is not finite, or {array.dtype}")
    for name in manifest["series"]:
        if arrays[name].shape != (iterations,):
            raise ValueError(f"{name} of shape {arrays[name].shape} after {iterations} iterations")
    if not 0 <= mode < order:
        raise ValueError(f"mode {mode} of {order}")
    series = {name: [float(number) for number in arrays[name]] for name in manifest["series"]}
    return MethodState({name: arrays[name] for name in manifest["arrays"]}, series, iterations, mode)


def _changed_modes(saved: Labels, labels: Labels) -> str:
    """Return the names of the modes whose labels differ, as the end of a message."""
    names = mode_names(labels, len(labels))
    pairs = enumerate(zip(saved, labels, strict=False))
    return ", ".join(f" of {names[mode]}" for mode, both in pairs if not same_labels(*both))


def check(
    checkpoint: Checkpoint, facts: dict[str, Any], like: MethodState, folder: Path, labels: Labels | None = None
) -> None:
    """Raise `InputError` for a checkpoint of another tensor, rank or method, or with arrays unlike those of `like`."""
    path = folder / checkpoint.name
    names = {**facts, **checkpoint.origin.facts}  # only constrained runs have facts about constraints
    for name in sorted(names, key=lambda name: name not in CAUSES):
        saved, expected = (each.get(name, "none") for each in (checkpoint.origin.facts, facts))
        if saved != expected and name == "labels" and labels is not None and checkpoint.labels is not None:
            raise InputError(f"was made with other labels{_changed_modes(checkpoint.labels, labels)}", path=path)
        if saved != expected and name == "hash":
            raise InputError("was made with another tensor: its nonzeros or values differ", path=path)
        if saved != expected:
            raise InputError(f"was made with {name} {saved}, this run has {expected}", path=path)
    shapes = [f.shape for f in checkpoint.factors]
    shape, rank = facts["shape"], facts["rank"]
    ranks = rank if isinstance(rank, list) else [rank] * len(shape)
    if shapes != list(zip(shape, ranks, strict=True)):
        raise InputError(f"contains factor matrices of shapes {shapes}", path=path)
    state = checkpoint.state
    saved, expected = ({name: array.shape for name, array in each.arrays.items()} for each in (state, like))
    if saved != expected or state.series.keys() != like.series.keys():
        cause = f"contains {saved} and {[*state.series]}, expected {expected} and {[*like.series]}"
        raise InputError(cause, path=path)
