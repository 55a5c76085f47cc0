"""What CP and Tucker models have in common: factor matrices, their history, values at coordinates, and files."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats, Integers
from partitioner.tensors.conversion import Unconverted
from partitioner.tensors.device_arrays import is_on_gpu, on_host
from partitioner.tensors.labels import Labelled, find, named

from ..files import faults_of, read_npz, write_npz
from .coordinates import Index, coordinates_of, selected_rows, selection
from .history import history_arrays, take_history


class FactorModel(Labelled, Unconverted):
    """A model with one factor matrix per mode. Subclasses add what combines these: weights or a core tensor.

    Parameters
    ----------
    factors : sequence of (I_n, R_n) arrays
        One factor matrix per mode. Arrays on a GPU stay there.
    fits, converged, series : optional
        The history; see `KruskalTensor`.
    """

    DENSE = "full"

    def __init__(
        self,
        factors: Sequence[Floats],
        fits: Sequence[float] = (),
        converged: bool = False,
        series: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.factors = factors
        self.fits, self.converged = tuple(fits), converged
        self.series = {name: tuple(numbers) for name, numbers in (series or {}).items()}
        self.run: dict[str, Any] = {}

    @property
    def factors(self) -> list[Any]:
        """The factor matrices, (I_n, R_n) arrays: NumPy's, or those of a GPU with ``output="device"``."""
        return self._factors

    @factors.setter
    def factors(self, factors: Sequence[Any]) -> None:
        self._factors = [each if is_on_gpu(each) else np.asarray(each) for each in factors]
        self._copies: list[Floats] | None = None

    @property
    def host_factors(self) -> list[Floats]:
        """The factor matrices as NumPy arrays. Those on a GPU are copied at the first use, and the copies are kept."""
        if not any(map(is_on_gpu, self._factors)):
            return self._factors
        if self._copies is None:
            self._copies = [on_host(each) for each in self._factors]
        return self._copies

    @property
    def shape(self) -> tuple[int, ...]:
        """The mode lengths."""
        return tuple(factor.shape[0] for factor in self.factors)

    @property
    @abstractmethod
    def terms(self) -> int:
        """The number of products of columns of which the model is the sum."""

    def predict(self, coordinates: Any) -> NDArray[np.float64]:
        """Return the model's values at some coordinates, in bounded memory; runs on all cores.

        Parameters
        ----------
        coordinates : (n, order) array of int, tuple, mapping, table or SparseTensor
            Indices, one row per element. Or labels of the model (indices if it has none): a tuple with one sequence per
            mode, or a mapping or data frame with a column for each of the model's modes. A sparse tensor stands for the
            coordinates of its nonzeros; with labels, modes are matched by name and indices by label.

        Returns
        -------
        (n,) float64 array
            NaN where the model does not know a label.

        Raises
        ------
        InputError
            If there is not one column per mode, an index is outside its mode, or labels have other types than the
            model's.

        Warns
        -----
        InputWarning
            If the model does not know some labels.

        Examples
        --------
        >>> model = KruskalTensor(np.array([2.0]), [np.ones((3, 1)), np.arange(4.0)[:, None]])
        >>> model.predict([[0, 1], [2, 3]]).tolist()
        [2.0, 6.0]
        """
        places = coordinates_of(coordinates, self.shape, self.labels)
        return places.values(self.predict_at(places.columns))

    @abstractmethod
    def score(self, X: object, *, value: str | None = None, where: str | None = None, unknown: str = "error") -> float:
        """Return the fit of this model to a tensor, ``1 - ||X - M|| / ||X||``."""

    @abstractmethod
    def predict_at(self, columns: Sequence[Integers]) -> NDArray[np.float64]:
        """Return the model's values at the given indices (one array per mode), (n,); multithreaded."""

    def reconstruct(self, *indices: Index) -> NDArray[np.float64]:
        """Return a part of the dense tensor, without computing the rest.

        Parameters
        ----------
        *indices : int, slice, or sequence of int
            One per mode, with NumPy's meaning, except that sequences select all combinations. Omitted indices select
            whole modes.

        Returns
        -------
        float64 array
            Integer indices remove their axis.

        Raises
        ------
        InputError
            If there are too many indices, one is out of range, or the part does not fit into memory.

        Examples
        --------
        >>> model = KruskalTensor(np.ones(1), [np.ones((length, 1)) for length in (4, 20, 9)])
        >>> model.reconstruct(3, slice(0, 10), [5, 7]).shape
        (10, 2)
        """
        chosen, single = selection(indices, len(self.shape))
        rows = [selected_rows(factor, mode, chosen[mode]) for mode, factor in enumerate(self.host_factors)]
        return self._part(rows).squeeze(single)

    def full(self) -> NDArray[np.float64]:
        """Return the dense tensor, for small shapes. Raise `InputError` if it does not fit into memory."""
        return self.reconstruct()

    @abstractmethod
    def _part(self, rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the dense tensor of a model with these rows of the factor matrices, as a new array."""

    @abstractmethod
    def _head(self) -> dict[str, NDArray[np.float64]]:
        """Return the weights or the core under the name that they have in files."""

    def save(self, path: str | os.PathLike[str], *, replace: bool = True) -> None:
        """Write the weights or the core, factor matrices, labels and history to an ``.npz`` file.

        Its arrays are ``weights`` or ``core``, ``factor_0 ...`` and, if known, ``labels_0 ...``, ``fits``,
        ``converged``, ``series_NAME`` and ``run`` (the record as JSON).

        Parameters
        ----------
        path : path
            The file to write.
        replace : bool
            Whether an existing file is replaced. If False, an existing file is an error.

        Raises
        ------
        InputError
            If the file cannot be written, or its name has the extension of another format.

        Examples
        --------
        >>> KruskalTensor(np.ones(1), [np.ones((3, 1)), np.ones((4, 1))]).save("model.npz")
        >>> KruskalTensor.load("model.npz").shape
        (3, 4)
        """
        factors = {f"factor_{n}": f for n, f in enumerate(self.host_factors)}
        write_npz(path, {**self._head(), **factors, **named(self.labels), **history_arrays(self)}, replace)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote.

        Parameters
        ----------
        path : path
            The file to read, ``.npz``.

        Raises
        ------
        InputError
            If the file is not a valid model.
        """
        return cls.of_arrays(read_npz(path), path)

    @classmethod
    @abstractmethod
    def of_arrays(cls, arrays: dict[str, NDArray[Any]], path: str | os.PathLike[str]) -> Self:
        """Return the model in a file's arrays; raise `InputError` if they are invalid."""

    @classmethod
    def _of_file(
        cls, path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], make: Callable[[], Self]
    ) -> Self:
        """Make a model and add the labels and the history in a file's arrays; errors name the file."""
        with faults_of(path):
            model = make()
            model.labels = find(arrays, len(model.factors))
        take_history(model, arrays)
        return model
