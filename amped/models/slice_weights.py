"""The weights of a model's slices in later updates, after forgetting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import HostArray

WEIGHTS, MODE = "slice_weights", "slice_weights_mode"  # names in files


class SliceWeights(NamedTuple):
    """Weights of the slices of a mode.

    Attributes
    ----------
    mode : int
    weights : (I_mode,) float64 array
        Above 0, and at most 1. Slices of other modes, and of models without weights, have weight 1.
    """

    mode: int
    weights: NDArray[np.float64]

    def arrays(self) -> dict[str, HostArray]:
        """Return plain arrays by their names in a model's file."""
        return {WEIGHTS: self.weights, MODE: np.array(self.mode)}

    @classmethod
    def find(cls, arrays: Mapping[str, HostArray], shape: tuple[int, ...]) -> SliceWeights | None:
        """Return the weights in a model's file, or None if there are none.

        Raises
        ------
        ValueError
            If they are not valid for a model of this shape.
        """
        weights, mode = arrays.get(WEIGHTS), arrays.get(MODE)
        if weights is None or mode is None:
            return None
        if mode.shape != () or mode.dtype.kind not in "iu" or not 0 <= int(mode) < len(shape):
            raise ValueError(f"{MODE} is not a mode")
        numbers = weights.astype(np.float64) if weights.dtype.kind == "f" else np.empty(0)
        if numbers.shape != (shape[int(mode)],) or not ((numbers > 0) & (numbers <= 1)).all():
            raise ValueError(f"{WEIGHTS} are not {shape[int(mode)]} numbers above 0 and up to 1")
        return cls(int(mode), numbers)
