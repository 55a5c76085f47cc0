"""CP models as other libraries and files have them; libraries are imported when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from partitioner.tensors.conversion import Unconverted, library
from partitioner.tensors.labels import Labelled
from partitioner.tensors.lowrank import parts_of
from partitioner.validate import whole

from ..errors import InputError
from .ktensor_text import write_ktensor


class Forms(Labelled, Unconverted):
    """What a CP model is elsewhere. Its own class has weights and factor matrices, and makes one of them."""

    DENSE = "full"

    weights: NDArray[np.float64]
    factors: list[NDArray[Any]]

    if TYPE_CHECKING:

        def __init__(self, weights: NDArray[np.floating], factors: Sequence[NDArray[np.floating]]) -> None: ...

    @classmethod
    def _of(cls, model: Any) -> Self:
        head, factors = parts_of(model) or (np.empty((0, 0)), [])
        if head is not None and head.ndim != 1:
            raise InputError(f"a {type(model).__name__} is no CP model, which has weights and factor matrices")
        weights = np.ones(factors[0].shape[1]) if head is None else head.copy()
        return cls(weights, [each.copy() for each in factors])

    @classmethod
    def from_pyttb(cls, model: Any) -> Self:
        """Return a pyttb ``ktensor`` as one of these.

        Parameters
        ----------
        model : pyttb.ktensor
            Its components stay in their order. `InputError` says if it is none.
        """
        return cls._of(model)

    @classmethod
    def from_tensorly(cls, model: Any) -> Self:
        """Return a TensorLy ``CPTensor`` as one of these.

        Parameters
        ----------
        model : tensorly.cp_tensor.CPTensor or tuple
            Or a pair of weights, or None, and matrices. `InputError` says if it is neither.
        """
        return cls._of(model)

    def to_pyttb(self) -> Any:
        """Return pyttb's `ktensor`, in float64; raise `InputError` if that is not installed."""
        return library("pyttb").ktensor([f.astype(np.float64) for f in self.factors], self.weights.copy())

    def to_tensorly(self) -> Any:
        """Return TensorLy's `CPTensor`, of copies as NumPy arrays; raise `InputError` if that is not installed."""
        library("tensorly")
        from tensorly.cp_tensor import CPTensor

        return CPTensor((self.weights.copy(), [f.copy() for f in self.factors]))

    def export(self, path: str | os.PathLike[str], *, replace: bool = True) -> None:
        """Write the model as text, a ``ktensor`` of the Tensor Toolbox, which pyttb, GenTen and MATLAB read.

        Numbers stay as they are, labels are left out. `amped.load` and ``init=`` take such a file.

        Parameters
        ----------
        path : path
            `InputError` says why it cannot be written.
        replace : bool
            Whether a file that is there is replaced, or refused.
        """
        write_ktensor(path, self.weights, self.factors, replace)

    def frame(self, mode: int) -> Any:
        """Return a factor matrix as a pandas DataFrame.

        Parameters
        ----------
        mode : int
            Counted from 0. `InputError` says if there is no such mode, or no pandas.

        Returns
        -------
        pandas.DataFrame
            (I_mode, R): a row for each label, a column for each component.
        """
        try:
            import pandas
        except ImportError:
            raise InputError("frame(): pandas is not installed") from None
        mode = whole("mode", mode, 0, len(self.factors) - 1)
        if self.labels is None:
            return pandas.DataFrame(self.factors[mode].copy())
        labels, names = self.labels[mode], self.labels.names
        index = pandas.Index(labels.tolist() if labels.dtype.kind == "T" else labels, name=names and names[mode])
        return pandas.DataFrame(self.factors[mode].copy(), index=index)

    def to_frames(self) -> tuple[NDArray[np.float64], list[Any]]:
        """Return weights and factor matrices with their labels, as TensorLy-Viz takes them.

        Returns
        -------
        weights : (R,) float64 array
            The lengths of the components.
        factors : list of pandas.DataFrame
            Each matrix as a `frame`.
        """
        return self.weights.copy(), [self.frame(mode) for mode in range(len(self.factors))]
