"""Rounding of factor matrices to 16 bits on the GPU."""

from __future__ import annotations

from collections.abc import Sequence

import cupy
import numpy as np

from ...device import Array
from ...ops.cast16 import CAST16, Rounding
from ..device import CudaDevice

_to_bf16 = cupy.ElementwiseKernel(
    "float32 x", "uint16 y",
    "const unsigned b = __float_as_uint(x); y = isnan(x) ? 0x7fc0 : (b + 0x7fff + (b >> 16 & 1)) >> 16",
    "amped_to_bf16",
)  # fmt: skip


class Half:
    """IEEE half precision: 11 significant bits, up to 65504. See `Rounding`."""

    name = "fp16"

    def run(self, matrix: Array, out: Array) -> None:
        out.view(np.float16)[...] = matrix


class Brain:
    """The upper half of single precision: 8 significant bits, full range. See `Rounding`."""

    name = "bf16"

    def run(self, matrix: Array, out: Array) -> None:
        _to_bf16(matrix, out)


@CAST16.provider("cuda")
def providers(device: CudaDevice) -> Sequence[Rounding]:
    """Return the formats of the operation."""
    return [Half(), Brain()]
