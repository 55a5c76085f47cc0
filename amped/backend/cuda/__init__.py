"""The CUDA backend: CuPy, kernels compiled by NVRTC, exchange over NCCL."""

from partitioner.device import probe

__all__ = ["probe"]
