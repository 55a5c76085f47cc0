"""Sampled losses, their gradients and stochastic steps; see `amped.backend.ops.sampled`.

The code is compiled once for all losses, orders and ranks.
"""

# Numba infers the types of the compiled functions.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from partitioner.host.jit import inner, jit

from ...coordinate_table import EMPTY, HASHED
from ...counter_rng import DROPPED, GOLDEN, LAST_SHIFT, MIX, UNIT
from ...ops.sampled import SampleOrigin
from ..simd.doubles import EIGHT, each, eight, load, plus, store, times, total
from ..simd.thread_team import add, fork, join
from .row_systems import call_formula

STEP, HASH = np.uint64(GOLDEN), np.uint64(HASHED)
(SHIFT_0, FACTOR_0), (SHIFT_1, FACTOR_1) = ((np.uint64(shift), np.uint64(factor)) for shift, factor in MIX)
SHIFT_2, BITS, HALF = np.uint64(LAST_SHIFT), np.uint64(DROPPED), np.uint64(32)
LISTED, EVERY, ABSENT, ANYWHERE, BLIND = map(int, SampleOrigin)
BLOCK = 1 << 9  # samples that are drawn, then evaluated, at a time
SGD, ADAGRAD, ADAM = 0, 1, 2  # by the number of moments


@inner
def _uniform(key, number):
    """Return a random number in [0, 1); see `counter_rng.uniform`."""
    bits = key + np.uint64(number) * STEP
    bits = (bits ^ (bits >> SHIFT_0)) * FACTOR_0
    bits = (bits ^ (bits >> SHIFT_1)) * FACTOR_1
    bits ^= bits >> SHIFT_2
    return np.float64(np.int64(bits >> BITS)) * UNIT


@inner
def _in_order(key, number, place, ratio, length):
    """Return a random integer in the part `place` of those below `length`; `ratio` is the length of parts."""
    return min(np.int64((place + _uniform(key, number)) * ratio), length - 1)


@inner
def _find(slots, marks, coordinates, wanted, at):
    """Return the position of the coordinates in a row of `wanted`, or `EMPTY`; see `coordinate_table.find`."""
    state, order = np.uint64(0), wanted.shape[1]
    for k in range(order):
        state = (state ^ np.uint64(wanted[at, k])) * HASH
        state ^= state >> HALF
    place, mask = np.int64((state * STEP) >> HALF), slots.size - 1
    mark = place & (8 * marks.size - 1)
    position, same = np.int64(EMPTY), False
    if (marks[mark >> 3] >> (mark & 7)) & 1:
        place &= mask
        position = np.int64(slots[place])
    while position != EMPTY and not same:
        same = True
        for k in range(order):
            same &= np.int64(coordinates[position, k]) == wanted[at, k]
        if not same:
            place = (place + 1) & mask
            position = np.int64(slots[place])
    return position


@inner
def _list(every, key, numbers, count, coordinates, values, wanted, drawn, at):
    """Write the coordinates and values of nonzeros to `wanted` and `drawn` from row `at` on."""
    ratio = values.size / count
    for n in range(numbers[0], numbers[1]):
        position, q = n if every else _in_order(key, n, n, ratio, values.size), at + n - numbers[0]
        for k in range(wanted.shape[1]):
            wanted[q, k] = coordinates[position, k]
        drawn[q] = values[position]


@inner
def _draw(key, numbers, count, begin, lengths, wanted, drawn, at):
    """Write coordinates of all elements to `wanted` and zeros to `drawn`, from row `at` on."""
    order, ratio = wanted.shape[1], lengths[0] / count
    for n in range(numbers[0], numbers[1]):
        q = at + n - numbers[0]
        wanted[q, 0] = begin[0] + _in_order(key, n * order, n, ratio, lengths[0])
        for k in range(1, order):
            wanted[q, k] = begin[k] + np.int64(_uniform(key, n * order + k) * lengths[k])
        drawn[q] = 0.0


