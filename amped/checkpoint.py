"""Checkpoints of a decomposition: what is needed to go on with it, on any number of ranks and any device."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .decomp.als import State
from .engine import Engine
from .errors import InputError
from .files import factors_in, read_npz, write_npz

FILE = "checkpoint.npz"


@dataclass(frozen=True)
class Checkpoint:
    """A decomposition as it stood after some iterations.

    Attributes
    ----------
    state : State
    factors : list of (I_n, R) arrays
        As the engine holds them: columns are still to be multiplied with `state.scales`.
    facts : dict
        What it belongs to: shape, number of nonzeros and norm of the tensor, rank, seed.
    """

    state: State
    factors: list[NDArray[Any]]
    facts: dict[str, Any]


def facts_of(engine: Engine, nnz: int) -> dict[str, Any]:
    """Return what a checkpoint must share with the run that resumes it."""
    return {"shape": list(engine.shape), "nonzeros": nnz, "norm": engine.norm, "rank": engine.rank}


def save(folder: Path, engine: Engine, state: State, facts: dict[str, Any]) -> None:
    """Write a checkpoint from rank 0, replacing the one before it only once the new one is on the disk."""
    if engine.comm.rank == 0:
        factors = {f"factor_{mode}": engine.factor(mode) for mode in range(engine.order)}
        text = np.array(json.dumps(facts))
        known = {"weights": state.weights, "norms": state.norms, "scales": state.scales, "fits": np.array(state.fits)}
        write_npz(folder / FILE, {**known, "facts": text, **factors})


def load(folder: str | os.PathLike[str]) -> Checkpoint | None:
    """Return the checkpoint in `folder`, None if there is none; raise `InputError` if it is damaged."""
    path = Path(folder) / FILE
    if not path.exists():
        return None
    arrays = read_npz(path)
    try:
        fits = [float(f) for f in arrays["fits"]]
        state = State(arrays["weights"], fits, arrays["norms"], arrays["scales"])
        return Checkpoint(state, factors_in(arrays, path), json.loads(str(arrays["facts"])))
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"not a checkpoint: {error!r}", path=path) from None


def check(checkpoint: Checkpoint, facts: dict[str, Any], folder: Path) -> None:
    """Refuse a checkpoint of another tensor or another rank, naming the difference."""
    for name, value in facts.items():
        found = checkpoint.facts.get(name)
        same = np.isclose(found, value, rtol=1e-12) if name == "norm" and isinstance(found, float) else found == value
        if not same:
            raise InputError(f"was made with {name} {found}, this run has {value}", path=folder / FILE)
    if checkpoint.state.weights.shape != (facts["rank"],) or not np.all(np.isfinite(checkpoint.state.weights)):
        raise InputError(f"holds {checkpoint.state.weights.shape} weights", path=folder / FILE)
    for name, held in (("norms", checkpoint.state.norms), ("scales", checkpoint.state.scales)):
        if held.shape != (len(facts["shape"]), facts["rank"]) or not np.all(np.isfinite(held)):
            raise InputError(f"holds {held.shape} {name}", path=folder / FILE)
    shapes = [f.shape for f in checkpoint.factors]
    if shapes != [(length, facts["rank"]) for length in facts["shape"]]:
        raise InputError(f"holds factor matrices of shapes {shapes}", path=folder / FILE)
