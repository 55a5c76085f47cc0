"""Checkpoints of a series of updates: the model so far, with the number of updates that it includes."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from partitioner.wording import setting

from ..errors import InputError
from ..files import Outputs
from ..models.kruskal import KruskalTensor

FILE = "updates.npz"
ORIGIN, COUNT = "updated_from", "updates_done"  # entries of the record


def checksum(model: KruskalTensor, parameters: object) -> int:
    """Return a number by which a series of updates is recognised: of the first model and the parameters."""
    result = zlib.crc32(repr(parameters).encode(), zlib.crc32(model.weights.tobytes()))
    for factor in model.host_factors:
        result = zlib.crc32(np.ascontiguousarray(factor).tobytes(), result)
    return result


class UpdateCheckpoints(NamedTuple):
    """Checkpoints in a folder, used on rank 0.

    Attributes
    ----------
    path : Path
    every : int
        Updates between checkpoints.
    origin : int
        See `checksum`.
    saved : KruskalTensor, optional
        The model to continue from.
    """

    path: Path
    every: int
    origin: int
    saved: KruskalTensor | None

    @classmethod
    def claimed(cls, folder: Path, every: int, resume: bool, origin: int, outputs: Outputs) -> UpdateCheckpoints:
        """Reserve the file, and read it in order to `resume`.

        Raises
        ------
        InputError
            If there is a checkpoint, but not to be resumed, or if it belongs to other updates.
        """
        outputs.folder(folder)
        path = folder / FILE
        outputs.file(path, resume, f"{setting('resume')} continues from it; or name another folder")
        if not resume or not path.exists():
            return cls(path, every, origin, None)
        model = KruskalTensor.load(path)
        if model.run.get(ORIGIN) != origin or not isinstance(model.run.get(COUNT), int):
            cause = "its updates began with another model or other parameters: pass the same ones, or resume=False"
            raise InputError(cause, path=path)
        return cls(path, every, origin, model)

    def write(self, model: KruskalTensor, count: int) -> None:
        """Write the model after `count` updates."""
        record = model.run
        model.run = record | {ORIGIN: self.origin, COUNT: count}
        try:
            model.save(self.path)
        finally:
            model.run = record
