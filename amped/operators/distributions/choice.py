"""The choice of a distribution: the candidates, in the order of their forecast times."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

from .forecast import Candidate, CostModel, Layers, Workload, forecast
from .machine_model import MachineModel
from .traffic import RankDistribution, node_count

MOST_GRIDS = 8  # grids whose cuts are computed
MOST_BALANCED = 3  # grids of which the fullest blocks are computed, if they can be

Fullest = Callable[[Sequence[RankDistribution]], Sequence[float]]
"""Returns for each grid the nonzeros of its fullest block relative to the mean."""


def choose(
    work: Workload,
    machine: MachineModel,
    ranks: int,
    most: int = MOST_GRIDS,
    compact: Workload | None = None,
    fullest: Fullest | None = None,
) -> list[Candidate]:
    """Return the candidates, the fastest first. Collective if ``work.cut`` is.

    All grids are forecast with equal layers; the cuts of the `most` best ones are then computed, and of the best of
    these the fullest blocks.

    Parameters
    ----------
    work : Workload
    machine : MachineModel
        Equal on all ranks.
    ranks : int
    most : int
        Number of grids.
    compact : Workload, optional
        The workload without grids, if factor matrices then have fewer rows; see `amped.operators.kept_rows`.
    fullest : callable, optional
        See `Fullest`. By default blocks have as many nonzeros as the layers let expect.
    """
    others = [RankDistribution("all-gather", ranks, one_copy=(compact or work).one_copy)]
    if ranks > 1 and machine.replicates:
        others.append(RankDistribution("replicated", ranks))
    found = [forecast(each, compact or work, machine) for each in others]
    if ranks > 1:
        on_grids = _ranked([forecast(grid, work, machine) for grid in best_grids(work, machine, ranks, most)])
        best = [each.distribution for each in on_grids[:MOST_BALANCED]]
        if fullest and best:
            known = zip(best, fullest(best), strict=True)
            on_grids[: len(best)] = [forecast(grid, work, machine, of_grid) for grid, of_grid in known]
        found += on_grids
    return _ranked(found)


def _ranked(found: Iterable[Candidate]) -> list[Candidate]:
    return sorted(found, key=lambda candidate: candidate.seconds.total)


def best_grids(work: Workload, machine: MachineModel, ranks: int, most: int = MOST_GRIDS) -> list[RankDistribution]:
    """Return the grids of least forecast time if all layers had equal numbers of rows."""
    model, even = CostModel(work, machine, ranks), {}

    def seconds(grid: RankDistribution) -> float:
        if grid.parts not in even:
            even[grid.parts] = [Layers.even(n, p) for n, p in zip(work.shape, grid.parts, strict=True)]
        return model.seconds(grid, even[grid.parts]).total

    best: dict[tuple[int, ...], tuple[float, RankDistribution]] = {}
    for grid in grids(work.shape, ranks, node_count(ranks, machine.links.ranks_per_node)):
        found = seconds(grid), grid
        best[grid.parts] = min(best.get(grid.parts, found), found, key=lambda pair: pair[0])
    return [grid for _, grid in heapq.nsmallest(most, best.values(), key=lambda pair: pair[0])]


def grids(shape: tuple[int, ...], ranks: int, nodes: int) -> Iterator[RankDistribution]:
    """Yield the grids of `ranks` blocks on `nodes` nodes, each mode with at most as many layers as rows."""
    nodes = nodes if ranks % nodes == 0 else 1

    def extended(mode: int, ranks_left: int, nodes_left: int) -> Iterator[tuple[tuple[int, int], ...]]:
        if mode == len(shape):
            if ranks_left == nodes_left == 1:
                yield ()
            return
        for parts in _divisors(ranks_left):
            if parts > shape[mode]:
                continue
            for of_nodes in _divisors(math.gcd(parts, nodes_left)):
                for rest in extended(mode + 1, ranks_left // parts, nodes_left // of_nodes):
                    yield ((parts, of_nodes), *rest)

    for pairs in extended(0, ranks, nodes):
        parts, of_nodes = zip(*pairs, strict=True)
        yield RankDistribution("grid", ranks, tuple(parts), tuple(of_nodes))


@cache
def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
