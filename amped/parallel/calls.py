"""Collective calls: all ranks' arguments are converted, validated and compared before the work starts.

If ranks called a function with different arguments, they would wait for each other forever, or mix two results.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

from partitioner.host.ranks import agree

from .mpi import Comm, abort_all, world

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


class Argument(NamedTuple):
    """Conversion, validation and comparison of one argument."""

    convert: Callable[[str, Any], Any]
    """Called with the argument's name and value; returns the converted value or raises `InputError`."""
    shown: Callable[[Any], str] | None = repr
    """Returns the text that ranks compare and messages show; None: ranks may pass different values."""
    of_root: bool = False
    """Whether rank 0's value is used, so that other ranks may pass None."""


PLAIN = Argument(lambda _, value: value)
PATIENCE_SECONDS = (
    15.0  # for other ranks, which may be compiling, to raise the same error; less than the limit of a step
)


def collective(
    arguments: Mapping[str, Argument], check: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> Callable[[Function], Function]:
    """Decorate a function that all ranks call. `arguments` describes its arguments; others are `PLAIN`.

    `check` is called with all arguments and returns those that it converts. An error of one rank is raised on every
    rank: `TypeError` for a misspelt name, `InputError` for an invalid value or one that differs between ranks.
    """

    def decorate(function: Function) -> Function:
        signature, name = inspect.signature(function), function.__name__

        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> Any:
            comm, bound = world(), inspect.BoundArguments(signature, cast(Any, {}))

            def bind_arguments() -> dict[str, str | None]:
                nonlocal bound
                try:
                    bound = signature.bind(*args, **kwargs)
                except TypeError as error:
                    raise TypeError(f"{name}() {error}{_suggestion(kwargs, signature)}") from None
                bound.apply_defaults()
                for key, value in bound.arguments.items():
                    bound.arguments[key] = arguments.get(key, PLAIN).convert(key, value)
                bound.arguments.update(check(bound.arguments))
                if comm.size == 1:
                    return {}
                return {key: compared_text(key, value) for key, value in bound.arguments.items()}

            def compared_text(key: str, value: object) -> str | None:
                description = arguments.get(key, PLAIN)
                if description.shown is None or (description.of_root and comm.rank > 0 and value is None):
                    return None
                return description.shown(value)

            agree(comm, f"{name}()", bind_arguments)
            return leave_together(comm, lambda: function(*bound.args, **bound.kwargs))

        return cast(Function, call)

    return decorate


def leave_together(comm: Comm, work: Callable[[], T]) -> T:
    """Return `work()`; if it raises on only some ranks, end the job, because the others would wait. Collective."""
    try:
        result = work()
    except Exception as error:
        if not comm.all_end(PATIENCE_SECONDS):
            abort_all(comm)(type(error), error, error.__traceback__)
        raise
    comm.all_end(math.inf)
    return result


def _suggestion(keywords: Mapping[str, Any], signature: inspect.Signature) -> str:
    """Return the closest parameters to misspelt ones, as the end of a message; empty if none is close."""
    from difflib import get_close_matches  # takes some milliseconds to import

    unknown = [name for name in keywords if name not in signature.parameters]
    near = [match for name in unknown for match in get_close_matches(name, signature.parameters, 1)]
    return f": did you mean {', '.join(near)}?" if near else ""
