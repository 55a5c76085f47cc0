"""How many components: the function ``scan``, and its verb."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from partitioner.flags import flag, path, real_number, whole_number
from partitioner.given import real, whole

from . import requests
from .api import ARGUMENTS, argument_options
from .assembly import Job, Session, Tensor, opened
from .errors import InputError
from .files import Outputs, write_text
from .models.scanned import Tried
from .operators.placement import MAX_DENSE_RANK
from .options import OptionNames, Options, with_options
from .parallel.calls import Argument, collective
from .parallel.mpi import on_root, world
from .scanning import Asked, Scan, scanned

LOSSES = "gaussian", "poisson"
HEAD = "components  explained  reached  match  halves  consistency  iterations  seconds"


def ranks_of(name: str, given: Any) -> tuple[int, ...]:
    """Return numbers of components: of text such as "1-4,6", a number, or a sequence of numbers."""
    parts = given.split(",") if isinstance(given, str) else [given] if isinstance(given, int) else list(given)
    found = list[int]()
    for part in parts:
        first, dash, last = part.strip().partition("-") if isinstance(part, str) else (part, "", "")
        try:
            low, high = int(first), int(last if dash else first)
        except ValueError:
            raise InputError(f"{name} {given!r}: expected numbers such as 1-8 or 2,4,8") from None
        if low > high:
            raise InputError(f"{name} {given!r}: {low} is above {high}")
        found += [whole(name, rank, 1, MAX_DENSE_RANK) for rank in range(low, min(high, MAX_DENSE_RANK + 1) + 1)]
    if not found:
        raise InputError(f"{name} {given!r}: expected at least one number")
    return tuple(dict.fromkeys(found))


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
    callback: Callable[[Tried], object] | None = None,
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
    nonnegative : bool
        Whether no factor matrix may have negative numbers.
    max_iters, tol : int, float
        See `cp_als` and `cp_apr`.
    halves : bool
        Whether the even and the odd indices of the longest mode are decomposed apart, to compare the other modes.
    callback : callable, optional
        Called with the `Tried` of each number of components.
    deadline, device, precision, placement, kernel, deterministic, device_memory, threads, gather, workspace : optional
        See `cp_als`.

    Returns
    -------
    Scan
        `tried`, the best `models`, and a `suggestion`: the largest number whose components are found again from other
        starts and in halves, whose core is consistent, and that explains clearly more than the next smaller one. It is
        a rule of thumb; the table says more.

    Raises
    ------
    InputError
        If an argument or the file is at fault.

    Examples
    --------
    >>> scan(X, range(1, 9)).suggestion  # doctest: +SKIP
    """
    asked = Asked(tuple(ranks), starts, seed, loss, nonnegative, max_iters, tol, halves)  # type: ignore[arg-type]
    comm = world()
    with opened(X, comm, chosen := Options(**options), deadline) as (machine, source):
        return scanned(source, machine, chosen, asked, callback or (lambda _: None))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ScanRequest(requests.Request):
    """What the verb takes."""

    rank: str = flag("1-8", "numbers of components, such as 1-8 or 2,4,8 (1-8)", metavar="RANKS")
    starts: int = flag(5, "random starts of each (5)", type=whole_number, metavar="K")
    seed: int = flag(0, "of the first start (0)", type=whole_number)
    loss: str = flag("gaussian", "poisson: values are counts (gaussian)", choices=LOSSES)
    nonnegative: bool = flag(False, "no negative numbers in any factor matrix")
    max_iters: int = flag(200, "iterations of a start at most (200)", type=whole_number, metavar="N")
    tol: float = flag(1e-6, "stop when the fit changes less (1e-6)", type=real_number)
    no_halves: bool = flag(False, "do not decompose halves of the tensor")
    output: Path | None = flag(None, "write what was found", type=path, metavar="FILE.json")

    @property
    def outputs(self) -> dict[str, Path | None]:
        return {**super().outputs, "--output": self.output}

    @property
    def asked(self) -> Asked:
        """What is to be tried."""
        return Asked(
            ranks_of("--rank", self.rank), self.starts, self.seed, self.loss, self.nonnegative, self.max_iters,
            self.tol, not self.no_halves,
        )  # fmt: skip

    def check(self) -> None:
        for name, least in (("starts", 1), ("seed", 0), ("max_iters", 1)):
            whole(f"--{name.replace('_', '-')}", getattr(self, name), least)
        real("--tol", self.tol, "a number of at least 0")
        if self.loss == "poisson" and self.nonnegative:
            raise InputError("--nonnegative goes with --loss gaussian: counts have no negative numbers")
        self.asked  # noqa: B018 - what is wrong with it
        super().check()

    def claim(self, outputs: Outputs) -> Path | None:
        if self.output is not None:
            outputs.file(self.output, self.force)
        return self.output


def scan_verb(request: ScanRequest, session: Session) -> int:
    """Try several numbers of components: what they explain, and how stable they are."""
    with Job(request, session) as job:
        source = job.open()
        job.say_machine()
        told = False

        def tell(tried: Tried) -> None:
            nonlocal told
            job.display.note(line(tried) if told else f"{HEAD}\n{line(tried)}")
            told = True
            job.metrics.event("tried", **tried._asdict())

        found = scanned(source, job.machine, request.options, request.asked, tell)
        if (output := request.output) is not None:
            text = json.dumps(facts(found), indent=1) + "\n"
            on_root(job.comm, lambda: write_text(output, text, output in job.outputs.replaced))
        job.metrics.event("end", suggested=found.suggestion.rank, reason=found.suggestion.reason)
        job.display.close()
        chosen = found.suggestion.rank
        job.display.note(f"suggested: {'none' if chosen is None else chosen}; {found.suggestion.reason}")
        return job.exit_code()


scan_verb.__name__ = "scan"


def line(tried: Tried) -> str:
    """Return a line of the table whose head is `HEAD`."""
    cells = [
        str(tried.rank),
        f"{tried.squared:.4f}",
        f"{tried.reached}/{len(tried.explained)}",
        "-" if tried.match is None else f"{tried.match:.2f}",
        "-" if tried.halves is None else f"{tried.halves:.2f}",
        "-" if tried.consistency is None else f"{tried.consistency:.0f} %",
        str(tried.iterations),
        f"{tried.seconds:.3g}",
    ]
    return "  ".join(cell.rjust(len(head)) for cell, head in zip(cells, HEAD.split(), strict=True))


def facts(found: Scan) -> dict[str, Any]:
    """Return what was found, as JSON has it."""
    return {"tried": [each._asdict() for each in found.tried], **found.suggestion._asdict()}
