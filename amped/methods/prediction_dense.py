"""How long an iteration of CP-ALS of a dense tensor will take, from iterations of a tensor of random numbers.

Its shape is the same, but for the slowest mode where elements take many bytes: products take times that
are in proportion to its length. What a process alone keeps on its device is foretold. See `prediction`.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np

from partitioner.tensors.dense import DenseTensor

from ..backend.exchange import Machine
from ..operators.dense.operator import DenseOperator
from ..operators.dense.plan import DensePlan
from ..operators.placement import Setting
from ..operators.sources.dense import DenseSource, of_array
from .constraints import NONE, Constraints
from .initial import initial_factors
from .prediction import Forecast, iterations, settling, spread_of

MOST_BYTES, MOST_ON_HOST = 1 << 33, 1 << 28  # of random numbers
TURNS = 2  # iterations that take turns: what one computes at its end may serve the next


def hopeless_dense(plan: DensePlan, machine: Machine, constraints: Constraints = NONE) -> str | None:
    """Return why no iteration of a plan can be foretold, if that is known without a trial."""
    if max(plan.grid.ranks, machine.comm.size) > 1:
        return "of dense tensors it is not, on several processes"
    if plan.streamed:
        return "elements come as fast as the host, or a file, gives them"
    return settling(plan, constraints)


def foretell_dense(
    source: DenseSource, plan: DensePlan, machine: Machine, setting: Setting, constraints: Constraints = NONE
) -> Forecast:
    """Return what an iteration will take.

    Parameters
    ----------
    source : DenseSource
    plan : DensePlan
        This rank's; not `hopeless_dense`.
    machine : Machine
    setting : Setting
        Of the run.
    constraints : Constraints
    """
    device, lengths, item = machine.device, source.lengths, plan.dtype.itemsize
    index = math.prod(lengths[1:]) * item  # bytes
    most = MOST_ON_HOST if device.on_host else MOST_BYTES
    length = min(lengths[0], max(setting.ranks[0], most // index))
    # Of numbers that have no structure no two components are alike, whose equations would have no solution.
    rng = device.xp.random.default_rng(0)
    array = rng.standard_normal((length, *lengths[1:]), dtype=plan.dtype)
    few = of_array(DenseTensor(array.transpose(np.argsort(source.modes).tolist())), machine.comm)
    few.lends = plan.rows is None  # else they are copied, as the tensor's are
    options = replace(setting.options, placement="auto")
    operator = DenseOperator(few, machine, setting._replace(options=options, values=few.value_range))
    for mode, factor in enumerate(initial_factors(few, setting.ranks[0], machine.comm, plan.dtype)):
        operator.set_factor(mode, factor)
    taken = iterations(operator, constraints, TURNS)
    each = np.mean(np.reshape(taken[: len(taken) // TURNS * TURNS], (-1, TURNS)), axis=1).tolist()
    seconds = statistics.median(each) * lengths[0] / length
    del operator, few, array
    device.rest()
    return Forecast(seconds, 0.0, 0.0, spread_of(each))
