"""The CUDA backend: CuPy, kernels compiled by NVRTC, exchange over NCCL."""

from partitioner.shards.sorters import probe

__all__ = ["probe"]
