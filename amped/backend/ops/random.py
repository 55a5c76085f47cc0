"""The random operation: matrices of random numbers, drawn in a device's memory.

The numbers are those of `numpy.random.Generator(PCG64(seeds)).random`, bit for bit. PCG64 (O'Neill 2014) steps a
128-bit linear congruential generator, ``state * MULTIPLIER + increment``; a composition of steps has the same form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ..device import Array
from ..registry import Op

MULTIPLIER, WORD = 0x2360ED051FC65DA44385DF649FCCF645, (1 << 128) - 1


class LinearSteps(NamedTuple):
    """Some steps of the generator at once: ``state * factor + term``, modulo 2**128."""

    factor: int
    term: int

    def then(self, other: LinearSteps) -> LinearSteps:
        """Return these steps, then others."""
        return LinearSteps(self.factor * other.factor & WORD, (self.term * other.factor + other.term) & WORD)

    def times(self, count: int) -> LinearSteps:
        """Return these steps `count` times."""
        result, power = LinearSteps(1, 0), self
        while count:
            result = result.then(power) if count & 1 else result
            power, count = power.then(power), count >> 1
        return result


class RandomStream(NamedTuple):
    """A stream of random numbers: its state, before the first number, and a step."""

    state: int
    step: LinearSteps

    @classmethod
    def of(cls, seeds: Sequence[int]) -> RandomStream:
        """Return the stream of ``PCG64(seeds)``."""
        words = np.random.PCG64(list(seeds)).state["state"]
        return cls(words["state"], LinearSteps(MULTIPLIER, words["inc"]))


class RandomProvider(Protocol):
    """A provider of the operation."""

    def draw(self, matrix: Array, stream: RandomStream) -> None:
        """Queue the replacement of a (rows, R) float32 or float64 device array by a stream's numbers, row by row."""


RANDOM = Op[RandomProvider]("random")
"""Only GPUs have a provider."""
