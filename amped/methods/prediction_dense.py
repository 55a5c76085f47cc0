"""Prediction of the time of a CP-ALS iteration of a dense tensor, from iterations of a tensor of random numbers.

That tensor has the same shape, except that its slowest mode is shortened if it would be large: the time is proportional
to that mode's length. Only runs of one process whose tensor stays on the device are predicted. See `prediction`.
"""

from __future__ import annotations

import math
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

MOST_BYTES, MOST_ON_HOST = 1 << 33, 1 << 28  # bytes of random numbers at most, on a GPU and on the host
TURNS = 2  # results at the end of an iteration may serve the next, so times alternate between two values


def hopeless_dense(plan: DensePlan, machine: Machine, constraints: Constraints = NONE) -> str | None:
    """Return why an iteration of a plan cannot be predicted, if that is known without measuring; else None."""
    if max(plan.grid.ranks, machine.comm.size) > 1:
        return "dense tensors are predicted for one process only"
    if plan.streamed:
        return "the host or a file limits the speed of streamed elements"
    return settling(plan, constraints)


def foretell_dense(
    source: DenseSource, plan: DensePlan, machine: Machine, setting: Setting, constraints: Constraints = NONE
) -> Forecast:
    """Return the predicted time of an iteration.

    Parameters
    ----------
    source : DenseSource
    plan : DensePlan
        This rank's plan, for which `hopeless_dense` returns None.
    machine : Machine
    setting : Setting
        The setting of the run.
    constraints : Constraints
    """
    device, lengths, item = machine.device, source.lengths, plan.dtype.itemsize
    index = math.prod(lengths[1:]) * item  # bytes
    most = MOST_ON_HOST if device.on_host else MOST_BYTES
    length = min(lengths[0], max(setting.ranks[0], most // index))
    # Random numbers have no structure, so no two components become alike and equations stay nonsingular.
    rng = device.xp.random.default_rng(0)
    array = rng.standard_normal((length, *lengths[1:]), dtype=plan.dtype)
    few = of_array(DenseTensor(array.transpose(np.argsort(source.modes).tolist())), machine.comm)
    few.lends = plan.rows is None  # otherwise elements are copied, like the tensor's
    options = replace(setting.options, placement="auto")
    operator = DenseOperator(few, machine, setting._replace(options=options, values=few.value_range))
    for mode, factor in enumerate(initial_factors(few, setting.ranks[0], machine.comm, plan.dtype)):
        operator.set_factor(mode, factor)
    taken = iterations(operator, constraints, TURNS)
    each = np.mean(np.reshape(taken[: len(taken) // TURNS * TURNS], (-1, TURNS)), axis=1).tolist()
    seconds = float(np.median(each)) * lengths[0] / length
    del operator, few, array
    device.rest()
    return Forecast(seconds, 0.0, 0.0, spread_of(each))
