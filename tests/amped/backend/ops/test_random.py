"""Random matrices that a device draws: those of NumPy's generator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amped.backend.choose import choose
from amped.backend.ops.random import RANDOM, WORD, RandomStream
from amped.methods.initial import random_factor
from amped.parallel.mpi import world


@pytest.mark.parametrize("count", [0, 1, 2, 63, 2**20 + 7, 3 * 2**40])
def test_steps_at_once(count: int) -> None:
    stream, ahead = RandomStream.of([5, 1]), np.random.PCG64([5, 1]).advance(count)
    factor, term = stream.step.times(count)
    assert (stream.state * factor + term) & WORD == ahead.state["state"]["state"]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("rows", "rank"), [(0, 3), (1, 1), (7, 33), (20_011, 16), (400_003, 7)])
def test_the_numbers_of_numpy(device: str, rows: int, rank: int, dtype: str) -> None:
    """Bit for bit, and only the columns of the matrix are written."""
    backend: Any = choose(device, world())
    random = RANDOM.first(backend)
    if random is None:
        pytest.skip("matrices in host memory are drawn by NumPy")
    for seed, padding in ((0, 0), (2**63, 3)):
        held = backend.to_device(np.full((rows, rank + padding), 7, dtype))
        random.draw(held[:, :rank], RandomStream.of([seed, 2]))
        found = backend.to_host(held)
        np.testing.assert_array_equal(found[:, :rank], random_factor(rows, rank, seed, 2, np.dtype(dtype)))
        assert np.all(found[:, rank:] == 7)
