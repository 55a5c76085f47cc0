"""Random matrices on the GPU: compiling and launching ``random.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import load
from partitioner.cuda.cubins import CudaFunction

from ...device import Array
from ...ops.random import RANDOM, RandomProvider, RandomStream
from ..device import CudaDevice
from ..launches.device_matrices import strides_of
from ..source import REALS, by_value, unit

THREADS, EACH = 256, 64  # threads of a block, and numbers of a thread at least
BLOCKS = 8  # per multiprocessor, at most


class CudaRandom:
    """See `RandomProvider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def draw(self, matrix: Array, stream: RandomStream) -> None:
        """See `RandomProvider`."""
        most = self._device.limits.processors * BLOCKS
        blocks = max(1, min(most, -(-matrix.size // (THREADS * EACH))))
        stride = stream.step.times(blocks * THREADS)
        state, *steps = _wide(stream.state), _wide(*stream.step), _wide(*stride)
        sizes = np.int64(matrix.size), np.int32(matrix.shape[1]), *strides_of(matrix)
        _compiled(matrix.dtype, self._device.number)((blocks,), (THREADS,), (state, *steps, *sizes, matrix))


@RANDOM.provider("cuda")
def providers(device: CudaDevice) -> Sequence[RandomProvider]:
    """Return the providers of the operation."""
    return [CudaRandom(device)]


def _wide(*numbers: int) -> np.void:
    """Return numbers of 128 bits, to be passed by value: the leading word of each comes first."""
    return by_value(np.array([word for each in numbers for word in divmod(each, 1 << 64)], np.uint64))


@cache
def _compiled(dtype: FloatDType, device: int) -> CudaFunction:
    return load(unit("random", {"REAL": REALS[dtype]})).get_function("draw")
