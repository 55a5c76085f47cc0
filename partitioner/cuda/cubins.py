"""Compiled CUDA code. Sources are compiled in parallel, once each, and cached on disk for later runs.

CuPy has a cache, too, but before it looks for a kernel on disk it loads NVRTC and compiles an empty file for each set
of options, which takes longer than the rest of a run on a small tensor. Here NVRTC is only loaded to compile. This
module needs neither a GPU nor CuPy, so tests can compile anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from threading import Lock
from typing import NamedTuple, Protocol

from ..host.cache import load_entry, save_entry


class CudaFunction(Protocol):
    """A compiled kernel, as CuPy has it."""

    ptr: int

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[object], *, shared_mem: int = 0
    ) -> None:
        """Queue it on the current stream."""


class CudaModule(Protocol):
    """Compiled code on a GPU, as CuPy has it."""

    def get_function(self, name: str) -> CudaFunction:
        """Return a kernel."""


class CudaSource(NamedTuple):
    """A translation unit."""

    name: str
    text: str
    options: tuple[str, ...]


class Cubins:
    """The compiled code for one architecture.

    Parameters
    ----------
    compile : callable
        Compiles a source. Called in threads.
    environment : str
        Everything besides the source that the code depends on: architecture and versions.
    threads : int
        Number of sources compiled in parallel.
    """

    def __init__(self, compile: Callable[[CudaSource], bytes], environment: str, threads: int) -> None:
        self._compile, self._environment = compile, environment
        self._pool = ThreadPoolExecutor(threads, "amped-compile")
        self._code: dict[CudaSource, Future[bytes]] = {}
        self._lock = Lock()

    def prepare(self, sources: Iterable[CudaSource]) -> None:
        """Start to load sources from disk, or to compile them, in threads."""
        for source in sources:
            self._future(source)

    def of(self, source: CudaSource) -> bytes:
        """Return the compiled code of a source, waiting for it if necessary."""
        return self._future(source).result()

    def _future(self, source: CudaSource) -> Future[bytes]:
        with self._lock:
            if source not in self._code:
                self._code[source] = self._pool.submit(self._get, source)
            return self._code[source]

    def _get(self, source: CudaSource) -> bytes:
        name = f"{source.name}-{sha256(repr((self._environment, *source)).encode()).hexdigest()[:40]}.cubin"
        code = load_entry(name)
        if code is None:
            code = self._compile(source)
            save_entry(name, code)
        return code
