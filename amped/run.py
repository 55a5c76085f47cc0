"""The command line: ``python -m amped.run``, on one process or under ``mpirun`` or ``srun``."""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import math
import sys
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from partitioner.flags import Parser, byte_count, path
from partitioner.ranks import refuse

from . import commands, requests
from .assembly import Session
from .errors import EXIT_INPUT, EXIT_INTERRUPTED, InputError
from .parallel.mpi import Comm, abort_all, together, world
from .parallel.recorder import HERE, LOADING_SECONDS
from .parallel.stopping import StopRequest
from .parallel.watchdog import Watchdog, ending, starting
from .requests import Request

EXAMPLE = "uber393k_4d.tns.gz"
EXAMPLE_ARGUMENTS = ("--rank", "16", "--max-iters", "20")


def seconds(text: str) -> float:
    """Read a number of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def parser() -> Parser:
    """Return the parser of the whole command line."""
    shared = _shared_flags()
    start = _start_flags()
    top = Parser(prog="amped", description="Sparse tensor decomposition on all the GPUs, or CPUs, of a run.")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)

    def add(name: str, function: Callable[[Any, Session], int], request: type[Request], *parents: Parser) -> Parser:
        verb = verbs.add_parser(name, help=function.__doc__, description=function.__doc__, parents=[*parents, shared])
        verb.add_argument("tensor", type=path, metavar="TENSOR", help=".tns, .tns.gz, .npz or a store")
        verb.set_defaults(function=function, request=request)
        return verb

    cpd = add("cpd", commands.cpd, requests.Cpd, start)
    cpd.add_argument("--max-iters", type=int, default=50, metavar="N", help="iterations at most (50)")
    cpd.add_argument(
        "--tol", type=float, default=1e-5, help="stop when the fit changes less (1e-5); 0 runs all iterations"
    )
    cpd.add_argument("--output", type=path, metavar="DIR", help="folder of model.npz and run.json (TENSOR-rankR)")
    cpd.add_argument("--checkpoint", type=path, metavar="DIR", help="write checkpoints there")
    cpd.add_argument("--every", type=int, metavar="K", help="iterations between checkpoints (1)")
    cpd.add_argument("--resume", action="store_true", help="go on from the checkpoint, if there is one")
    mttkrp = add("mttkrp", commands.mttkrp, requests.Mttkrp, start)
    mttkrp.add_argument("--mode", default="all", help="a mode, counted from 0, or all")
    mttkrp.add_argument("--repeat", type=int, default=1, metavar="K", help="repeat, and report the median time")
    mttkrp.add_argument("--output", type=path, metavar="FILE.npz", help="write mode_0, mode_1, ...")
    plan = add("plan", commands.plan, requests.Plan)
    plan.add_argument("--rank", type=int, required=True, metavar="R", help="columns of the factor matrices")
    plan.add_argument("--ranks", type=int, metavar="P", help="plan for this many ranks (those started)")
    add("info", commands.info, Request)
    return top


def _start_flags() -> Parser:
    start = Parser(add_help=False)
    start.add_argument("--rank", type=int, required=True, metavar="R", help="columns of the factor matrices, 1 to 1024")
    group = start.add_mutually_exclusive_group()
    group.add_argument("--seed", type=int, default=0, help="of the random start (0)")
    group.add_argument(
        "--init", metavar="FILE.npz|nvecs", help="start from factor_0 ... of a file, or from eigenvectors"
    )
    return start


def _shared_flags() -> Parser:
    shared = Parser(add_help=False)
    flags = shared.add_argument_group("how to compute")
    flags.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="(auto: a GPU if there is one)"
    )
    flags.add_argument("--precision", choices=("fp32", "fp64"), default="fp32", help="(fp32)")
    flags.add_argument("--placement", choices=("auto", "resident", "stream"), default="auto", help="of nonzeros (auto)")
    flags.add_argument("--device-memory", type=byte_count, metavar="BYTES", help="use no more of the device, e.g. 16G")
    flags.add_argument("--kernel", default="auto", metavar="NAME", help="(auto: the fastest; permuted: the smallest)")
    flags.add_argument("--deterministic", action="store_true", help="bitwise equal results on equal ranks")
    flags.add_argument(
        "--gather", choices=("full", "fp16", "bf16"), default="full", help="16-bit factor rows: faster, 1e-3 (full)"
    )
    flags.add_argument("--threads", type=int, metavar="T", help="host threads of a rank (its share of the cores)")
    flags.add_argument("--metrics", type=path, metavar="FILE.jsonl", help="write times and fits as JSON lines")
    flags.add_argument(
        "--deadline", type=seconds, metavar="S", help="end a run that does not go on for so long (by what it has taken)"
    )
    flags.add_argument("--no-verify", action="store_true", help="do not check stores against their checksums")
    flags.add_argument("--force", action="store_true", help="overwrite what exists")
    flags.add_argument("--quiet", action="store_true", help="print errors, and what info and plan are asked for, alone")
    return shared


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; flags without a verb, or nothing, stand for the example."""
    example = not argv or (argv[0].startswith("-") and argv[0] not in ("-h", "--help"))
    if not example:
        return parser().parse_args(argv)
    tensor = files("amped").joinpath("data", EXAMPLE)
    return parser().parse_args(["cpd", str(tensor), *EXAMPLE_ARGUMENTS, *argv])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    0: done; 1: something failed; 2: the input or a flag is wrong, with one line on standard error;
    75: stopped by SIGUSR1 or SIGTERM, and saved; 130: the same by SIGINT.
    """
    stop = StopRequest()
    try:
        with starting():
            comm = world()
    except InputError as error:
        print(f"amped: error: {error}", file=sys.stderr)
        return EXIT_INPUT
    sys.excepthook = abort_all(comm)
    try:
        with contextlib.redirect_stdout(io.StringIO() if comm.rank else sys.stdout):  # --help once
            args = arguments(sys.argv[1:] if argv is None else argv)
        request: Request = together(comm, lambda: args.request.of(args))
        with starting():
            watchdog = Watchdog(comm, request.deadline)
        limit = request.deadline or (LOADING_SECONDS if comm.size > 1 else math.inf)
        with ending(comm), HERE.limited(limit), watchdog:
            code: int = args.function(request, Session(comm, stop, watchdog))
            gc.freeze()  # as the process ends, all that Numba has made would be looked through: a quarter of a second
            return code
    except (InputError, OSError) as error:
        return refuse(comm, "amped", error)
    except KeyboardInterrupt:
        return _interrupted(comm)
    except SystemExit as request:  # --help
        if comm.rank:
            return 0
        raise request


def _interrupted(comm: Comm) -> int:
    print(f"amped: rank {comm.rank} was interrupted; nothing was saved since the last checkpoint", file=sys.stderr)
    if comm.size > 1:
        comm.abort(EXIT_INTERRUPTED)
    return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
