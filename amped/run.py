"""The command line: ``python -m amped.run``, on one process or under ``mpirun`` or ``srun``."""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import math
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from partitioner import __version__
from partitioner.flags import Parser, add_flags, plain_warnings
from partitioner.host.interruptible import must_exit
from partitioner.host.ranks import agree, end_stopped, refuse
from partitioner.host.signals import end, number_of
from partitioner.readers import ReadOptions
from partitioner.wording import command_line

from .cli.requests import Request
from .errors import InputError
from .options import Options
from .parallel.mpi import Comm, SingleComm, abort_all, world
from .parallel.progress import CURRENT, LOADING_SECONDS
from .parallel.stopping import StopRequest
from .parallel.watchdog import Watchdog, ending, starting

if TYPE_CHECKING:
    from .cli.job import VerbSession

Command = Callable[[Any, "VerbSession"], int]


class Verb(NamedTuple):
    """A verb, whose module is imported on use; the docstring of its function is its help."""

    module: str  # with the function of the verb's name
    request: str
    example: str

    def command(self, name: str) -> tuple[Command, type[Request]]:
        """Return the function of the verb `name`, and its request."""
        module = import_module(self.module, __package__)
        return getattr(module, name), getattr(module, self.request)


VERBS = {
    "cpd": Verb(
        ".cli.cpd", "CpdRequest", "mpirun -n 4 python -m amped.run cpd nell-2.tns --rank 32 --output nell-2-model"
    ),
    "tucker": Verb(".cli.tucker", "TuckerRequest", "amped tucker nell-2.tns --rank 16,16,16 --output nell-2-tucker"),
    "mttkrp": Verb(".cli.mttkrp", "MttkrpRequest", "amped mttkrp nell-2.tns --rank 32 --mode 0 --repeat 10"),
    "ttm": Verb(".cli.ttm", "TtmRequest", "amped ttm nell-2.tns --mode 2 --rank 16 --output nell-2-mode2.npz"),
    "plan": Verb(".cli.plan", "PlanRequest", "amped plan nell-2.tns --rank 32 --ranks 4"),
    "info": Verb(".cli.show", "Request", "amped info nell-2.tns"),
    "residuals": Verb(
        ".cli.residuals",
        "ResidualsRequest",
        "amped residuals flights-rank10 flights.csv --top 100 --output residuals.csv",
    ),
    "scan": Verb(".cli.scan", "ScanRequest", "amped scan flights --rank 1-16 --starts 5"),
    "show": Verb(".cli.show", "ShowRequest", "amped show flights-rank10 --top 5"),
    "predict": Verb(
        ".cli.predict", "PredictRequest", "amped predict flights-rank10 --at june.csv --output june-predicted.csv"
    ),
    "update": Verb(
        ".cli.update", "UpdateRequest", "amped update january-rank10 february.csv --mode 2 --output february-rank10"
    ),
    "compare": Verb(
        ".cli.compare", "CompareRequest", "amped compare january-rank10 february-rank10 --plot changes.png"
    ),
    "report": Verb(
        ".cli.report", "ReportRequest", "amped report flights-rank10 --tensor flights.csv --output flights.html"
    ),
    "table": Verb(
        ".cli.table",
        "TableRequest",
        "amped table flights.parquet --key carrier --key dest --key 'hour(time_hour)' --output flights",
    ),
}
PARTITION, WARMUP = "partition", "warmup"
TOP_EXAMPLE = "amped cpd flights.csv --key carrier --key dest --key 'hour(time_hour)' --rank 10 --nonnegative"


