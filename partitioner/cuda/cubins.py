"""Compiled CUDA code: many sources side by side, each once, and kept on disk for later runs.

CuPy keeps what it compiles as well, but loads NVRTC, and has it compile an empty file for each set of options, before
it looks for a kernel on disk. That takes longer than all else that a run of a small tensor does. Here NVRTC is loaded
where something is to be compiled. This module needs no GPU or CuPy, so that tests can compile anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from threading import Lock
from typing import NamedTuple

from ..host.cache import keep, kept


class CudaSource(NamedTuple):
    """What is compiled together."""

    name: str
    text: str
    options: tuple[str, ...]


class Cubins:
    """The compiled code of one architecture.

    Parameters
    ----------
    compile : callable
        Compiles a source; called in threads.
    facts : str
        What compiled code depends on beside its source: architecture and versions.
    threads : int
        Compile so many sources at once.
    """

    def __init__(self, compile: Callable[[CudaSource], bytes], facts: str, threads: int) -> None:
        self._compile, self._facts = compile, facts
        self._pool = ThreadPoolExecutor(threads, "amped-compile")
        self._found: dict[CudaSource, Future[bytes]] = {}
        self._lock = Lock()

    def prepare(self, sources: Iterable[CudaSource]) -> None:
        """Begin to look for sources on disk, or to compile them, in threads."""
        for source in sources:
            self._future(source)

    def of(self, source: CudaSource) -> bytes:
        """Return the compiled code of a source, once it is there."""
        return self._future(source).result()

    def _future(self, source: CudaSource) -> Future[bytes]:
        with self._lock:
            if source not in self._found:
                self._found[source] = self._pool.submit(self._get, source)
            return self._found[source]

    def _get(self, source: CudaSource) -> bytes:
        name = f"{source.name}-{sha256(repr((self._facts, *source)).encode()).hexdigest()[:40]}.cubin"
        code = kept(name)
        if code is None:
            code = self._compile(source)
            keep(name, code)
        return code
