"""The CUDA backend: CuPy, kernels compiled by NVRTC, exchange over NCCL."""

from __future__ import annotations


def probe() -> str:
    """Return why no GPU can be used, or an empty string if one can."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy is not installed ({error}); install amped[cuda12] or amped[cuda13]"
    try:
        return "" if cupy.cuda.runtime.getDeviceCount() else "no GPU found"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no GPU found ({error})"
