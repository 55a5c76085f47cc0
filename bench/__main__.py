"""``python -m bench NAME``, alone or under ``mpirun``; without a name, the list of benchmarks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from tempfile import TemporaryFile

from amped.errors import InputError

from . import (
    answer,
    ceilings,
    counts,
    cp_als,
    dense,
    dense_ranks,
    dense_stream,
    figures,
    host,
    latency,
    mttkrp,
    nonnegative,
    phi,
    readme,
    regression,
    reliability,
    scan,
    spttm,
    table,
    tucker,
)

BENCHMARKS = {
    "ceilings": ceilings,
    "mttkrp": mttkrp,
    "cp-als": cp_als,
    "counts": counts,
    "dense": dense,
    "dense-ranks": dense_ranks,
    "tucker": tucker,
    "dense-stream": dense_stream,
    "latency": latency,
    "answer": answer,
    "host": host,
    "phi": phi,
    "nonnegative": nonnegative,
    "figures": figures,
    "readme": readme,
    "regression": regression,
    "reliability": reliability,
    "scan": scan,
    "spttm": spttm,
    "table": table,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks of amped.")
    names = parser.add_subparsers(dest="benchmark", metavar="NAME")
    for name, module in BENCHMARKS.items():
        text = (module.__doc__ or "").strip()
        module.add_arguments(names.add_parser(name, help=text, description=text))
    args = parser.parse_args(arguments)
    if args.benchmark is None:
        parser.print_help()
    else:
        try:
            if getattr(args, "output", None):  # fail before measuring
                folder = args.output.parent if args.output.suffix == ".json" else args.output
                folder.mkdir(parents=True, exist_ok=True)
                TemporaryFile(dir=folder).close()
            BENCHMARKS[args.benchmark].run(args)
        except (InputError, OSError) as error:
            raise SystemExit(f"bench: {error}") from None


if __name__ == "__main__":
    main()
