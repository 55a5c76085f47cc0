"""Sampled losses, their gradients and stochastic steps; see `amped.backend.ops.sampled`.

The code is compiled once for all losses, orders and ranks. LLVM optimises a function again in each function that calls
it, so that functions with loops are called by the kernel itself, through inlined ones.
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
from ..simd.thread_team import add, fork, inlined, join
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
def _list(every, key, first, size, ratio, coordinates, values, wanted, drawn):
    """Write the coordinates and values of nonzeros."""
    for q in range(size):
        n = first + q
        position = n if every else _in_order(key, n, n, ratio, values.size)
        for k in range(wanted.shape[0]):
            wanted[k, q] = coordinates[position, k]
        drawn[q] = values[position]


@inner
def _draw(key, first, size, ratio, begin, lengths, wanted, drawn):
    """Write coordinates of all elements, and zeros; one mode after the other, so that LLVM vectorises."""
    order = wanted.shape[0]
    for k in range(order):
        column, start, length = wanted[k], begin[k], lengths[k]
        if k:
            for q in range(size):
                column[q] = start + np.int64(_uniform(key, (first + q) * order + k) * length)
        else:
            for q in range(size):
                column[q] = start + _in_order(key, (first + q) * order, first + q, ratio, length)
    for q in range(size):
        drawn[q] = 0.0


@inner
def _hash(wanted, size, hashes):
    """Write the hashes of coordinates; see `coordinate_table`."""
    for q in range(size):
        hashes[q] = np.uint64(0)
    for k in range(wanted.shape[0]):
        column = wanted[k]
        for q in range(size):
            state = (hashes[q] ^ np.uint64(column[q])) * HASH
            hashes[q] = state ^ (state >> HALF)
    for q in range(size):
        hashes[q] = (hashes[q] * STEP) >> HALF


@inner
def _probe(slots, coordinates, wanted, q, place):
    """Return the position of a drawn coordinate, or `EMPTY`; see `coordinate_table.find`."""
    mask = slots.size - 1
    place &= mask
    position = np.int64(slots[place])
    while position != EMPTY:
        same = True
        for k in range(wanted.shape[0]):
            same &= np.int64(coordinates[position, k]) == wanted[k, q]
        if same:
            break
        place = (place + 1) & mask
        position = np.int64(slots[place])
    return position


@inner
def _find(slots, marks, coordinates, wanted, size, hashes, positions):
    """Write the positions of drawn coordinates among the nonzeros, or `EMPTY`; return how many are nonzeros."""
    _hash(wanted, size, hashes)
    present, mask = 0, 8 * marks.size - 1
    for q in range(size):
        place, position = np.int64(hashes[q]), np.int64(EMPTY)
        mark = place & mask
        if (marks[mark >> 3] >> (mark & 7)) & 1:
            position = _probe(slots, coordinates, wanted, q, place)
            present += position != EMPTY
        positions[q] = position
    return present


@inner
def _reject(wanted, size, positions):
    """Keep the drawn coordinates that are absent, in the first places; return how many there are."""
    kept = 0
    for q in range(size):
        for k in range(wanted.shape[0]):
            wanted[k, kept] = wanted[k, q]
        kept += positions[q] == EMPTY
    return kept


@inlined
def _block(origin, key, first, size, count, elements, scratch):
    """Write the coordinates and values of a block of samples; return how many count."""
    coordinates, values, slots, marks, begin, lengths = elements
    wanted, drawn, hashes, positions = scratch
    if origin <= EVERY:
        _list(origin == EVERY, key, first, size, values.size / count, coordinates, values, wanted, drawn)
        return size
    _draw(key, first, size, lengths[0] / count, begin, lengths, wanted, drawn)
    if origin != BLIND and _find(slots, marks, coordinates, wanted, size, hashes, positions):
        if origin == ABSENT:
            return _reject(wanted, size, positions)
        for q in range(size):
            if positions[q] != EMPTY:
                drawn[q] = values[positions[q]]
    return size


@inner
def _multiply(matrix, rows, first, size, products):
    """Write the products of the factor rows up to each mode."""
    address, wide, columns = matrix
    for k in range(rows.shape[0]):
        places, out = rows[k, first : first + size], products[k]
        before = products[k - 1 if k else 0]
        for c in range(0, columns, EIGHT):
            for q in range(size):
                product = eight(address, places[q] + c, wide, columns)
                if k:
                    product = times(product, load(before, q * columns + c))
                store(out, q * columns + c, product)


@inner
def _scatter(matrix, solved, rows, first, size, products, slopes, gradient):
    """Add the gradients of samples, from the last mode to the first; the products of all modes are overwritten."""
    address, wide, columns = matrix
    final = rows.shape[0] - 1
    others = products[final]
    for k in range(final, -1, -1):
        places, before = rows[k, first : first + size], products[k - 1 if k else 0]
        for c in range(0, columns, EIGHT):
            for q in range(size):
                at, place = q * columns + c, places[q] + c
                rest = each(slopes[first + q]) if k == final else load(others, at)
                if solved[k]:
                    whole = times(rest, load(before, at)) if k else rest
                    store(gradient, place, plus(load(gradient, place), whole))
                if k:
                    store(others, at, times(rest, eight(address, place, wide, columns)))


@inner
def _models(product, columns, first, size, lower, models):
    """Write the model's values at samples, at least `lower`."""
    for q in range(size):
        result = each(0.0)
        for c in range(0, columns, EIGHT):
            result = plus(result, load(product, q * columns + c))
        m = total(result)
        models[first + q] = lower if m < lower else m  # NaN propagates