@inner
def _look_up(slots, marks, coordinates, values, wanted, drawn, at, size):
    """Write the values at drawn coordinates that are not absent."""
    for q in range(at, at + size):
        position = _find(slots, marks, coordinates, wanted, q)
        if position != EMPTY:
            drawn[q] = values[position]


@inner
def _reject(slots, marks, coordinates, wanted, at, size):
    """Keep the drawn coordinates that are absent, in the first rows; return how many there are."""
    kept = at
    for q in range(at, at + size):
        absent = _find(slots, marks, coordinates, wanted, q) == EMPTY
        for k in range(wanted.shape[1]):
            wanted[kept, k] = wanted[q, k]
        kept += absent
    return kept - at


@inner
def _model(matrix, offsets, wanted, products, part, q):
    """Write the products of the factor rows up to each mode to `products`; return the model's value."""
    address, wide, columns = matrix
    order = wanted.shape[1]
    first = part * order * columns
    result = each(0.0)
    for c in range(0, columns, EIGHT):
        product = eight(address, (offsets[0] + wanted[q, 0]) * columns + c, wide, columns)
        store(products, first + c, product)
        for k in range(1, order):
            product = times(product, eight(address, (offsets[k] + wanted[q, k]) * columns + c, wide, columns))
            store(products, first + k * columns + c, product)
        result = plus(result, product)
    return total(result)


@inner
def _scatter(matrix, offsets, solved, wanted, products, slope, gradients, touched, part, q):
    """Add the gradient of a sample, from the last mode to the first."""
    address, wide, columns = matrix
    order, rows = wanted.shape[1], touched.shape[1]
    first = part * order * columns
    for k in range(order):
        touched[part, offsets[k] + wanted[q, k]] |= solved[k]
    for c in range(0, columns, EIGHT):
        rest = each(slope)
        for k in range(order - 1, -1, -1):
            row = offsets[k] + wanted[q, k]
            if solved[k]:
                out = (part * rows + row) * columns + c
                whole = times(rest, load(products, first + (k - 1) * columns + c)) if k else rest
                store(gradients, out, plus(load(gradients, out), whole))
            if k:
                rest = times(rest, eight(address, row * columns + c, wide, columns))


@inner
def _block(origin, key, numbers, count, elements, wanted, drawn, at):
    """Write the coordinates and values of a block of samples from row `at` on; return how many count."""
    coordinates, values, slots, marks, begin, lengths = elements
    size = numbers[1] - numbers[0]
    if origin <= EVERY:
        _list(origin == EVERY, key, numbers, count, coordinates, values, wanted, drawn, at)
        return size
    _draw(key, numbers, count, begin, lengths, wanted, drawn, at)
    if origin == ABSENT:
        return _reject(slots, marks, coordinates, wanted, at, size)
    if origin == ANYWHERE:
        _look_up(slots, marks, coordinates, values, wanted, drawn, at, size)
    return size


@inner
def _add(size, weight, less_zero, model, maps, out, part):
    """Evaluate a block of samples, and add their gradient or their sums to `out`."""
    matrix, offsets, solved = model
    (value, slope), lower = maps
    gradients, touched, totals, products, wanted, drawn = out
    loss = change = 0.0
    for q in range(part * BLOCK, part * BLOCK + size):
        x = drawn[q]
        m = _model(matrix, offsets, wanted, products, part, q)
        m = lower if m < lower else m  # NaN propagates
        derivative = call_formula(slope, x, m)
        if less_zero:
            derivative -= call_formula(slope, 0.0, m)
        derivative *= weight
        if gradients.size:
            _scatter(matrix, offsets, solved, wanted, products, derivative, gradients, touched, part, q)
        else:
            f = call_formula(value, x, m)
            if less_zero:
                f -= call_formula(value, 0.0, m)
            loss += weight * f
            change += derivative * m
    totals[part, 0] += loss
    totals[part, 1] += change


