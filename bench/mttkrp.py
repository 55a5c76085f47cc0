"""Seconds of a sweep (MTTKRPs of all modes) for given shapes, ranks, kernels, placements and numbers of GPUs."""

from __future__ import annotations

import argparse
import datetime
import itertools
from collections.abc import Iterator
from typing import Any

from amped.backend.choose import choose
from amped.errors import InputError
from amped.options import GATHERS, Options
from amped.parallel.mpi import Comm, world

from . import ceilings
from .cases import bytes_a_nonzero
from .groups import free_memory, on_groups
from .harness import Facts, Result, common_flags
from .measure import measure, tensor_facts
from .synthetic import SHAPES, SyntheticSource, recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags; flags with several values are measured in all combinations."""
    add = common_flags(parser, "mttkrp-SHAPES-DEVICE-RANKS")
    add("--shape", nargs="+", choices=sorted(SHAPES), default=["nell2"], metavar="NAME", help=", ".join(SHAPES))
    add("--nonzeros", type=int, help="instead of the shape's own number")
    add("--skew", nargs="+", type=float, default=[0.6], help="exponents of the Zipf distribution of indices (0.6)")
    add("--values", choices=("real", "integer"), default="real", help="uniform in (0, 1], or whole from 1 to 200")
    add("--seed", type=int, default=1)
    add("--rank", nargs="+", type=int, default=[32], metavar="R", help="columns of the factor matrices (32)")
    add("--kernel", nargs="+", default=["auto"], metavar="NAME")
    add("--placement", nargs="+", choices=("auto", "resident", "stream"), default=["auto"])
    add("--precision", nargs="+", choices=("fp32", "fp64"), default=["fp32"])
    add("--gather", nargs="+", choices=GATHERS, default=["full"], help="factor rows as they are, or in 16 bits")
    add("--ranks", type=_numbers, metavar="P,...", help="how many of the ranks that were started (all)")
    add("--sweeps", type=int, default=5, help="the fewest that are measured (5)")
    add("--sustained", type=float, default=0, metavar="SECONDS", help="also sweep this long without a pause")
    add("--device-memory", type=int, metavar="BYTES")
    add("--deterministic", action="store_true")
    add("--yardstick", action="store_true", help="on one GPU, time a plain kernel on the same nonzeros too")
    add("--errors", action="store_true", help="compare with sums in double precision")
    add("--no-ceilings", action="store_true", help="do not measure the machine's ceilings first")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each case. Collective."""
    comm = world()
    backend = choose(args.device, comm)
    ranks, speeds = args.ranks or [comm.size], dict[str, Any]()
    name = f"mttkrp-{'-'.join(args.shape)}-{backend.name}-{comm.size}"
    result = Result(args, name, comm.allgather(backend.description), comm, ceilings=speeds)

    def find_ceilings(group: Comm) -> None:
        speeds[str(group.size)] = ceilings.measure(backend, group)
        free_memory(backend.xp)
        if group.rank == 0:
            print(f"ceilings, GB/s, ranks: {group.size}: {speeds[str(group.size)]}", flush=True)

    if not args.no_ceilings:
        on_groups(comm, ranks, find_ceilings)
    for shape, skew in itertools.product(args.shape, args.skew):
        made = recipe(shape, args.nonzeros, skew, args.values == "integer", args.seed)
        source = SyntheticSource(made, comm, backend.xp)

        def case(group: Comm, shape: str = shape, source: SyntheticSource = source) -> None:
            for found in _cases(args, shape, source.on(group), group, speeds.get(str(group.size))):
                result.add(found, line(found))

        on_groups(comm, ranks, case)


def _cases(
    args: argparse.Namespace, shape: str, source: SyntheticSource, comm: Comm, found: dict[str, Any] | None
) -> Iterator[Facts]:
    """Measure one tensor on one group of ranks, in all combinations."""
    compare = [name for name in ("yardstick", "errors") if getattr(args, name)]
    series = args.precision, args.rank, args.placement, args.kernel, args.gather
    for precision, rank, placement, kernel, gather in itertools.product(*series):
        facts = {"shape": shape} | tensor_facts(source)
        try:
            options = Options(
                args.device, precision, placement, kernel, args.deterministic, args.device_memory, gather=gather
            )
            facts |= measure(source, rank, options, comm, args.sweeps, found, compare, args.sustained)
        except (InputError, MemoryError) as error:
            if isinstance(error, MemoryError) and comm.size > 1:
                raise  # else the other ranks would wait
            asked = {"rank": rank, "ranks": comm.size, "precision": precision, "placement": placement}
            facts |= asked | {"kernel": kernel, "gather": gather, "refused": str(error)}
        facts["deterministic"] = args.deterministic
        facts["finished"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        free_memory(source.xp)
        yield facts


def line(facts: Facts) -> str:
    """Return a result as one line of text."""
    head = (
        f"{facts['shape']} skew {facts['skew']:g} rank {facts['rank']} {facts['precision']} x{facts['ranks']} "
        f"{facts['placement']} {facts['kernel']}{' ' + facts['gather'] if facts['gather'] != 'full' else ''}: "
    )
    if "refused" in facts:
        return f"{head}{facts['refused']}"
    each, alone = facts["seconds_a_sweep"], facts["seconds_a_sweep_without_exchange"]
    parts = [
        f"{each['median'] * 1e3:.3f} ms ({each['quartile_1'] * 1e3:.3f}-{each['quartile_3'] * 1e3:.3f})",
        f"without exchange {alone['median'] * 1e3:.3f}",
        f"kernels {' '.join(facts['kernels'][0])}",
        f"balance {facts['balance']:.2%}",
        f"bytes {' '.join(f'{b:.2f}' for b in bytes_a_nonzero(facts))}",
        f"loaded in {facts['seconds_to_load']['all']:.1f} s",
    ]
    if "yardstick" in facts:
        parts.append(f"{facts['yardstick']['seconds_a_sweep'] / alone['median']:.2f}x the yardstick")
    if "errors" in facts:
        parts.append(f"errors {facts['errors']['norm-wise']:.1e} {facts['errors']['row-wise']:.1e}")
    if "seconds_a_sustained_sweep" in facts:
        parts.append(f"sustained {facts['seconds_a_sustained_sweep']['median'] * 1e3:.3f}")
    if facts["link"]:
        parts.append(f"copied at {facts['link']['gigabytes_a_second']:.1f} GB/s")
        if "fraction_of_link" in facts["link"]:
            parts.append(f"{facts['link']['fraction_of_link']:.1%} of {facts['link']['measured_link']:.1f}")
    return head + "; ".join(parts)
