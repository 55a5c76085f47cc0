"""Arrays that behave as a GPU's but are NumPy's, and an operation that arranges columns there."""

from __future__ import annotations

from typing import Any

import numpy as np

from amped.backend.ops.columns import ColumnSums


class OnDevice:
    """An array that NumPy does not convert, as CuPy's; `copies` counts the copies to the host of all such arrays."""

    copies = 0

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._array.__array_interface__

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __len__(self) -> int:
        return len(self._array)

    def get(self) -> np.ndarray:
        OnDevice.copies += 1
        return self._array.copy()


class StubColumns:
    """See `ColumnsProvider`."""

    def sums(self, matrix: np.ndarray) -> ColumnSums:
        wide = matrix.astype(np.float64)
        return ColumnSums((wide**2).sum(axis=0), np.abs(wide).sum(axis=0), (wide * np.abs(wide)).sum(axis=0))

    def arranged(self, matrix: np.ndarray, order: np.ndarray, divisor: np.ndarray, flushed: float) -> Any:
        return OnDevice(self.on_host(matrix, order, divisor, flushed))

    def on_host(self, matrix: np.ndarray, order: np.ndarray, divisor: np.ndarray, flushed: float) -> np.ndarray:
        result = np.ascontiguousarray(matrix[:, order] / divisor.astype(matrix.dtype))
        return np.where(result <= flushed, 0, result).astype(matrix.dtype)


class StubOperation:
    """Stands for `COLUMNS`: every device has the stub."""

    def first(self, device: object) -> StubColumns:
        return StubColumns()

    require = first


class StubDevice:
    """A device whose memory holds `OnDevice` arrays."""

    on_host = False

    def to_device(self, array: np.ndarray) -> OnDevice:
        return OnDevice(array)

    def synchronize(self) -> None:
        pass
