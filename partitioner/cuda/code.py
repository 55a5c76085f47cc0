"""CUDA kernels, compiled with NVRTC and loaded on the current GPU."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import cupy
from cupy.cuda import nvrtc

from ..host.stages import STAGES
from ..host.threads import usable_cores
from .cubins import Cubins, CudaFunction, CudaModule, CudaSource

PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")  # NVRTC packages; NVRTC may also come from elsewhere
OPTIONS = ("-ftz=true", "--device-as-default-execution-space")  # same as CuPy's
ARCHITECTURE_SPECIFIC = {90}  # ten times the capability: GPUs with instructions, wgmma, that newer ones lack
THREADS = 8  # maximum number of compiling threads


def prepare(sources: Iterable[CudaSource]) -> None:
    """Start to compile sources for the current GPU, or to read their code from disk, in threads."""
    _cubins(_capability()).prepare(sources)


def load(source: CudaSource) -> CudaModule:
    """Return a source's module on the current GPU, loaded once per process. `get_function` returns its kernels."""
    return _loaded(source, cupy.cuda.runtime.getDevice())


def allow_shared(function: CudaFunction) -> None:
    """Let a kernel use all the shared memory that its GPU allows per block.

    The limit is set once, since a module is loaded once but launched with different amounts.
    """
    driver = cupy.cuda.driver
    limit: int = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    static: int = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function.ptr)
    driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, limit - static)


@cache
def _loaded(source: CudaSource, device: int) -> CudaModule:
    loaded = cupy.cuda.Module()
    with STAGES.of("compile"):
        loaded.load(_cubins(_capability()).of(source))
    module: CudaModule = loaded
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
    """Compile for a GPU. If the compiler does not know it, compile PTX for the newest older one it knows."""
    known = max(each for each in nvrtc.getSupportedArchs() if each <= capability)
    suffix = "a" if capability in ARCHITECTURE_SPECIFIC and known == capability else ""
    architecture = f"-arch={'sm' if known == capability else 'compute'}_{known}{suffix}"
    program = nvrtc.createProgram(source.text, f"{source.name}.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*source.options, *OPTIONS, architecture))
        code: bytes = nvrtc.getCUBIN(program) if known == capability else nvrtc.getPTX(program)
    except nvrtc.NVRTCError:
        raise RuntimeError(f"{source.name}.cu: {nvrtc.getProgramLog(program)}") from None
    finally:
        nvrtc.destroyProgram(program)
    return code
