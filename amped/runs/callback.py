"""Functions that a decomposition calls after each iteration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from ..errors import InputError
from ..methods.driver import Spans
from ..models.history import AnyModel
from ..parallel.mpi import Comm
from .run import Run, RunObserver

RunCallback = Callable[[int, float], object] | Callable[[int, float, "ModelView"], object]
"""Takes the iteration, the main metric and, if it requires a third argument, a view of the model; True stops."""


class ModelView:
    """The model of a running decomposition, for a callback. Nothing is copied from the device until `model` is called.

    Attributes
    ----------
    iteration : int
        Number of completed iterations.
    rank : int or list of int
        Number of components, or of columns per mode.
    shape : tuple of int
        The mode lengths.
    series : mapping of str to tuples of float
        The metrics of all iterations so far, by name, such as ``series["fit"]``.

    Examples
    --------
    >>> def watch(iteration, fit, view):
    ...     if iteration == 2:
    ...         shares.append(view.model().shares().round(1).sum())
    >>> shares = []
    >>> model = cp_als(np.ones((4, 3, 2)), rank=1, tol=0, max_iters=3, callback=watch)
    >>> [float(share) for share in shares]
    [1.0]
    """

    def __init__(self, run: Run[Any], model_of: Callable[[], AnyModel]) -> None:
        state = run.method.state
        self.iteration, self.rank, self.shape = state.iterations, run.method.rank, tuple(run.source.shape)
        self._state, self._model_of = state, model_of
        self._model: AnyModel | None = None
        self._is_current = True

    @property
    def series(self) -> Mapping[str, tuple[float, ...]]:
        """The metrics of all iterations so far, by name."""
        return {name: tuple(numbers[: self.iteration]) for name, numbers in self._state.series.items()}

    def model(self) -> Any:
        """Return a copy of the model so far, with labels and the record of the run, where `output` says.

        Returns
        -------
        KruskalTensor or TuckerTensor
            A copy.

        Raises
        ------
        InputError
            After the callback has returned, because later iterations change the model.
        """
        if self._model is None:
            if not self._is_current:
                raise InputError("this view has expired: call its method model() within the callback")
            self._model = self._model_of()
        return self._model

    def expire(self) -> None:
        """Refuse to copy the model from now on."""
        self._is_current = False

    def __repr__(self) -> str:
        return f"ModelView(iteration={self.iteration}, rank={self.rank}, shape={self.shape})"


class CallbackObserver(RunObserver):
    """Calls a function after each iteration.

    Parameters
    ----------
    function : callable or None
        See `RunCallback`; None if only other ranks have one. If it raises an exception, the attribute `model` of the
        exception is the model so far.
    model_of : callable
        Returns the model of a run.

    Attributes
    ----------
    stopped : bool
        Whether the function returned True on any rank.
    """

    def __init__(self, function: Callable[..., object] | None, model_of: Callable[[Run[Any]], AnyModel]) -> None:
        self._function, self._model_of = function, model_of
        self._takes_view = function is not None and takes_view(function)
        self.stopped = False

    def iterated(self, run: Run[AnyModel], spans: Spans, seconds: float) -> None:
        result = None if self._function is None else self._result(self._function, run)
        self.stopped = is_true(result, run.method.operator.machine.everyone)

    def _result(self, function: Callable[..., object], run: Run[AnyModel]) -> object:
        state, view = run.method.state, ModelView(run, lambda: self._model_of(run))
        more = (view,) if self._takes_view else ()
        try:
            return function(state.iterations, next(iter(state.series.values()))[-1], *more)
        except BaseException as error:
            _attach(error, view)
            raise
        finally:
            view.expire()


def is_true(result: object, comm: Comm) -> bool:
    """Return whether a callback returned the boolean True on any rank; other true values do not count. Collective."""
    stops = isinstance(result, (bool, np.bool_)) and bool(result)
    return any(comm.allgather(stops)) if comm.size > 1 else stops


def _attach(error: BaseException, view: ModelView) -> None:
    """Store the model so far in an exception, unless the exception allows no attributes."""
    with suppress(Exception):  # must not hide the error
        error.model = view.model()  # type: ignore[attr-defined]
        error.add_note(f"the model after iteration {view.iteration} is the attribute `model` of this exception")


def takes_view(function: Callable[..., object]) -> bool:
    """Return whether a callback requires three positional arguments; ``*args`` and defaults do not count."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in functions
        return False
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return sum(each.kind in kinds and each.default is each.empty for each in parameters) >= 3
