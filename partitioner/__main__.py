"""``python -m partitioner TENSOR --output STORE``: partition a tensor once, to run on it many times."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from .errors import InputError
from .readers import read
from .store import check_target, write_store

EXIT_INPUT = 2


class Parser(argparse.ArgumentParser):
    """Reports a wrong flag in one line, as any other wrong input."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise InputError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 0 done, 2 the input or a flag is wrong."""
    parser = Parser(prog="amped-partition", description="Partition a sparse tensor into a store.")
    parser.add_argument("tensor", type=Path, metavar="TENSOR", help=".tns, .tns.gz or .npz")
    parser.add_argument("--output", type=Path, required=True, metavar="STORE", help="folder to make")
    parser.add_argument("--force", action="store_true", help="replace a store that exists")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    try:
        args = parser.parse_args(argv)
        check_target(args.output, args.force)
        started = time.perf_counter()
        tensor = read(args.tensor)
        middle = time.perf_counter()
        store = write_store(tensor, args.output, force=args.force)
    except InputError as error:
        print(f"amped-partition: error: {error}", file=sys.stderr)
        return EXIT_INPUT
    except OSError as error:  # a path that cannot be looked at, a name that is too long
        if error.filename is None:
            raise
        print(
            f"amped-partition: error: {InputError(error.strerror or str(error), path=error.filename)}", file=sys.stderr
        )
        return EXIT_INPUT
    if not args.quiet:
        shape = " x ".join(map(str, store.shape))
        print(f"{args.tensor.name}: {shape}, {store.nnz:,} nonzeros, {store.duplicates:,} duplicates summed, "
              f"{store.zeros:,} zeros dropped; read in {middle - started:.2f} s")  # fmt: skip
        print(f"{store.path}: {store.order} sorted copies written in {time.perf_counter() - middle:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
