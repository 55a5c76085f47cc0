"""Sparse products of NumPy and SciPy: MTTKRP, TTMc and Phi of all modes from one copy of the nonzeros.

The modes are split into a first and a second group. Each distinct index tuple of a group is a leaf of a tree of index
prefixes, and the nonzeros are a sparse matrix with a row per leaf of the first tree and a column per leaf of the second
one. Its product with the Khatri-Rao rows of one tree serves all modes of the other tree. There are usually far fewer
leaves than nonzeros, so that only these two products per iteration read the nonzeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats, Integers
from partitioner.host.imports import scipy_module

from ..formulas import evaluate
from ..losses import Maps
from ..systems import Pairs
from .index_tree import POSITION, Factors, IndexTree, Matrix, required
from .splits import marked, prefix_starts, split_of

csr_array = scipy_module("sparse").csr_array

BLOCK = 1 << 12  # nonzeros for which values of the model are computed at a time, in the caches of a core


class _Mapped(NamedTuple):
    """The formulas of a loss at the current model, from which all modes' gradients follow."""

    maps: Maps
    weights: Any  # the matrix between the trees
    values: Floats | None
    leaf_rows: list[Matrix | None]  # see `Tree`

    def serves(self, maps: Maps) -> bool:
        """Return whether these weights, and values if there are to be any, are those of `maps`."""
        same = self.maps.weight == maps.weight and self.maps.lower == maps.lower
        return same and maps.value in (None, self.maps.value)


class OtherRows(NamedTuple):
    """For each nonzero, the product of the factor rows of all modes but the first, computed for some at a time.

    Each group of modes has the rows of its leaves and the leaf of each nonzero; `first` is None if that group is the
    first mode.
    """

    second: tuple[Matrix, Integers]
    first: tuple[Matrix, Integers] | None

    def of(self, nonzeros: slice) -> Matrix:
        """Return the products for some nonzeros, (nonzeros, R)."""
        leaf_rows, leaves = self.second
        rows: Matrix = np.take(leaf_rows, leaves[nonzeros], axis=0)
        if self.first is not None:
            leaf_rows, leaves = self.first
            rows *= np.take(leaf_rows, leaves[nonzeros], axis=0)
        return rows


