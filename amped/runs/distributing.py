"""The choice of how ranks share a sparse tensor in CP-ALS."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import cast

from ..backend.exchange import Machine
from ..errors import InputError
from ..operators.base import Operator
from ..operators.distributions.calibration import machine_model
from ..operators.distributions.choice import choose
from ..operators.distributions.forecast import Candidate
from ..operators.grid.one_rank import replica
from ..operators.grid.operator import GridOperator
from ..operators.placement import GridParts, Setting, nonzero_bytes
from ..operators.sources.lengths import check_lengths
from ..operators.sources.protocols import DescribedSource, DeviceMemory, SparseSource
from ..operators.sparse.tuning import Budget
from ..options import ALL_GATHER, GRID_NAME, Options
from .candidates import MOST_RANKS, SharedTensor
from .kinds import kind_of

REPLICATED, GRID = "replicated", "grid"
DEALING = 7e-8  # seconds per nonzero of a rank, on the host, to distribute blocks (measured with 2 and 4 GPUs)
LEAST_GAIN = 0.03  # of the time of an iteration
MOST_REPLICATED = 8  # 1 / MOST_REPLICATED of the device memory is for all copies of the nonzeros


def check_gathers(options: Options, what: str) -> None:
    """Raise `InputError` if a distribution other than all-gather is requested; the message names `what` refuses it."""
    if options.grid not in ("auto", ALL_GATHER):
        raise InputError(f"grid {options.grid!r}: not supported together with {what}; use {ALL_GATHER!r}")


def local_models(options: Options) -> Options:
    """Return options with which any single rank can copy the model, as a callback may.

    Raises
    ------
    InputError
        If a grid is requested.
    """
    if GRID_NAME.fullmatch(options.grid):
        raise InputError(
            f"grid {options.grid}: not supported together with a callback, which may use the model on one rank"
        )
    return replace(options, grid=ALL_GATHER) if options.grid == "auto" else options


def placed(
    source: DescribedSource,
    machine: Machine,
    setting: Setting,
    memory: DeviceMemory,
    budget: Budget | None = None,
    iterates: bool = True,
) -> Operator:
    """Place a tensor for MTTKRPs, on a grid of ranks if that is chosen. Collective.

    `memory` is for a sparse tensor that is loaded. A grid is chosen only for a method that `iterates`.
    """
    chosen = distribution_for(source, machine, setting, budget.repeats if budget and iterates else None)
    if chosen == ALL_GATHER:
        return kind_of(source).place(source, machine, setting, budget)
    # On a grid a rank has some of the rows; its plan counts them.
    limit = setting._replace(memory=sys.maxsize) if isinstance(chosen, GridParts) else setting
    check_lengths(source, limit, machine.comm)
    sparse = source.sparse(memory)
    if isinstance(chosen, GridParts):
        return GridOperator(sparse, machine, setting._replace(grid=chosen), budget)
    return replica(sparse, machine, setting, budget)


def distribution_for(
    source: DescribedSource, machine: Machine, setting: Setting, repeats: int | None
) -> GridParts | str:
    """Return the grid of ranks for a tensor, or the name of another distribution. Collective.

    Parameters
    ----------
    source : DescribedSource
    machine : Machine
    setting : Setting
    repeats : int or None
        Iterations at most; None: unknown.

    Raises
    ------
    InputError
        If the requested grid does not fit the tensor or the number of ranks.
    """
    wanted, ranks = setting.options.grid, machine.comm.size
    if source.kind != "sparse":
        return ALL_GATHER
    layers = _layers(wanted, len(source.shape), ranks) if GRID_NAME.fullmatch(wanted) else None
    if ranks == 1:
        return ALL_GATHER
    if layers is not None:
        return GridParts(layers, (1,) * len(layers))
    return _fastest(cast("SparseSource", source), machine, setting, repeats) if wanted == "auto" else wanted


def _layers(name: str, order: int, ranks: int) -> tuple[int, ...]:
    """Return the layers of a grid by its name; raise `InputError` if it does not fit the tensor or the ranks."""
    layers = tuple(map(int, name.split("x")))
    if len(layers) != order:
        raise InputError(f"grid {name}: has {len(layers)} modes, the tensor {order}")
    if ranks > MOST_RANKS:
        raise InputError(f"grid {name}: at most {MOST_RANKS:,} ranks")
    if math.prod(layers) != ranks:
        raise InputError(f"grid {name}: is for {math.prod(layers)} ranks, not {ranks}")
    return layers


def _fastest(source: SparseSource, machine: Machine, setting: Setting, repeats: int | None) -> GridParts | str:
    """Return the distribution with the least expected time of a run, including the distribution of blocks. Collective.

    Ranks without a GPU each exchange rows in their host's memory, or compute too long for exchange to matter.
    """
    if repeats is None or not machine.exchange.overlaps:
        return ALL_GATHER
    comm, options, rank = machine.comm, setting.options, setting.ranks[0]
    shared, model = SharedTensor(source, comm, rank, options), machine_model(machine, not options.deterministic)
    work, compact = shared.workloads(machine.device.stride(rank, options.dtype.itemsize), None)
    found, dealing = choose(work, model, comm.size, most=0, compact=compact), DEALING * source.nnz / comm.size
    usual = next(each for each in found if each.distribution.name == ALL_GATHER)
    if dealing < repeats * usual.seconds.total:  # otherwise no grid pays, and its blocks need not be counted
        found = choose(work, model, comm.size, compact=compact, fullest=shared.fullest)

    def seconds(candidate: Candidate) -> float:
        return dealing * (candidate.distribution.name == GRID) + repeats * candidate.seconds.total

    fitting = [each for each in found if each.distribution.name != REPLICATED or _is_small(source, machine, setting)]
    best = min(fitting, key=seconds)
    if seconds(best) > (1 - LEAST_GAIN) * seconds(usual):
        return ALL_GATHER
    chosen = best.distribution
    return GridParts(chosen.parts, chosen.nodes) if chosen.name == GRID else chosen.name


def _is_small(source: SparseSource, machine: Machine, setting: Setting) -> bool:
    """Return whether the tensor fits easily into the device memory of each rank. Collective."""
    copies = source.nnz * len(source.shape) * nonzero_bytes(len(source.shape), setting.options.dtype)
    return MOST_REPLICATED * copies <= min(machine.comm.allgather(setting.memory))
