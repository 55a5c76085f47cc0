"""CUDA kernels in the current GPU's memory, from sources that NVRTC compiles."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import cupy
from cupy.cuda import nvrtc

from ..host.stages import STAGES
from ..host.threads import usable_cores
from .cubins import Cubins, CudaSource

PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")  # of the compiler; it may come from elsewhere
OPTIONS = ("-ftz=true", "--device-as-default-execution-space")  # CuPy's own
OWN = {90}  # ten times the capability: of GPUs with instructions that no newer ones have, wgmma
THREADS = 8  # that compile, at most


def prepare(sources: Iterable[CudaSource]) -> None:
    """Begin to compile sources for the current GPU, or to read them from disk, in threads."""
    _cubins(_capability()).prepare(sources)


def load(source: CudaSource) -> Any:
    """Return a source's module on the current GPU, once in a process; its functions are taken by `get_function`."""
    return _loaded(source, cupy.cuda.runtime.getDevice())


def allow_shared(function: Any) -> None:
    """Let a kernel be launched with all the shared memory that its GPU has for a block of threads.

    One limit for all launches: a module is loaded once, and is launched with more and with less.
    """
    driver = cupy.cuda.driver
    have: int = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    own: int = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function.ptr)
    driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, have - own)


@cache
def _loaded(source: CudaSource, device: int) -> Any:
    module = cupy.cuda.Module()
    with STAGES.of("compile"):
        module.load(_cubins(_capability()).of(source))
    return module


def _capability() -> int:
    return int(cupy.cuda.Device().compute_capability)


@cache
def _cubins(capability: int) -> Cubins:
    versions = [cupy.__version__]
    for package in PACKAGES:
        try:
            versions.append(version(package))
        except PackageNotFoundError:
            continue
    return Cubins(lambda source: _compile(source, capability), f"{capability} {versions}", min(THREADS, usable_cores()))


def _compile(source: CudaSource, capability: int) -> bytes:
    """Compile for a GPU, or for the newest one that the compiler knows if that is older: the driver does the rest."""
    known = max(each for each in nvrtc.getSupportedArchs() if each <= capability)
    own = "a" if capability in OWN and known == capability else ""
    architecture = f"-arch={'sm' if known == capability else 'compute'}_{known}{own}"
    program = nvrtc.createProgram(source.text, f"{source.name}.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*source.options, *OPTIONS, architecture))
        code: bytes = nvrtc.getCUBIN(program) if known == capability else nvrtc.getPTX(program)
    except nvrtc.NVRTCError:
        raise RuntimeError(f"{source.name}.cu: {nvrtc.getProgramLog(program)}") from None
    finally:
        nvrtc.destroyProgram(program)
    return code