@inner
def _evaluate(formula, less_zero, first, size, drawn, models, weight, out):
    """Write a formula at samples, less that of zeros if `less_zero`, times a weight."""
    for q in range(first, first + size):
        result = call_formula(formula, drawn[q], models[q])
        if less_zero:
            result -= call_formula(formula, 0.0, models[q])
        out[q] = weight * result


@inlined
def _add(size, weight, less_zero, model, maps, sums, scratch):
    """Evaluate a block of samples, and add their gradient; or, if it is empty, their loss and its derivative."""
    matrix, offsets, solved = model
    (value, slope), lower = maps
    gradient, touched, totals = sums
    wanted, drawn, rows, products, models, slopes = scratch
    step = products.shape[1] // matrix[2]
    for k in range(wanted.shape[0]):
        for q in range(size):
            rows[k, q] = (offsets[k] + wanted[k, q]) * matrix[2]
        if solved[k] and gradient.size:
            for q in range(size):
                touched[offsets[k] + wanted[k, q]] = 1
    for first in range(0, size, step):
        some = min(step, size - first)
        _multiply(matrix, rows, first, some, products)
        _models(products[-1], matrix[2], first, some, lower, models)
        _evaluate(slope, less_zero, first, some, drawn, models, weight, slopes)
        if gradient.size:
            _scatter(matrix, solved, rows, first, some, products, slopes, gradient)
    if not gradient.size:
        for q in range(size):
            totals[1] += slopes[q] * models[q]
        _evaluate(value, less_zero, 0, size, drawn, models, weight, slopes)
        for q in range(size):
            totals[0] += slopes[q]


@jit
def add_samples(number, team, threads, turn, elements, strata, model, maps, out, scratch):
    """Evaluate all samples, a part of each stratum after the other.

    `strata` are origins, counts, whether zeros are subtracted, keys and weights; `model` the matrix (its address,
    whether it is float64, and its columns, a multiple of 8), its rows by mode and the solved modes; `maps` the
    addresses of value and slope, and the lower bound. Of `out`, gradients, (parts, rows * columns), and touched,
    (parts, rows), are added to; if they are empty, totals, (parts, 2), are. `scratch` has, for each part, coordinates
    and rows, (order, BLOCK), hashes and positions, values, models and slopes, (BLOCK,), and products,
    (order, samples evaluated at a time * columns).
    """
    origins, counts, less_zero, keys, weights = strata
    gradients, touched, totals = out
    wanted, rows, hashes, positions, drawn, models, slopes, products = scratch
    if number == 0:
        turn[0] = 0
    called, parts = fork(team, number, threads), len(totals)
    part = add(turn, 0, 1)
    while part < parts:
        draws = wanted[part], drawn[part], hashes[part], positions[part]
        buffers = wanted[part], drawn[part], rows[part], products[part], models[part], slopes[part]
        sums = gradients[part], touched[part], totals[part]
        for s in range(origins.size):
            count = counts[s]
            end = count * (part + 1) // parts
            for begin in range(count * part // parts, end, BLOCK):
                size = _block(origins[s], keys[s], begin, min(BLOCK, end - begin), count, elements, draws)
                _add(size, weights[s], less_zero[s], model, maps, sums, buffers)
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
                    for c in range(0, columns, EIGHT):
                        to, at = row * columns + c, (part * rows + row) * columns + c
                        store(gradients, to, plus(load(gradients, to), load(gradients, at)))
                        store(gradients, at, each(0.0))
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
