"""The choice of how ranks share a sparse tensor in CP-ALS."""

from __future__ import annotations

import math

from ..backend.exchange import Machine
from ..errors import InputError
from ..operators.placement import GridParts, Setting
from ..operators.sources.protocols import DescribedSource
from ..options import DISTRIBUTIONS


def grid_for(source: DescribedSource, machine: Machine, setting: Setting) -> GridParts | None:
    """Return the grid of ranks for a tensor; None if each rank gets all rows of all factor matrices.

    Raises
    ------
    InputError
        If the requested grid does not fit the tensor or the number of ranks.
    """
    wanted, order, ranks = setting.options.grid, len(source.shape), machine.comm.size
    if wanted in DISTRIBUTIONS or source.kind != "sparse":
        return None
    layers = tuple(map(int, wanted.split("x")))
    if len(layers) != order:
        raise InputError(f"grid {wanted}: has {len(layers)} modes, the tensor {order}")
    if math.prod(layers) != ranks:
        raise InputError(f"grid {wanted}: needs {math.prod(layers)} ranks, {ranks} are running")
    return GridParts(layers, (1,) * order)