def parser(only: str | None = None) -> Parser:
    """Return the parser of the command line, whose flags are the fields of the requests and options.

    If it is for one verb `only`, the others have no flags, and their modules are not imported.
    """
    top = Parser(
        prog="amped",
        description="Sparse tensor decomposition on all GPUs or CPUs of a run. Without a verb, an example runs.",
        epilog=f"example: {TOP_EXAMPLE}",
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)
    for name, described in VERBS.items():
        if only is not None and name != only:
            verbs.add_parser(name)
            continue
        function, request = described.command(name)
        doc = function.__doc__
        verb = verbs.add_parser(name, help=doc, description=doc, epilog=f"example: {described.example}")
        verb.set_defaults(function=function, request=request)
        verb.add_argument("tensor", **request.POSITIONAL)
        if request.SECOND is not None:
            verb.add_argument("other", **request.SECOND)
        add_flags(verb, request, leave_out=Request)
        if request.COMPUTES:
            shared = verb.add_argument_group("how to compute")
            add_flags(shared, Options)
            add_flags(shared, Request)
            add_flags(verb.add_argument_group("how to read"), ReadOptions)
    # These parse their own flags.
    verbs.add_parser(PARTITION, help="Convert a tensor to a store: sorted once, for many runs.")
    verbs.add_parser(WARMUP, help="Compile the kernels of typical runs, so that later runs start at once.")
    return top


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; without a verb, it is that of the example with further flags."""
    if argv and (not argv[0].startswith("-") or argv[0] in ("-h", "--help", "--version")):
        return parser(argv[0] if argv[0] in VERBS else None).parse_args(argv)
    from .cli.example import example, example_line

    args = parser("cpd").parse_args([*example_line(), *argv])
    args.function = example
    return args


@command_line()
@plain_warnings("amped")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    0: success; 1: failure; 2: the input or a flag is invalid, with one line on standard error; 3: the result is
    written, but metrics, a checkpoint or the report failed; 75: stopped by SIGUSR1, SIGTERM or SIGHUP, with one line
    about what was saved; 130: the same for SIGINT; 141: the reader of standard output closed the pipe, as `head` does.
    """
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == [PARTITION]:
        from partitioner.__main__ import main as partition

        return partition(words[1:], f"amped {PARTITION}")
    if words[:1] == [WARMUP]:
        from .cli.warmup import main as warmup

        return warmup(words[1:])
    comm: Comm | None = None
    with StopRequest() as stop:
        try:
            with starting():
                comm = world()
            return _run(comm, words, stop)
        except (InputError, OSError) as error:
            return refuse(comm or SingleComm(), "amped", error)
        except KeyboardInterrupt as error:
            stop.ignore_all()
            if comm is None:
                end(number_of(error))
            code = end_stopped(comm or SingleComm(), "amped", error, stop.saved())
            if argv is None and must_exit():
                os._exit(code)
            return code


def _watchdog(comm: Comm, deadline: float | None) -> Watchdog:
    with starting():
        return Watchdog(comm, deadline)


def _run(comm: Comm, argv: Sequence[str], stop: StopRequest) -> int:
    """Run a verb on all ranks; return the exit code."""
    sys.excepthook = abort_all(comm)
    if (parsed := parse(comm, argv)) is None:
        return 0
    from .cli.job import VerbSession

    function, request = parsed
    limit = request.deadline or (LOADING_SECONDS if comm.size > 1 else math.inf)
    with ending(comm), CURRENT.limited(limit), _watchdog(comm, request.deadline) as watchdog:
        code = function(request, VerbSession(comm, stop, watchdog))
        if "duckdb" not in sys.modules:  # DuckDB reports objects that are not collected
            gc.freeze()  # saves 0.25 s at exit: the collector would visit all objects of Numba
        return code


def parse(comm: Comm, argv: Sequence[str]) -> tuple[Command, Request] | None:
    """Return the verb and its request, equal on all ranks; None for ``--help`` and ``--version``. Collective."""
    parsed: tuple[Command, Request] | None = None

    def parse_here() -> dict[str, str | None]:
        nonlocal parsed
        try:
            with contextlib.redirect_stdout(io.StringIO() if comm.rank else sys.stdout):  # --help once
                args = arguments(argv)
        except SystemExit:
            return {"the verb": "--help"}
        request = args.request.of(args)
        parsed = args.function, request
        return {"the verb": args.verb, **request.facts}

    agree(comm, "the command line", parse_here)
    return parsed


if __name__ == "__main__":
    sys.exit(main())
