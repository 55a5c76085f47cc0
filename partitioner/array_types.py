"""Types of arrays in host memory, by what they hold. Arrays of devices are `amped.backend.device.Array`."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Element = TypeVar("Element", bound=np.generic)
"""Element type of arrays that a function passes on."""
HostArray: TypeAlias = NDArray[np.generic]
"""Elements of any type: labels, bytes, values as users pass them."""
Floats: TypeAlias = NDArray[np.floating]
"""Values, factors, weights: float32 or float64."""
Integers: TypeAlias = NDArray[np.integer]
"""Indices or counts of any width."""
DType: TypeAlias = np.dtype[np.generic]
FloatDType: TypeAlias = np.dtype[np.floating]
IntDType: TypeAlias = np.dtype[np.integer]
