"""When a run saves its state, and how ranks take part."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partitioner.tensors.labels import Labels

from ..errors import OutputError
from ..methods.driver import Method
from .checkpoint import CheckpointWriter, Origin, checkpoint_of, name_of


class Saver:
    """Saves the state of a run in checkpoints; a context manager. See `Saving`.

    One is written after `every` that many iterations, and is complete when the next iteration ends, however long
    writing takes. If `every` is None, an iteration is saved unless a checkpoint is still being written. Without a
    `folder` nothing is saved. If the run `resumed`, the checkpoint of the current state is kept; any others are
    removed. A checkpoint that cannot be written is reported once, and the run continues.
    """

    def __init__(
        self,
        folder: Path | None,
        method: Method,
        origin: Origin,
        every: int | None = None,
        resumed: bool = False,
        labels: Labels | None = None,
    ) -> None:
        self._method, self._origin, self._labels = method, origin, labels
        self._every = None if folder is None else every
        self._saved = name_of(method.state) if resumed else None
        self._comm = method.operator.machine.everyone
        self._writer = CheckpointWriter(folder, self._saved) if self._comm.rank == 0 and folder is not None else None
        whole = method.operator.whole and not method.state.collective
        self._exchanges = folder is not None and not whole
        self._reported = False
        self.failed = False  # after `finish`, on rank 0: whether the last state could not be saved

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer:
            self._writer.close()

    def save(self) -> None:
        """Start writing a checkpoint if one is due, and wait for that of the iteration before."""
        iterations, every = self._method.state.iterations, self._every
        if every is not None and (iterations - 1) % every == 0:
            self._wait()
        if iterations % (every or 1) == 0:
            free = False
            if self._writer:
                with self._reporting("; the run continues"):
                    free = not self._writer.busy
            self._write(free, "; the run continues")

    def _wait(self) -> None:
        """Wait on all ranks until the last checkpoint is written, outside the limit of a step. Collective."""
        if self._writer:
            with self._reporting("; the run continues"):
                self._writer.finish()
        self._comm.allgather(None)

    def finish(self) -> None:
        """See `Saving`."""
        if self._writer:
            with self._reporting("; the run continues"):
                self._writer.finish()
        self._write(self._writer is not None and name_of(self._method.state) != self._saved)
        if self._writer:
            with self._reporting():
                self._writer.finish()
            self.failed = self._saved is None

    def _write(self, due: bool, suffix: str = "") -> None:
        """Start writing a checkpoint if it is `due` on rank 0, where factor matrices or the state may be gathered."""
        if self._exchanges:
            due = self._comm.bcast(due)
        if not due:
            return
        checkpoint = checkpoint_of(self._method, self._origin, self._labels)
        if self._writer:
            with self._reporting(suffix):
                self._writer.write(checkpoint)
                self._saved = name_of(self._method.state)

    @contextmanager
    def _reporting(self, suffix: str = "") -> Iterator[None]:
        """Within the block, print an `OutputError` as one line, once per run."""
        try:
            yield
        except OutputError as error:
            if not self._reported:
                print(f"amped: {error}{suffix}", file=sys.stderr, flush=True)
            self._reported, self._saved = True, None
