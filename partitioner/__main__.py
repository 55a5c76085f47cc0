"""``amped partition TENSOR --output STORE``: partition a tensor once and decompose it many times.

``python -m partitioner`` and ``amped-partition`` are the same command. Under ``mpirun`` each rank reads and sorts its
part of the file.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import time
from collections.abc import Sequence

from .build import partition
from .errors import EXIT_INCOMPLETE, InputError, one_line, printable
from .flags import Parser, add_flags, byte_count, path, plain_warnings
from .host.interruptible import must_exit
from .host.ranks import Ranks, SingleRank, abort_all, end_stopped, refuse, world
from .host.signals import NOTHING, Interrupts, end, number_of
from .host.streams import discard
from .readers import ReadOptions
from .shards.sorters import DEVICES
from .wording import command_line

PROGRAM = "amped-partition"
EXAMPLE = "mpirun -n 4 amped partition nell-2.tns --output nell-2-store"


def parser(program: str = PROGRAM) -> Parser:
    """Return the command-line parser."""
    flags = Parser(prog=program, description="Partition a sparse tensor into a store.", epilog=f"example: {EXAMPLE}")
    flags.add_argument(
        "tensor", type=path, metavar="TENSOR", help=".tns, .tns.gz, .npz, a store, or a table: .csv, .json, .parquet"
    )
    flags.add_argument("--output", type=path, required=True, metavar="STORE", help="folder to create")
    flags.add_argument(
        "--memory",
        type=byte_count,
        metavar="BYTES",
        help="memory per rank, e.g. 4G (default: a share of 70%% of the free memory)",
    )
    flags.add_argument(
        "--device", choices=DEVICES, default="cpu", help="device that sorts (default: cpu); auto: a GPU if available"
    )
    add_flags(flags, ReadOptions)
    flags.add_argument("--force", action="store_true", help="replace an existing store")
    flags.add_argument("--quiet", action="store_true", help="print errors only")
    return flags


@command_line()
def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Run the command line. Return the exit code: 0 success, 2 wrong input or option, 75 or 130 ended by a signal."""
    name = program.split()[0]
    with plain_warnings(name):
        return _main(argv, program, name)


def _main(argv: Sequence[str] | None, program: str, name: str) -> int:
    ranks: Ranks | None = None
    with Interrupts() as interrupts:
        try:
            ranks = world()
            sys.excepthook = abort_all(ranks, name)
            with contextlib.redirect_stdout(io.StringIO() if ranks.rank else sys.stdout):  # --help once
                args = parser(program).parse_args(argv)
            return _partition(args, ranks, name)
        except (InputError, OSError) as error:
            return refuse(ranks or SingleRank(), name, error)
        except KeyboardInterrupt as error:
            interrupts.ignore_all()
            if ranks is None:
                end(number_of(error))
            code = end_stopped(ranks or SingleRank(), name, error, NOTHING)
            if must_exit():
                os._exit(code)
            return code


def _partition(args: argparse.Namespace, ranks: Ranks, program: str) -> int:
    started = time.perf_counter()
    options = {"memory": args.memory, "force": args.force, "device": args.device, "form": ReadOptions.of(args)}
    store = partition(args.tensor, args.output, ranks=ranks, **options)
    if not (args.quiet or ranks.rank):
        shape, name, folder = " x ".join(map(str, store.shape)), one_line(args.tensor.name), one_line(str(store.path))
        counts = f"{store.duplicates:,} duplicates summed, {store.zeros:,} zeros dropped"
        timing = f"{store.order} sorted copies written in {time.perf_counter() - started:.2f} s"
        text = f"{name}: {shape}, {store.nnz:,} nonzeros, {counts}\n{folder}: {timing}"
        return _print_result(program, printable(text))
    return 0


def _print_result(program: str, text: str) -> int:
    """Print `text` on standard output. Return the exit code of a run whose store is written."""
    try:
        print(text, flush=True)
    except OSError as error:  # disk full or pipe closed
        discard(sys.stdout.fileno())  # otherwise Python retries at exit
        print(f"{program}: standard output: {error.strerror}; the store is written", file=sys.stderr, flush=True)
        return EXIT_INCOMPLETE
    return 0


if __name__ == "__main__":
    sys.exit(main())
