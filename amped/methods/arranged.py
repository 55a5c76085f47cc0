"""The factor matrices of a model, arranged where they are stored: long ones are slow to arrange in host memory.

They remain on the device if the model's matrices are to be there; see the argument `output` of `cp_als`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..backend.device import Array, Device
from ..backend.ops.columns import COLUMNS
from ..backend.ops.random import RANDOM, RandomStream
from ..errors import InputError
from ..models.columns import arrange_columns, arrangement, readable_signs
from ..models.kruskal import KruskalTensor
from ..operators.base import Placed

AT_ONCE = 1 << 26  # bytes that are scaled at a time
LARGE = 1 << 24  # bytes of the matrices together; fewer are arranged in host memory


def arranged(
    operator: Placed,
    matrices: Array | None,
    weights: NDArray[np.float64],
    scales: NDArray[np.float64],
    norm: int,
    signed: bool,
    on_device: bool = False,
) -> KruskalTensor:
    """Return the model of the matrices that an operator holds for the first modes, normalised and sorted by weight.

    Parameters
    ----------
    operator : Operator
    matrices : array, optional
        A copy of `Operator.matrices`, to be used instead.
    weights, scales, norm : (R,) array, (order, R) array, int
        See `KruskalTensor.arrange`.
    signed : bool
        Whether signs are flipped as by `KruskalTensor.signed`.
    on_device : bool
        Whether the model's matrices are left in device memory, if its columns can be arranged there.
    """
    device, modes = operator.machine.device, range(len(scales))
    stored = [operator.stored(mode, matrices) for mode in modes]
    if not operator.whole:
        factors = [operator.factor(mode, matrices) for mode in modes]
        model = KruskalTensor(weights, factors).arrange(scales, norm)
        return model.signed() if signed else model
    if not _is_arranged_there(device, stored, on_device):
        rows = [operator.rows(mode, matrices) for mode in modes]
        model = KruskalTensor(weights, rows).arrange(scales, norm)
        model = model.signed() if signed else model
        model.factors = [operator.expand(mode, rows) for mode, rows in enumerate(model.factors)]
        return model
    columns = COLUMNS.require(device)
    sums = [columns.sums(matrix) for matrix in stored]
    norms = [np.sqrt(each.squares) if norm == 2 else each.magnitudes for each in sums]
    weights, order, divisors = arrangement(weights, norms, scales)
    if signed:
        divisors *= readable_signs([each.signed_squares for each in sums], [each.squares for each in sums])
    arrange = columns.arranged if on_device else columns.on_host
    made = zip(stored, divisors, strict=True)
    return KruskalTensor(weights, [arrange(matrix, order, divisor[order], -np.inf) for matrix, divisor in made])


def sorted_columns(operator: Placed, order: NDArray[np.intp], on_device: bool = False) -> list[Array]:
    """Return the matrices that an operator holds, columns in another order; the smallest positive number becomes 0.

    `on_device`: see `arranged`.
    """
    tiny, device = float(np.finfo(operator.options.dtype).smallest_subnormal), operator.machine.device
    stored = [operator.stored(mode) for mode in range(operator.order)]
    if _is_arranged_there(device, stored, on_device):
        columns, divisor = COLUMNS.require(device), np.ones(order.size)
        arrange = columns.arranged if on_device else columns.on_host
        return [arrange(matrix, order, divisor, tiny) for matrix in stored]
    factors = [operator.rows(mode) for mode in range(operator.order)]
    for factor in factors:
        arrange_columns(factor, order, flushed=tiny)
    return [operator.expand(mode, rows) for mode, rows in enumerate(factors)]


def draws_there(operator: Placed) -> bool:
    """Return whether random matrices are drawn where they are stored: all rows, if they are large. Collective."""
    device, modes, comm = operator.machine.device, range(operator.order), operator.machine.everyone
    stored = [operator.stored(mode) for mode in modes]
    whole = operator.whole and all(len(matrix) == operator.lengths[mode] for mode, matrix in enumerate(stored))
    able = whole and RANDOM.first(device) is not None and _is_arranged_there(device, stored, on_device=False)
    return all(comm.allgather(able)) if comm.size > 1 else able


def draw(operator: Placed, seed: int) -> None:
    """Set the matrices that `random_factor` returns, without drawing them in host memory."""
    if seed < 0:
        raise InputError(f"seed {seed} is negative")
    random = RANDOM.require(operator.machine.device)
    for mode in range(operator.order):
        operator.wait_comm()
        random.draw(operator.stored(mode), RandomStream.of([seed, mode]))
        operator.changed(mode)


def scale_to_unit_sums(operator: Placed) -> NDArray[np.float64]:
    """Scale non-negative matrices in device memory to columns of unit sum; return the products of the sums, (R,)."""
    columns, weights = COLUMNS.require(operator.machine.device), np.ones(operator.ranks[0])
    for mode in range(operator.order):
        matrix = operator.stored(mode)
        sums = columns.sums(matrix).magnitudes
        weights *= sums
        divisor, step = np.where(sums > 0, sums, 1), max(1, AT_ONCE // matrix[:1].nbytes)
        for begin in range(0, len(matrix), step):
            rows = matrix[begin : begin + step]
            rows[...] = columns.arranged(rows, np.arange(sums.size), divisor, -np.inf)
        operator.changed(mode)
    return weights


def _is_arranged_there(device: Device, stored: Sequence[Array], on_device: bool) -> bool:
    """Return whether matrices that are large or remain `on_device` have adjacent columns that a device arranges."""
    adjacent = all(matrix.strides[-1] == matrix.itemsize for matrix in stored)
    wanted = on_device or sum(matrix.nbytes for matrix in stored) >= LARGE
    return wanted and adjacent and COLUMNS.first(device) is not None
