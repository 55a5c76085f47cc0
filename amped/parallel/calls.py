"""One call on all ranks: arguments are converted, checked and compared before anything is done with them.

A rank that went on with other arguments than the others would wait for them for ever, or mix two results.
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
    """How an argument is taken."""

    convert: Callable[[str, Any], Any]
    """Called with its name and what was given; returns its value, or raises `InputError`."""
    shown: Callable[[Any], str] | None = repr
    """Returns what ranks compare and a message shows; None: each rank may give its own."""
    of_root: bool = False
    """Whether rank 0's counts, and the others may give None."""


PLAIN = Argument(lambda _, value: value)
PATIENCE_SECONDS = 15.0  # for other ranks, which may be compiling, to raise the same error; a hung step takes longer


def collective(
    arguments: Mapping[str, Argument], check: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> Callable[[Function], Function]:
    """Make a function a call of all ranks, with `arguments` as these say, or `PLAIN` ones.

    `check` is called with all of them, and returns those that it converts. Every rank raises what one of them does:
    `TypeError` for a misspelt name, `InputError` for a wrong value or one that differs.
    """

    def decorate(function: Function) -> Function:
        signature, name = inspect.signature(function), function.__name__

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            comm, given = world(), inspect.BoundArguments(signature, cast(Any, {}))

            def take() -> dict[str, str | None]:
                nonlocal given
                try:
                    given = signature.bind(*args, **kwargs)
                except TypeError as error:
                    raise TypeError(f"{name}() {error}{_meant(kwargs, signature)}") from None
                given.apply_defaults()
                for each, value in given.arguments.items():
                    given.arguments[each] = arguments.get(each, PLAIN).convert(each, value)
                given.arguments.update(check(given.arguments))
                return {each: fact(each, value) for each, value in given.arguments.items()}

            def fact(each: str, value: Any) -> str | None:
                how = arguments.get(each, PLAIN)
                if how.shown is None or (how.of_root and comm.rank > 0 and value is None):
                    return None
                return how.shown(value)

            agree(comm, f"{name}()", take)
            return leave_together(comm, lambda: function(*given.args, **given.kwargs))

        return cast(Function, call)

    return decorate


def leave_together(comm: Comm, work: Callable[[], T]) -> T:
    """Return what `work` returns; end the job if it raises on some ranks while others wait for them. Collective."""
    try:
        result = work()
    except Exception as error:
        if not comm.all_end(PATIENCE_SECONDS):
            abort_all(comm)(type(error), error, error.__traceback__)
        raise
    comm.all_end(math.inf)
    return result


def _meant(given: Mapping[str, Any], signature: inspect.Signature) -> str:
    """Return which parameter a misspelt one comes nearest to, as words, if any is near."""
    from difflib import get_close_matches  # takes some milliseconds to import

    unknown = [name for name in given if name not in signature.parameters]
    near = [match for name in unknown for match in get_close_matches(name, signature.parameters, 1)]
    return f": did you mean {', '.join(near)}?" if near else ""
