"""Random nonzeros, each a function of its number, so that any rank can draw any nonzero and all agree.

Nonzero number `p` is drawn by ``splitmix64``, with one stream per mode and one for the values. Host and GPU give the
same results but for the last bit of ``exp`` and ``pow``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from amped.backend.cuda.source import REALS, compile_options
from amped.backend.device import Array
from partitioner.array_types import FloatDType, Floats

Numbers = range | Array
"""Numbers of nonzeros: a range, or an int64 array."""

GOLDEN = 0x9E3779B97F4A7C15
MIX = (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)
SCRAMBLE, OFFSET = 2654435761, 12345  # spread the popular indices over the mode
WHOLE = 200  # the largest integer value
WORD = (1 << 64) - 1
THREADS = 256


@dataclass(frozen=True)
class Recipe:
    """The parameters of a synthetic tensor."""

    lengths: tuple[int, ...]
    nonzeros: int
    skew: float = 0.6  # exponent of the bounded Zipf distribution of the indices; 0 is uniform
    heavy: float = 0.0  # share of the nonzeros in one row of mode 0, in addition to those of the distribution
    integers: bool = False  # values are integers from 1 to 200 instead of uniform in (0, 1]
    seed: int = 1

    def key(self, stream: int) -> int:
        """Return the start state of a stream of random numbers."""
        return splitmix64(splitmix64(self.seed) + stream)

    def rng(self, xp: ModuleType) -> CounterRng:
        """Return the generator of the nonzeros for `xp`, NumPy or CuPy."""
        return HostRng(self) if xp is np else DeviceRng(self)


def splitmix64(state: int) -> int:
    """Return the 64-bit output of SplitMix64 for a state."""
    z = (state + GOLDEN) & WORD
    for shift, factor in MIX:
        z = ((z ^ (z >> shift)) * factor) & WORD
    return z ^ (z >> 31)


class CounterRng(Protocol):
    """The nonzeros of a recipe, on the host or on a GPU."""

    def indices(self, mode: int, numbers: Numbers) -> Array:
        """Return the int32 indices of one mode."""

    def values(self, numbers: Numbers, dtype: FloatDType) -> Array:
        """Return the values, which are exact in single precision."""

    def counts(self, mode: int, numbers: range) -> NDArray[np.int64]:
        """Return the number of these nonzeros in each row of a mode, in host memory."""


class HostRng:
    """See `CounterRng`."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def indices(self, mode: int, numbers: Numbers) -> NDArray[np.int32]:
        """See `CounterRng`."""
        recipe, length = self._recipe, self._recipe.lengths[mode]
        uniform = (_mixed(recipe.key(mode), numbers) >> np.uint64(11)) * 2.0**-53
        heavy = _heavy(recipe, mode)
        if heavy:
            uniform = np.maximum(uniform - heavy, 0) / (1 - heavy)
        kind, span, power = _inverse(recipe.skew, length)
        if kind == 0:
            index = uniform * length
        else:
            index = (np.exp(uniform * span) if kind == 1 else (uniform * span + 1) ** power) - 1
        whole = np.clip(index.astype(np.int64), 0, length - 1)
        return ((whole * SCRAMBLE + OFFSET) % length).astype(np.int32)

    def values(self, numbers: Numbers, dtype: FloatDType) -> Floats:
        """See `CounterRng`."""
        bits = _mixed(self._recipe.key(len(self._recipe.lengths)), numbers)
        if self._recipe.integers:
            return (1 + ((bits >> np.uint64(32)) * np.uint64(WHOLE) >> np.uint64(32))).astype(dtype)
        return (((bits >> np.uint64(40)) + np.uint64(1)) * 2.0**-24).astype(dtype)

    def counts(self, mode: int, numbers: range) -> NDArray[np.int64]:
        """See `CounterRng`."""
        return np.bincount(self.indices(mode, numbers), minlength=self._recipe.lengths[mode])


class DeviceRng:
    """See `CounterRng`; ``counter_rng.cu`` on the current GPU and stream."""

    def __init__(self, recipe: Recipe) -> None:
        import cupy

        self._recipe, self._xp = recipe, cupy
        self._blocks = 16 * cupy.cuda.Device().attributes["MultiProcessorCount"]

    def indices(self, mode: int, numbers: Numbers) -> Array:
        """See `CounterRng`."""
        out = self._xp.empty(len(numbers), np.int32)
        self._launch("indices", np.dtype(np.float32), distribution(self._recipe, mode), *_named(numbers), out)
        return out

    def values(self, numbers: Numbers, dtype: FloatDType) -> Array:
        """See `CounterRng`."""
        out = self._xp.empty(len(numbers), dtype)
        key = np.uint64(self._recipe.key(len(self._recipe.lengths)))
        self._launch("values", dtype, key, np.int32(WHOLE * self._recipe.integers), *_named(numbers), out)
        return out

    def counts(self, mode: int, numbers: range) -> NDArray[np.int64]:
        """See `CounterRng`."""
        rows = self._xp.zeros(self._recipe.lengths[mode], np.int64)
        begin, _, count = _named(numbers)
        self._launch("counts", np.dtype(np.float32), distribution(self._recipe, mode), begin, count, rows)
        result: NDArray[np.int64] = self._xp.asnumpy(rows)
        return result

    def _launch(self, name: str, dtype: FloatDType, *arguments: object) -> None:
        module = _module(dtype, self._xp.cuda.Device().id)
        module.get_function(name)((self._blocks,), (THREADS,), arguments)


def text() -> str:
    """Return the CUDA source."""
    return Path(__file__).with_suffix(".cu").read_text()


@cache
def _module(dtype: FloatDType, device: int) -> Any:
    import cupy

    return cupy.RawModule(code=text(), options=compile_options({"REAL": REALS[dtype]}))


def distribution(recipe: Recipe, mode: int) -> Any:
    """Return the distribution of a mode's indices as a structure that kernels take by value."""
    names = [("key", "u8"), ("length", "i8"), ("heavy", "f8"), ("span", "f8"), ("power", "f8"), ("kind", "i4")]
    packed = np.zeros(1, np.dtype(names, align=True))
    kind, span, power = _inverse(recipe.skew, recipe.lengths[mode])
    packed[0] = recipe.key(mode), recipe.lengths[mode], _heavy(recipe, mode), span, power, kind
    return np.frombuffer(packed.tobytes(), np.dtype((np.void, packed.nbytes)))[0]


def _heavy(recipe: Recipe, mode: int) -> float:
    return recipe.heavy if mode == 0 else 0.0


def _inverse(skew: float, length: int) -> tuple[int, float, float]:
    """Return kind, span and power of the inverse of the bounded Zipf distribution."""
    if skew == 0:
        return 0, 0.0, 0.0
    if skew == 1:
        return 1, math.log(length), 0.0
    return 2, length ** (1 - skew) - 1, 1 / (1 - skew)


def _named(numbers: Numbers) -> Sequence[Any]:
    if isinstance(numbers, range):
        return np.uint64(numbers.start), np.uint64(0), np.int64(len(numbers))
    return np.uint64(0), numbers, np.int64(len(numbers))


def _mixed(key: int, numbers: Numbers) -> NDArray[np.uint64]:
    """Return `splitmix64` of each number, in the stream of `key`."""
    at = np.arange(numbers.start, numbers.stop) if isinstance(numbers, range) else numbers
    z = (at.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN) + np.uint64(key)
    for shift, factor in MIX:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(z ^ (z >> np.uint64(31)))
