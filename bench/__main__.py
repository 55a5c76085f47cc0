"""``python -m bench NAME``, alone or under ``mpirun``; without a name, the list of benchmarks."""

from __future__ import annotations

import argparse

from . import ceilings, cp_als, mttkrp

BENCHMARKS = {"ceilings": ceilings, "mttkrp": mttkrp, "cp-als": cp_als}


def main() -> None:
    """Run the benchmark that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks of amped.")
    names = parser.add_subparsers(dest="benchmark", metavar="NAME")
    for name, module in BENCHMARKS.items():
        text = (module.__doc__ or "").strip()
        module.add_arguments(names.add_parser(name, help=text, description=text))
    args = parser.parse_args()
    if args.benchmark is None:
        parser.print_help()
    else:
        BENCHMARKS[args.benchmark].run(args)


if __name__ == "__main__":
    main()