@jit
def add_samples(number, team, threads, turn, elements, strata, model, maps, out):
    """Evaluate all samples, a part of each stratum after the other.

    `strata` are origins, counts, whether zeros are subtracted, keys and weights; `model` the matrix (its address,
    whether it is float64, and its columns, a multiple of 8), its rows by mode and the solved modes; `maps` the
    addresses of value and slope, and the lower bound. Of `out`, gradients, (parts * rows * columns,), and touched,
    (parts, rows), are added to; if they are empty, totals, (parts, 2), are. `products`, (parts * order *
    columns,), `wanted`, (parts * BLOCK, order), and `drawn`, (parts * BLOCK,), are scratch.
    """
    origins, counts, less_zero, keys, weights = strata
    wanted, drawn = out[4], out[5]
    if number == 0:
        turn[0] = 0
    called, parts = fork(team, number, threads), len(out[2])
    part = add(turn, 0, 1)
    while part < parts:
        for s in range(origins.size):
            count = counts[s]
            end = count * (part + 1) // parts
            for begin in range(count * part // parts, end, BLOCK):
                numbers = begin, min(begin + BLOCK, end)
                size = _block(origins[s], keys[s], numbers, count, elements, wanted, drawn, part * BLOCK)
                _add(size, weights[s], less_zero[s], model, maps, out, part)
        part = add(turn, 0, 1)
    return join(team, called)


@jit
def join_parts(number, team, threads, turn, gradients, touched):
    """Add the other parts' touched rows to those of the first part, and clear them; a block of rows at a time."""
    parts, rows, columns = gradients.shape
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    block = add(turn, 0, 1)
    while block < threads:
        for row in range(rows * block // threads, rows * (block + 1) // threads):
            for part in range(1, parts):
                if touched[part, row]:
                    for r in range(columns):
                        gradients[0, row, r] += gradients[part, row, r]
                        gradients[part, row, r] = 0.0
                    touched[0, row], touched[part, row] = 1, 0
        block = add(turn, 0, 1)
    return join(team, called)


@jit
def take_step(number, team, threads, turn, matrix, moments, rows, by_mode, rule):
    """Change touched rows, and clear their gradient; see `SampledLoss.step`.

    `by_mode` are offsets, lower bounds, ridges and solved modes. `rule` is the number of moments, the columns, the
    rate, the two betas, the corrections of both moments, and eps.
    """
    gradient, touched = rows
    offsets, lower, ridge, solved = by_mode
    kind, columns, rate, beta, square_beta, correction, square_correction, eps = rule
    first, second = moments
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    block = add(turn, 0, 1)
    while block < threads:
        for mode in range(solved.size):
            begin, length = offsets[mode], offsets[mode + 1] - offsets[mode]
            if not solved[mode]:
                continue
            for row in range(begin + length * block // threads, begin + length * (block + 1) // threads):
                if not (touched[row] or ridge[mode]):
                    continue
                for r in range(columns):
                    g = gradient[row, r] + 2 * ridge[mode] * matrix[row, r]
                    gradient[row, r] = 0.0
                    change = rate * g
                    if kind == ADAM:
                        m = beta * first[row, r] + (1 - beta) * g
                        v = square_beta * second[row, r] + (1 - square_beta) * g * g
                        first[row, r], second[row, r] = m, v
                        change = rate * (m * correction) / (np.sqrt(v * square_correction) + eps)
                    elif kind == ADAGRAD:
                        v = first[row, r] + g * g
                        first[row, r] = v
                        change = rate * g / (np.sqrt(v) + eps)
                    new = matrix[row, r] - change
                    matrix[row, r] = lower[mode] if new < lower[mode] else new
                for r in range(columns, gradient.shape[1]):
                    gradient[row, r] = 0.0
                touched[row] = 0
        block = add(turn, 0, 1)
    return join(team, called)