class Tree:
    """The nonzeros of a tensor as a sparse matrix, whose rows and columns are the leaves of two `IndexTree`.

    Nonzeros are in lexicographic order, without duplicates.
    """

    def __init__(self, columns: Sequence[Integers], values: Floats, lengths: Sequence[int]) -> None:
        self.values: NDArray[np.float64] = np.asarray(values, np.float64)
        self.lengths, self.rows = tuple(lengths), columns[0]
        starts = list(prefix_starts(columns))
        self.split = split = split_of(columns, [int(np.count_nonzero(differs)) for differs in starts], lengths)
        first, ends = _first_leaves(columns[0], starts[split - 1], lengths[0] if split == 1 else None)
        second, leaves = _second_leaves(columns[split:], lengths[split:])
        tree = IndexTree([column[first] for column in columns[:split]], lengths[:split])
        self._trees = tree, IndexTree(second, lengths[split:])
        self._matrix = csr_array((self.values, leaves, ends), shape=(ends.size - 1, self._trees[1].leaves))
        self._leaf_rows: list[Matrix | None] = [None, None]  # of each tree: products with the rows of the other tree
        self._mapped: _Mapped | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of the trees and the matrix, without values and products."""
        return sum(tree.nbytes for tree in self._trees) + int(self._matrix.indices.nbytes + self._matrix.indptr.nbytes)

    def mttkrp(self, mode: int, factors: Factors) -> Matrix:
        """Return the MTTKRP of a mode, (I_mode, R); the mode's own factor matrix is not used."""
        group, place = self._place(mode)
        self._update(factors)
        leaf_rows = self._leaf_rows[group]
        if leaf_rows is None:
            leaf_rows = self._leaf_rows[group] = self._multiply(self._matrix, group, self._trees[1 - group].products())
        return self._trees[group].mttkrp(place, leaf_rows)

    @cached_property
    def pattern(self) -> Tree:
        """The same tensor with ones instead of its values, for other factor matrices."""
        result, first, second = copy(self), *self._trees
        result.values, result._leaf_rows, result._mapped = np.ones(self.values.size), [None, None], None
        result._trees = first.without_factors(), second.without_factors()
        result._matrix = self._with(result.values)
        result._transposed = result._matrix.T
        return result

    def ttmc(self, mode: int, factors: Factors) -> Floats:
        """Return the TTMc of a mode, (I_mode, product of the other columns); the last mode's columns vary fastest."""
        group, place = self._place(mode)
        groups = factors[: self.split], factors[self.split :]
        other = self._trees[1 - group].kronecker_rows(groups[1 - group])
        rows = self._trees[group].ttmc(place, groups[group], self._multiply(self._matrix, group, other))
        if group:  # the columns of the first group came last
            rows = rows.reshape(len(rows), -1, other.shape[1]).swapaxes(1, 2).reshape(len(rows), -1)
        return rows

    def phi(self, mode: int, factors: Factors, own: Matrix, floor: float) -> Matrix:
        """Return the MTTKRP of each value divided by the model's value; `own` is the mode's factor matrix."""
        group, place = self._place(mode)
        quotients = self.values / np.maximum(self._model(mode, factors, own), floor)
        leaf_rows = self._multiply(self._with(quotients), group, self._trees[1 - group].products())
        return self._trees[group].mttkrp(place, leaf_rows)

    def logs(self, mode: int, factors: Factors, own: Matrix, floor: float) -> float:
        """Return the sum of each value times the logarithm of the model's value."""
        return float(self.values @ np.log(np.maximum(self._model(mode, factors, own), floor)))

    def squares(self, mode: int, factors: Factors, own: Matrix, rows: Any = None) -> float:
        """Return the sum of the squared differences of the values from the model's values, in some rows of a mode."""
        differences = self.values - self._model(mode, factors, own)
        if rows is None:
            return float(differences @ differences)
        return float(self._row_totals(mode, differences * differences)[rows].sum())

    def row_systems(self, mode: int, factors: Factors, own: Matrix, maps: Maps) -> Matrix:
        """Return the gradient, second derivatives and value of each row of a mode; see `backend.ops.row_systems`."""
        changed = self._update([*factors[:mode], own, *factors[mode + 1 :]])
        if changed or self._mapped is None or not self._mapped.serves(maps):
            model: NDArray[np.float64] = np.maximum(self._current_model(), maps.lower)
            wanted = [each for each in (maps.weight, maps.value) if each is not None]
            weights, *values = evaluate(wanted, self.values, model)
            self._mapped = _Mapped(maps, self._with(weights), values[0] if values else None, [None, None])
        group, place = self._place(mode)
        leaf_rows = self._mapped.leaf_rows[group]
        if leaf_rows is None:
            leaf_rows = self._multiply(self._mapped.weights, group, self._trees[1 - group].products())
            self._mapped.leaf_rows[group] = leaf_rows
        gradient = self._trees[group].mttkrp(place, leaf_rows)
        numbers = None if maps.value is None else self._mapped.values
        parts = [gradient, np.zeros(len(gradient)) if numbers is None else self._row_totals(mode, numbers)]
        if maps.curve is not None:
            curves = maps.curve(self.values, np.maximum(self._current_model(), maps.lower))
            parts.insert(1, self._second_derivatives(mode, curves * np.ones_like(self.values), factors))
        return np.column_stack(parts)

    def _second_derivatives(self, mode: int, curves: Floats, factors: Factors) -> Matrix:
        """Return the sum of ``curve v v^T`` of each row of a mode, (I_mode, R * R): the MTTKRP of pairs of columns."""
        tree = self.pattern
        if not (curves == 1).all():
            tree = copy(tree)
            tree._matrix, tree._leaf_rows = self._with(curves), [None, None]
        others = [None if m == mode else np.asarray(each, np.float64) for m, each in enumerate(factors)]
        pairs = Pairs(next(each.shape[1] for each in others if each is not None))
        rows = tree.mttkrp(mode, [None if each is None else pairs.products(each.T).T for each in others])
        return rows[:, pairs.index.reshape(-1)]

    def _row_totals(self, mode: int, numbers: Floats) -> NDArray[np.float64]:
        """Return the sum of the numbers of all nonzeros in each row of a mode."""
        group, place = self._place(mode)
        tree = self._trees[group].without_factors()
        lengths = self.lengths[self.split :] if group else self.lengths[: self.split]
        for number, length in enumerate(lengths):
            tree.update(number, np.ones((length, 1)))
        ones = np.ones((self._trees[1 - group].leaves, 1))
        return np.asarray(tree.mttkrp(place, self._multiply(self._with(numbers), group, ones))[:, 0])

    def _place(self, mode: int) -> tuple[int, int]:
        """Return the group of a mode and its number within the group."""
        return (0, mode) if mode < self.split else (1, mode - self.split)

    def _update(self, factors: Factors) -> bool:
        """Set the factor matrices; discard the products of those that have changed, and return whether any has."""
        changed = False
        for mode, factor in enumerate(factors):
            group, place = self._place(mode)
            if factor is not None and self._trees[group].update(place, factor):
                self._leaf_rows[1 - group], changed = None, True
        return changed

    def _with(self, values: Floats) -> Any:
        """Return the matrix of the nonzeros with other values."""
        return csr_array((values, self._matrix.indices, self._matrix.indptr), shape=self._matrix.shape)

    def _multiply(self, matrix: Any, group: int, rows: Floats) -> Matrix:
        """Return the product of the nonzeros with the rows of the other group's leaves."""
        if group:
            matrix = self._transposed if matrix is self._matrix else matrix.T
        return matrix @ rows  # type: ignore[no-any-return]

    def _model(self, mode: int, factors: Factors, own: Matrix) -> NDArray[np.float64]:
        """Return the model's value at each nonzero."""
        self._update([*factors[:mode], own, *factors[mode + 1 :]])
        return self._current_model()

    def _current_model(self) -> NDArray[np.float64]:
        first, second = (tree.products() for tree in self._trees)
        model = np.empty(self.values.size)
        for begin in range(0, model.size, BLOCK):
            block = slice(begin, begin + BLOCK)
            one, other = np.take(first, self._first_leaf[block], axis=0), self._matrix.indices[block]
            np.einsum("pr,pr->p", one, np.take(second, other, axis=0), out=model[block])
        return model

    def other_rows(self, factors: Factors) -> OtherRows:
        """Return the products of the factor rows of all modes but the first; the first factor matrix is not used."""
        rank = required(factors[1]).shape[1]
        self._update([np.ones((self.lengths[0], rank)), *factors[1:]])
        first = (self._trees[0].products(), self._first_leaf) if self.split > 1 else None
        return OtherRows((self._trees[1].products(), self._matrix.indices), first)

    @cached_property
    def _transposed(self) -> Any:
        """The transposed matrix, whose creation takes as long as a product of a few thousand nonzeros."""
        return self._matrix.T

    @cached_property
    def _first_leaf(self) -> Integers:
        """The leaf of each nonzero in the first tree."""
        counts = np.diff(self._matrix.indptr)
        return np.repeat(np.arange(counts.size, dtype=POSITION), counts)


def _first_leaves(column: Integers, differs: NDArray[np.bool_], rows: int | None) -> tuple[NDArray[np.intp], Integers]:
    """Return the first nonzero of each leaf of the first tree, and the row pointers of the leaves (0, then each end).

    If the tree has a single mode, `rows` is its length, and all of its indices are leaves; otherwise it is None.
    """
    first = np.flatnonzero(differs)
    if rows is None:
        return first, np.append(first, column.size).astype(POSITION)
    return first, np.searchsorted(column, np.arange(rows + 1)).astype(POSITION)


def _second_leaves(columns: Sequence[Integers], lengths: Sequence[int]) -> tuple[Sequence[Integers], Integers]:
    """Return the indices of the leaves of the second tree, and the leaf of each nonzero."""
    if len(columns) == 1:
        return columns, columns[0].astype(POSITION, copy=False)
    exists, numbers = marked(columns, lengths)
    leaf = np.cumsum(exists, dtype=POSITION) - 1
    return np.unravel_index(np.flatnonzero(exists), lengths), leaf[numbers].astype(POSITION, copy=False)
