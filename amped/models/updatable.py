"""Updates of a CP model with new data, and the weights of its slices after forgetting."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from partitioner.tensors.labels import mode_names, mode_number

from ..files import faults_of
from ..options import OptionNames, with_options
from .pictured import Pictured
from .slice_weights import SliceWeights


class Updatable(Pictured):
    """Mixin with the updates of a CP model. The subclass provides weights, factor matrices and the constructor."""

    slice_weights: SliceWeights | None = None

    @with_options
    def update(
        self,
        X: object,
        mode: int | str | None = None,
        *,
        elements: str = "add",
        forgetting: float = 1.0,
        sweeps: int = 2,
        step: int | None = None,
        value: str | None = None,
        where: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: int = 1,
        resume: bool = False,
        deadline: float | None = None,
        metrics: str | os.PathLike[str] | None = None,
        **options: Unpack[OptionNames],
    ) -> Self:
        """Return this model updated with new data: new slices of a mode, or new elements. Collective.

        The earlier data are not needed: this model stands for them. For least squares, a sweep is an iteration of
        CP-stream (Smith, Huang, Sidiropoulos and Karypis 2018), in which the rows of earlier slices change, too; for
        counts it consists of steps of online EM (Cappe and Moulines 2009). The work depends on the new elements and
        the size of the factor matrices.

        Parameters
        ----------
        X : tensor, array, table or path; or an iterator of these
            New data, see `transform`. With labels in both, modes are matched by name and indices by label, and labels
            that the model lacks get new rows. Without labels, all slices of `mode` are new, and the other modes have
            the model's lengths. Each item of an iterator is an update. Under ``mpirun`` the data of rank 0 is used.
        mode : int or str, optional
            The mode whose slices grow, counted from 0, or its name. None: no slices are new unless labels say so.
        elements : {"add", "replace"}
            Elements that the model knows already are added to the earlier ones, such as further counts; or they replace
            the earlier ones, for which the model's values are taken.
        forgetting : float
            Above 0 and up to 1: the factor by which each update multiplies the weights of earlier slices of `mode`. The
            model keeps the weights (``slice_weights``) for later updates. The slices of `X` have weight 1.
        sweeps : int
            How often each matrix is solved per update.
        step : int, optional
            The number of slices of `mode` per update: `X` is split into them, in the order of the slices. By default
            `X` is one update.
        value, where : str, optional
            Query of a table; see `transform`.
        checkpoint : path, optional
            Folder for a checkpoint, which rank 0 writes after `every` updates: the model so far.
        every : int
            Updates between checkpoints.
        resume : bool
            Continue from the checkpoint, if there is one. The model, the data and the other arguments must be those of
            the interrupted call; updates that the checkpoint includes are skipped.
        deadline : float, optional
            In seconds; see `cp_als`.
        metrics : path, optional
            Rank 0 writes a line of JSON for each update: its number, nonzeros and seconds. A call with `resume` appends
            to it.
        device, precision, placement, kernel, deterministic, device_memory, threads, gather, grid, workspace : optional
            See `amped.Options`.

        Returns
        -------
        KruskalTensor
            A new model, the same on every rank; ``run["updates"]`` is the number of updates. Components are normalised
            and sorted as after a fit, and keep their signs.

        Raises
        ------
        InputError
            If an argument is invalid, `X` is empty or has NaN, or its shape or labels do not match.

        Examples
        --------
        >>> X = np.einsum("ir,jr,kr->ijk", *np.random.default_rng(0).random((3, 6, 2)))
        >>> model = cp_als(X[:4], rank=2)
        >>> model.update(X[4:], mode=0).shape
        (6, 6, 6)
        """
        from ..api.updating import updated

        arguments: dict[str, Any] = {"elements": elements, "forgetting": forgetting, "sweeps": sweeps, "step": step}
        arguments |= {"value": value, "where": where, "checkpoint": checkpoint, "every": every, "resume": resume}
        arguments["metrics"] = metrics
        if isinstance(mode, str):
            mode = mode_number(mode_names(self.labels, len(self.shape)), mode)
        call: Any = updated
        model: Self = call(self, X, mode, **arguments, deadline=deadline, **options)
        return model

    def _head(self) -> dict[str, NDArray[np.float64]]:
        arrays: dict[str, Any] = {} if self.slice_weights is None else self.slice_weights.arrays()
        return {"weights": self.weights, **arrays}

    def _with_slice_weights(self, arrays: Mapping[str, NDArray[Any]], path: str | os.PathLike[str]) -> Self:
        """Set the weights of slices in a file's arrays; return this model."""
        with faults_of(path):
            self.slice_weights = SliceWeights.find(arrays, self.shape)
        return self
