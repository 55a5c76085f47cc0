"""The scan over numbers of components, in Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Unpack

from partitioner.readers import PLAIN

from ..backend.device import Device
from ..backend.losses import Loss
from ..models.scanned import ScannedRank
from ..options import OptionNames, Options, with_options
from ..parallel.calls import Argument, collective
from ..parallel.mpi import world
from ..parallel.stopping import StopOnRequest
from ..report.scan_text import ScanTable
from ..runs.assembly import Tensor
from ..runs.callback import is_true
from ..runs.holding_out import fraction
from ..runs.observing import Mask, ObservedParams
from ..runs.scan_result import Scan, ScanParams, ranks_of
from ..runs.scanning import prepare_scan, scanned
from .arguments import BOOLEAN, MODE, argument_options, function_of, optional
from .gcp import LOSS_ARGUMENTS, MethodName
from .sessions import SideOutputs, session

SCAN_ARGUMENTS = {
    **LOSS_ARGUMENTS,
    "ranks": Argument(ranks_of),
    "nonnegative": BOOLEAN,
    "halves": BOOLEAN,
    "callback": optional(function_of("the ScannedRank")),
    "split": optional(MODE),
    "holdout": optional(Argument(fraction)),
}


@collective(SCAN_ARGUMENTS, argument_options)
@with_options
def scan(
    X: Tensor,
    ranks: Iterable[int] | str = "1-8",
    *,
    starts: int = 5,
    loss: str | Loss = "gaussian",
    method: MethodName | None = None,
    nonnegative: bool = False,
    max_iters: int | None = None,
    tol: float | None = None,
    seed: int = 0,
    halves: bool = True,
    split: int | str | None = None,
    mask: Mask | None = None,
    holdout: float | None = None,
    callback: Callable[[ScannedRank], object] | None = None,
    verbose: bool | int = 0,
    deadline: float | None = None,
    metrics: str | os.PathLike[str] | None = None,
    **options: Unpack[OptionNames],
) -> Scan:
    """Compare CP decompositions with different numbers of components: how much they explain, and how stable they are.

    Collective.

    Parameters
    ----------
    X : tensor, array or path
        See `cp_als`.
    ranks : sequence of int, or text
        Numbers of components, such as ``range(1, 9)`` or ``"1-8,12"``.
    starts : int
        Random starts for each number, with seeds ``seed``, ``seed + 1``, ...
    loss : str or Loss
        See `cp`.
    method : str, optional
        See `cp`.
    nonnegative : bool
        Constrain all factor matrices to be non-negative.
    max_iters, tol : int, float, optional
        See `cp`; by default 200 and 1e-6, for "lbfgs" and "newton" 300 and 1e-7.
    seed : int
        Seed of the first start.
    halves : bool
        Decompose the even and the odd indices of one mode separately, and compare the factor matrices of the other
        modes.
    split : int or str, optional
        The mode that `halves` splits, counted from 0, or its name: usually that of the samples. By default the longest.
    mask : {"nan", "stored"}, array, tensor or path, optional
        The observed elements; see `cp_als`. The figures refer to them; for the core consistency the other elements are
        those of the model.
    holdout : float, optional
        Fraction of the observed elements that are held out, in five random draws. For each number of components and
        draw, a model of the other elements predicts them; its run starts near the best model of all elements. Not for
        methods of `cp_apr`; a sparse tensor needs a `mask`.
    callback : callable, optional
        Called with the `ScannedRank` of each number of components. If it returns True, the scan ends with the results
        so far; several small models are computed at once.
    verbose : bool or int
        Print the table of the command line, on rank 0.
    deadline, metrics : optional
        See `cp_als`. The metrics have a line for each number of components.
    device, precision, placement, kernel, deterministic, device_memory, threads, gather, grid, workspace : optional
        See `cp_als`.

    Returns
    -------
    Scan
        `tried` has the figures for each number of components, `models` the best model of each. `suggestion` is a rule
        of thumb: the largest number whose components recur from other starts and in the halves, whose core is
        consistent, and that explains clearly more than the next smaller number. With `holdout` it is the smallest
        number whose held-out RMSE (for losses other than Gaussian: mean deviance) is within one standard error of the
        lowest. `plot` draws the figures.

    Raises
    ------
    InputError
        If an argument or the file is invalid.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).random((4, 4, 4))
    >>> found = scan(X, "1-2", starts=2, max_iters=20)
    >>> [each.rank for each in found.tried], [model.rank for model in found.models]
    ([1, 2], [1, 2])
    """
    assert isinstance(loss, Loss)
    elements = ObservedParams(mask)  # type: ignore[arg-type]
    numbers: tuple[int, ...] = tuple(ranks)  # type: ignore[arg-type]
    limits = max_iters, tol
    params = ScanParams(numbers, starts, seed, loss, method, nonnegative, *limits, halves, split, holdout)
    params = params.resolved(elements.given(world()))
    chosen = Options(**options)
    side, form = SideOutputs(metrics=metrics), elements.form(PLAIN, world())  # type: ignore[arg-type]

    def prepare(device: Device) -> None:
        if mask is None and holdout is None:
            prepare_scan(device, params, chosen)

    with session(X, chosen, deadline, verbose, side, form=form, prepare=prepare) as call:
        observed = call.observe_all(elements) if holdout else call.observe(elements)
        call.reporter.machine(call.machine, chosen)
        table, stop = ScanTable(call.display), StopOnRequest()
        called = any(call.comm.allgather(callback is not None))  # on any rank

        def report(tried: ScannedRank) -> None:
            table(tried)
            call.metrics.event("tried", **tried._asdict())
            if called:
                stop.requested = is_true(callback and callback(tried), call.comm)

        result = scanned(call.source, call.machine, chosen, params, report, stop, observed=observed)
        table.end(result.suggestion)
        suggested, reason = result.suggestion
        call.metrics.event("end", suggested=suggested, reason=reason, seconds=result.seconds)
        return result
