"""The result of a Tucker decomposition: a core tensor and factor matrices."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats, Integers
from partitioner.host.threads import parallel_map, threads_for
from partitioner.tensors.lowrank import check_memory
from partitioner.validate import whole

from ..errors import InputError
from ..files import factors_in
from ..options import OptionNames, with_options
from .align import aligned
from .columns import largest_entries, scale_columns
from .dataframe import dataframe
from .explained import blocks_of, dot, fit_of
from .factor_model import FactorModel

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_AT_ONCE = 1 << 22  # numbers in a thread's intermediate result


class TuckerTensor(FactorModel):
    """A Tucker model: a core tensor times a factor matrix in each mode, ``core x_0 factors[0] x_1 factors[1] ...``.

    ``core, factors = model`` unpacks a model.

    Parameters
    ----------
    core : (R_0, R_1, ...) array
        Stored in float64.
    factors : sequence of (I_n, R_n) arrays
        One factor matrix per mode.
    fits : sequence of float
        Fit after each iteration of the decomposition that made the model.
    converged : bool
        Whether the fit changed by less than the tolerance before the iterations ran out.

    Attributes
    ----------
    labels : tuple of (I_n,) arrays, or None
        Labels of the rows of the factor matrices, if the tensor had labels.

    series : dict
        Other metrics recorded after each iteration, by name.

    run : dict
        The record of the run that made the model, as in ``run.json``; empty if unknown.

    Examples
    --------
    >>> model = TuckerTensor(np.ones((1, 2)), [np.ones((3, 1)), np.eye(4, 2)])
    >>> model.shape, model.ranks, model.full()[0].tolist()
    ((3, 4), (1, 2), [1.0, 1.0, 0.0, 0.0])
    """

    def __init__(
        self,
        core: Floats,
        factors: Sequence[Floats],
        fits: Sequence[float] = (),
        converged: bool = False,
    ) -> None:
        super().__init__(factors, fits, converged)
        self.core = np.asarray(core, np.float64)
        shapes = [f.shape for f in self.factors]
        if any(len(shape) != 2 for shape in shapes) or tuple(shape[1] for shape in shapes) != self.core.shape:
            raise InputError(f"factor matrices of shapes {shapes} for a core of {self.core.shape}")

    def __iter__(self) -> Iterator[Any]:
        """Yield the core and the factor matrices."""
        yield self.core
        yield self.factors

    @property
    def ranks(self) -> tuple[int, ...]:
        """The core's shape."""
        return self.core.shape

    @property
    def terms(self) -> int:
        """See `FactorModel`: one for each element of the core."""
        return int(self.core.size)

    @property
    def compression(self) -> float:
        """Ratio of the sizes of the dense tensor and of this model."""
        numbers = sum(length * rank for length, rank in zip(self.shape, self.ranks, strict=True))
        return math.prod(self.shape) / (self.core.size + numbers)

    def arrange(self, kept: Sequence[int] = ()) -> TuckerTensor:
        """Flip the signs of columns, in place, so that each column's largest entry is positive.

        Parameters
        ----------
        kept : sequence of int
            Modes whose factor matrices stay as they are.
        """
        self.factors = self.host_factors
        for mode, factor in enumerate(self.factors):
            if mode in kept:
                continue
            signs = np.where(largest_entries(factor) < 0, -1.0, 1.0)
            if (signs < 0).any():
                scale_columns(factor, signs.astype(factor.dtype))
            self.core = np.moveaxis(np.moveaxis(self.core, mode, -1) * signs, -1, mode)
        self.core = np.ascontiguousarray(self.core)
        return self

    def update(self, X: object, mode: int | None = None, **options: object) -> TuckerTensor:
        """Refuse new data: only CP models can be updated; see `KruskalTensor.update`.

        Parameters
        ----------
        X, mode, **options : object
            Not used.

        Raises
        ------
        InputError
            Always.
        """
        advice = "decompose all data again with amped.tucker(..., init=model), or fit new slices by model.transform"
        raise InputError(f"Tucker models cannot be updated: {advice}")

    @with_options
    def transform(
        self,
        X: object,
        mode: int | str,
        *,
        value: str | None = None,
        where: str | None = None,
        unknown: str = "drop",
        deadline: float | None = None,
        output: str = "host",
        **options: Unpack[OptionNames],
    ) -> Floats:
        """Fit the rows of one mode to new data, with the core and the other factor matrices fixed. Collective.

        With the returned rows in place of ``factors[mode]``, the model is the least-squares approximation of ``X``. The
        rows are non-negative if the model is.

        Parameters
        ----------
        X : tensor, array, table or path
            See `KruskalTensor.transform`.
        mode : int or str
            Counted from 0, or its name.
        value, where, unknown, deadline, output : str, str, str, float and str, optional
            See `KruskalTensor.transform`.
        device, precision, placement, kernel, deterministic, device_memory, threads, gather, grid, workspace : optional
            See `amped.Options`.

        Returns
        -------
        (I_mode, R_mode) array
            float32 or float64 according to the option `precision`; the same on every rank.

        Raises
        ------
        InputError
            If an argument is invalid or the shape of `X` does not match.

        Examples
        --------
        >>> X = np.random.default_rng(0).random((4, 3, 2))
        >>> tucker(X[:3], (2, 2, 2)).transform(X[3:], 0).shape
        (1, 2)
        """
        from ..api.projection import transformed

        return transformed(self, X, mode, value, where, unknown, {"deadline": deadline, "output": output, **options})

    def score(self, X: object, *, value: str | None = None, where: str | None = None, unknown: str = "error") -> float:
        """Return the fit of this model to a tensor, ``1 - ||X - M|| / ||X||``.

        Parameters
        ----------
        X : tensor, array, table or path
            See `KruskalTensor.score`.
        value, where : str, optional
            Query of a table; see `KruskalTensor.transform`.
        unknown : {"error", "drop"}
            See `KruskalTensor.score`.

        Returns
        -------
        float
            1 if the model equals the tensor.
        """
        tensor = aligned(X, self.shape, self.labels, value, where, unknown)
        parts = (dot(values, self.predict_at(columns)) for columns, values in blocks_of(tensor))
        return fit_of(tensor, self.norm(), math.fsum(parts))

    def predict_at(self, columns: Sequence[Integers]) -> NDArray[np.float64]:
        """Return the tensor's values at the given coordinates (one index array per mode), (n,); multithreaded."""
        count, most = len(columns[0]), max(1, MOST_AT_ONCE // (self.core.size or 1))
        values, start = np.empty(count), self.core.reshape(self.core.shape[0], -1)

        def block(begin: int) -> None:
            part = slice(begin, begin + most)
            rows = self.host_factors[0][columns[0][part]] @ start
            for factor, column in zip(self.host_factors[1:], columns[1:], strict=True):
                mine = factor[column[part]]
                rows = (mine[:, None, :] @ rows.reshape(len(mine), mine.shape[1], -1))[:, 0]
            values[part] = rows[:, 0]

        begins = range(0, count, most)
        parallel_map(block, begins, threads_for(len(begins)))
        return values

    def norm(self) -> float:
        """Return the Frobenius norm, without forming the tensor."""
        core = self.core
        for factor in self.host_factors:
            wide = factor.astype(np.float64, copy=False)
            core = np.tensordot(core, wide.T @ wide, (0, 0))  # moves the mode last
        return float(np.sqrt(max(0.0, float(np.sum(core * self.core)))))

    def _part(self, rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        check_memory([len(each) for each in rows], "this part")
        part = self.core
        # The mode that shrinks the tensor most comes first, which keeps intermediate results small.
        for mode in sorted(range(len(rows)), key=lambda m: len(rows[m]) / rows[m].shape[1]):
            part = np.moveaxis(np.tensordot(part, rows[mode], (mode, 1)), -1, mode)
        return part.copy()

    def _head(self) -> dict[str, NDArray[np.float64]]:
        return {"core": self.core}

    @classmethod
    def of_arrays(cls, arrays: dict[str, NDArray[Any]], path: str | os.PathLike[str]) -> Self:
        """Return the model in a file's arrays; raise `InputError` if they are invalid."""
        factors, core = factors_in(arrays, path), arrays.get("core")
        if core is None or core.dtype.kind not in "fiu" or not np.all(np.isfinite(core)):
            raise InputError("contains no core of finite numbers", path=path)
        return cls._of_file(path, arrays, lambda: cls(core, factors))

    @classmethod
    def from_pyttb(cls, tensor: Any) -> TuckerTensor:
        """Convert a pyttb ``ttensor``; its core becomes dense.

        Parameters
        ----------
        tensor : pyttb.ttensor
            The tensor to convert.
        """
        core = tensor.core
        dense = core.full() if hasattr(core, "full") else core
        return cls(np.array(dense.data), [np.array(f) for f in tensor.factor_matrices])

    def to_pyttb(self) -> Any:
        """Return the tensor as a pyttb ``ttensor``, in double precision."""
        from pyttb.tensor import tensor
        from pyttb.ttensor import ttensor

        factors = [np.array(f, np.float64, order="F") for f in self.host_factors]
        return ttensor(tensor(np.array(self.core, order="F")), factors)

    @classmethod
    def from_tensorly(cls, tensor: Any) -> TuckerTensor:
        """Convert a TensorLy ``TuckerTensor``.

        Parameters
        ----------
        tensor : tensorly.tucker_tensor.TuckerTensor or tuple
            Or a pair of a core and factor matrices.
        """
        core, factors = tensor
        return cls(np.array(core), [np.array(f) for f in factors])

    def to_tensorly(self) -> Any:
        """Return the tensor as a TensorLy ``TuckerTensor`` of NumPy arrays, in double precision."""
        from tensorly.tucker_tensor import TuckerTensor as Theirs

        return Theirs((self.core.copy(), [f.astype(np.float64) for f in self.host_factors]))

    def report(
        self,
        path: str | os.PathLike[str],
        X: object = None,
        *,
        value: str | None = None,
        where: str | None = None,
        title: str | None = None,
    ) -> None:
        """Write a self-contained HTML report: the largest core elements in words and pictures, and the fit.

        Parameters
        ----------
        path : path
            An existing file is replaced.
        X : tensor, array, table or path, optional
            The data of the fit; see `score`. The report then includes the fit to it.
        value, where, title : str, optional
            Query of a table; see `transform`. By default the title is the name of the tensor's file.

        Raises
        ------
        InputError
            If Jinja2 or Matplotlib is not installed, the shapes differ, or the file cannot be written.

        Examples
        --------
        >>> TuckerTensor(np.ones((1, 2)), [np.ones((3, 1)), np.eye(4, 2)]).report("model.html")
        """
        from ..report.page import write_report

        tensor = None if X is None else aligned(X, self.shape, self.labels, value, where)
        write_report(self, path, tensor, None, title)

    def to_frame(self, count: int = 5) -> DataFrame:
        """Return a summary as a pandas DataFrame.

        Parameters
        ----------
        count : int
            Maximum number of labels per column.

        Returns
        -------
        pandas.DataFrame
            One row per mode and column of its factor matrix: ``mode`` (its name), ``column`` (its number, from 0),
            ``share`` of the core's squared norm, and the top labels as text.

        Raises
        ------
        InputError
            If pandas is not installed.

        Examples
        --------
        >>> TuckerTensor(np.ones((1, 2)), [np.ones((3, 1)), np.eye(4, 2)]).to_frame()["share"].tolist()
        [1.0, 0.5, 0.5]
        """
        from ..report.notebook import core_columns

        return dataframe(core_columns(self, whole("count", count, 1)))

    def _repr_html_(self) -> str:
        from ..report.notebook import core_table

        return core_table(self)

    def __repr__(self) -> str:
        return f"TuckerTensor(shape={self.shape}, ranks={self.ranks})"
