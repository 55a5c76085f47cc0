"""The choice of how ranks share a sparse tensor in CP-ALS."""

from __future__ import annotations

import math

from ..backend.exchange import Machine
from ..errors import InputError
from ..operators.placement import GridParts, Setting
from ..operators.sources.protocols import DescribedSource
from ..options import DISTRIBUTIONS, Options

ALL_GATHER = "all-gather"


def check_gathers(options: Options, what: str) -> None:
    """Raise `InputError`, which names `what` is computed, if a distribution without all-gathers is requested."""
    if options.grid not in ("auto", ALL_GATHER):
        raise InputError(f"grid {options.grid!r}: not supported together with {what}; use {ALL_GATHER!r}")


def distribution_for(source: DescribedSource, machine: Machine, setting: Setting) -> GridParts | str:
    """Return the grid of ranks for a tensor, or the name of another distribution.

    Raises
    ------
    InputError
        If the requested grid does not fit the tensor or the number of ranks.
    """
    wanted, order, ranks = setting.options.grid, len(source.shape), machine.comm.size
    if ranks == 1 or source.kind != "sparse" or wanted == "auto":
        return ALL_GATHER
    if wanted in DISTRIBUTIONS:
        return wanted
    layers = tuple(map(int, wanted.split("x")))
    if len(layers) != order:
        raise InputError(f"grid {wanted}: has {len(layers)} modes, the tensor {order}")
    if math.prod(layers) != ranks:
        raise InputError(f"grid {wanted}: needs {math.prod(layers)} ranks, {ranks} are running")
    return GridParts(layers, (1,) * order)
