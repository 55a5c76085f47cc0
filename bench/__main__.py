"""``python -m bench NAME``, alone or under ``mpirun``; without a name, the list of benchmarks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from tempfile import TemporaryFile

from amped.errors import InputError

from . import (
    acceleration,
    ceilings,
    constraints,
    counts,
    dense,
    dense_ranks,
    dense_stream,
    figures,
    first_use,
    gaps,
    gradients,
    host_mttkrp,
    host_reading,
    hypersparse,
    latency,
    losses,
    mttkrp,
    nonnegative_tucker,
    observed,
    peers,
    phi_apr,
    phi_intensity,
    phi_pasta,
    phi_policy,
    phi_pressure,
    readme,
    regression,
    reliability,
    rows,
    scaling,
    scan,
    spttm,
    starts,
    stochastic,
    table,
    tasks,
    time_to_result,
    tucker,
    updates,
)

BENCHMARKS = {
    "regression": regression,
    "mttkrp": mttkrp,
    "latency": latency,
    "rows": rows,
    "time-to-result": time_to_result,
    "first-use": first_use,
    "dense": dense,
    "dense-ranks": dense_ranks,
    "dense-stream": dense_stream,
    "tucker": tucker,
    "nonnegative-tucker": nonnegative_tucker,
    "spttm": spttm,
    "constraints": constraints,
    "counts": counts,
    "observed": observed,
    "gaps": gaps,
    "peers": peers,
    "losses": losses,
    "gradients": gradients,
    "stochastic": stochastic,
    "scaling": scaling,
    "scan": scan,
    "starts": starts,
    "acceleration": acceleration,
    "updates": updates,
    "table": table,
    "tasks": tasks,
    "reliability": reliability,
    "host-mttkrp": host_mttkrp,
    "host-reading": host_reading,
    "hypersparse": hypersparse,
    "phi-intensity": phi_intensity,
    "phi-pressure": phi_pressure,
    "phi-policy": phi_policy,
    "phi-pasta": phi_pasta,
    "phi-apr": phi_apr,
    "ceilings": ceilings,
    "figures": figures,
    "readme": readme,
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
