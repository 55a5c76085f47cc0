"""Conversion of CP models to and from other libraries, which are imported on first use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.tensors.conversion import library
from partitioner.tensors.labels import mode_names, mode_number
from partitioner.tensors.lowrank import parts_of

from ..errors import InputError
from .dataframe import pandas
from .factor_model import FactorModel
from .ktensor_text import write_ktensor

if TYPE_CHECKING:
    from pandas import DataFrame


class Conversions(FactorModel):
    """Mixin with the conversions of a CP model. The subclass provides weights, factor matrices and the constructor."""

    weights: NDArray[np.float64]

    if TYPE_CHECKING:

        def __init__(self, weights: Floats, factors: Sequence[Floats]) -> None: ...

    @classmethod
    def _of(cls, model: Any) -> Self:
        head, factors = parts_of(model) or (np.empty((0, 0)), [])
        if head is not None and head.ndim != 1:
            raise InputError(f"a {type(model).__name__} is not a CP model: weights and factor matrices are missing")
        weights = np.ones(factors[0].shape[1]) if head is None else head.copy()
        return cls(weights, [each.copy() for each in factors])

    @classmethod
    def from_pyttb(cls, model: Any) -> Self:
        """Convert a pyttb ``ktensor``; its components keep their order.

        Parameters
        ----------
        model : pyttb.ktensor
            The model to convert.

        Raises
        ------
        InputError
            If `model` is not a ``ktensor``.
        """
        return cls._of(model)

    @classmethod
    def from_tensorly(cls, model: Any) -> Self:
        """Convert a TensorLy ``CPTensor``.

        Parameters
        ----------
        model : tensorly.cp_tensor.CPTensor or tuple
            Or a pair of weights (or None) and factor matrices.

        Raises
        ------
        InputError
            If `model` is neither.
        """
        return cls._of(model)

    def to_pyttb(self) -> Any:
        """Return the model as pyttb's ``ktensor``, in float64; raise `InputError` if pyttb is not installed."""
        return library("pyttb").ktensor([f.astype(np.float64) for f in self.host_factors], self.weights.copy())

    def to_tensorly(self) -> Any:
        """Return TensorLy's ``CPTensor`` with NumPy copies; raise `InputError` if TensorLy is not installed."""
        library("tensorly")
        from tensorly.cp_tensor import CPTensor

        return CPTensor((self.weights.copy(), [f.copy() for f in self.host_factors]))

    def export(self, path: str | os.PathLike[str], *, replace: bool = True) -> None:
        """Write the model as text: the ``ktensor`` format of the Tensor Toolbox, which pyttb, GenTen and MATLAB read.

        Numbers are written exactly; labels are left out. `amped.load` and ``init=`` accept the file.

        Parameters
        ----------
        path : path
            The file to write.
        replace : bool
            Whether an existing file is replaced. If False, an existing file is an error.

        Raises
        ------
        InputError
            If the file cannot be written.

        Examples
        --------
        >>> KruskalTensor(np.ones(1), [np.ones((3, 1)), np.ones((4, 1))]).export("model.ktn")
        >>> load("model.ktn").shape
        (3, 4)
        """
        write_ktensor(path, self.weights, self.host_factors, replace)

    def frame(self, mode: int | str) -> DataFrame:
        """Return a factor matrix as a pandas DataFrame.

        Parameters
        ----------
        mode : int or str
            Counted from 0, or its name.

        Returns
        -------
        pandas.DataFrame
            (I_mode, R): one row per label, one column per component.

        Raises
        ------
        InputError
            If the model has no such mode, or pandas is not installed.

        Examples
        --------
        >>> model = KruskalTensor(np.ones(1), [np.ones((2, 1)), np.array([[0.2], [0.8]])])
        >>> model.labelled({"user": ["Ann", "Bob"], "item": ["tea", "jam"]}).frame("item")[0].to_dict()
        {'tea': 0.2, 'jam': 0.8}
        """
        library = pandas("frame()")
        mode = mode_number(mode_names(self.labels, len(self.factors)), mode)
        if self.labels is None:
            return library.DataFrame(self.host_factors[mode].copy())
        labels, names = self.labels[mode], self.labels.names
        index = library.Index(labels.tolist() if labels.dtype.kind == "T" else labels, name=names and names[mode])
        return library.DataFrame(self.host_factors[mode].copy(), index=index)

    def to_frames(self) -> tuple[NDArray[np.float64], list[Any]]:
        """Return the weights, and the factor matrices as labelled frames, the form that TensorLy-Viz takes.

        Returns
        -------
        weights : (R,) float64 array
            A copy.
        factors : list of pandas.DataFrame
            The factor matrices, each as returned by `frame`.
        """
        return self.weights.copy(), [self.frame(mode) for mode in range(len(self.factors))]
