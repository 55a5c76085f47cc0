"""How many components, in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Unpack

from ..errors import InputError
from ..models.scanned import ScannedRank
from ..options import OptionNames, Options, with_options
from ..parallel.calls import Argument, collective
from ..report.scan_text import ScanTable
from ..runs.assembly import Tensor
from ..runs.scanning import LOSSES, Scan, ScanParams, ranks_of, scanned
from .arguments import ARGUMENTS, argument_options
from .sessions import session


def _loss(name: str, given: Any) -> str:
    if given not in LOSSES:
        raise InputError(f"{name} {given!r}: expected {' or '.join(LOSSES)}")
    return str(given)


SCAN = {
    **ARGUMENTS,
    "ranks": Argument(ranks_of),
    "loss": Argument(_loss),
    "nonnegative": Argument(lambda name, given: bool(given)),
    "halves": Argument(lambda name, given: bool(given)),
}
"""How its arguments are taken, but for options."""


@collective(SCAN, argument_options)
@with_options
def scan(
    X: Tensor,
    ranks: Iterable[int] | str = "1-8",
    *,
    starts: int = 5,
    loss: str = "gaussian",
    nonnegative: bool = False,
    max_iters: int = 200,
    tol: float = 1e-6,
    seed: int = 0,
    halves: bool = True,
    callback: Callable[[ScannedRank], object] | None = None,
    verbose: bool | int = 0,
    deadline: float | None = None,
    **options: Unpack[OptionNames],
) -> Scan:
    """Decompose a tensor into several numbers of components; tell how well they explain it, and how stable they are.

    Parameters
    ----------
    X : tensor, array or path
        See `cp_als`.
    ranks : sequence of int, or text
        Numbers of components, as ``range(1, 9)`` or ``"1-8,12"``.
    starts : int
        Random starts of each, with seeds ``seed``, ``seed + 1``, ...
    loss : {"gaussian", "poisson"}
        Least squares (`cp_als`), or counts (`cp_apr`).
    nonnegative : bool
        Whether no factor matrix may have negative numbers.
    max_iters, tol : int, float
        See `cp_als` and `cp_apr`.
    seed : int
        Of the first start.
    halves : bool
        Whether the even and the odd indices of the longest mode are decomposed apart, to compare the other modes.
    callback : callable, optional
        Called with the `ScannedRank` of each number of components.
    verbose : bool or int
        Whether the table that the command line shows is printed, on rank 0.
    deadline, device, precision, placement, kernel, deterministic, device_memory, threads, gather, workspace : optional
        See `cp_als`.

    Returns
    -------
    Scan
        `tried`, the best `models`, and a `suggestion`: the largest number whose components are found again from other
        starts and in halves, whose core is consistent, and that explains clearly more than the next smaller one. It is
        a rule of thumb; the table says more, and `plot` draws it.

    Raises
    ------
    InputError
        If an argument or the file is at fault.

    Examples
    --------
    >>> scan(X, range(1, 9)).suggestion  # doctest: +SKIP
    """
    asked = ScanParams(tuple(ranks), starts, seed, loss, nonnegative, max_iters, tol, halves)  # type: ignore[arg-type]
    chosen = Options(**options)
    with session(X, chosen, deadline, verbose) as call:
        call.reporter.machine(call.machine, chosen.precision)
        table = ScanTable(call.display)

        def tell(tried: ScannedRank) -> None:
            table(tried)
            if callback is not None:
                callback(tried)

        found = scanned(call.source, call.machine, chosen, asked, tell)
        table.end(found.suggestion)
        return found
