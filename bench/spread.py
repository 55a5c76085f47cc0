"""Medians and spread of repeated measurements, and ratios of two series that were measured in turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement

import numpy as np

CONFIDENCE = 0.95


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the spread of repeated measurements."""
    low, median, high = np.percentile(values, (25, 50, 75))
    return {"median": float(median), "quartile_1": float(low), "quartile_3": float(high), "runs": len(values)}


def ratio(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Return `first` over `second`, measured in pairs, with a confidence interval.

    The estimate is that of Hodges and Lehmann on logarithms, and the interval inverts Wilcoxon's signed-rank test: a
    few disturbed pairs hardly move either. With fewer than six pairs the interval is their whole range, and
    `confidence` is less than 95 %.
    """
    logs = np.log(np.divide(first, second))
    averages = np.sort([(a + b) / 2 for a, b in combinations_with_replacement(logs, 2)])
    ways = np.ones(1)  # in which signed ranks add up to 0, 1, 2, ...
    for rank in range(1, len(logs) + 1):
        ways = np.convolve(ways, np.bincount([0, rank]))
    below = np.cumsum(ways) / ways.sum()
    outside = max(1, int(np.searchsorted(below, (1 - CONFIDENCE) / 2, side="right")))
    low, middle, high = np.exp((averages[outside - 1], np.median(averages), averages[-outside]))
    confidence = 1 - 2 * below[outside - 1]
    return {
        "ratio": float(middle), "low": float(low), "high": float(high), "confidence": float(confidence),
        "pairs": len(logs),
    }  # fmt: skip
