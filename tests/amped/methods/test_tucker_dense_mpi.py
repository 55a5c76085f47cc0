"""Tucker decompositions of dense tensors over all ranks."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from tuckers import assert_same_spaces, dense_hooi, dense_hosvd

import amped
from amped.operators.dense import block as dense_block
from amped.operators.dense.core import DenseCore
from amped.parallel.mpi import Comm

pytestmark = pytest.mark.mpi
CASES = [((9, 7), (3, 3)), ((2, 8, 7), (2, 2, 4)), ((4, 6, 5, 3), (2, 3, 2, 2)), ((1, 5, 6), (1, 3, 3))]


@pytest.mark.parametrize(("shape", "ranks"), CASES)
def test_hooi_takes_the_path_of_an_oracle(
    comm: Comm, device: str, shape: tuple[int, ...], ranks: tuple[int, ...]
) -> None:
    """Some modes are shorter than there are ranks."""
    dense = np.random.default_rng(1).random(shape)
    start = [np.random.default_rng([n, r]).random((n, r)) for n, r in zip(shape, ranks, strict=True)]
    _, fits = dense_hooi(dense, start, 4)
    mine = dense if comm.rank == 0 else None
    model = amped.tucker(mine, ranks, init=start, max_iters=4, tol=0, precision="fp64", device=device)
    np.testing.assert_allclose(model.fits, fits, atol=1e-12)
    same = (model.core.tobytes(), *(f.tobytes() for f in model.factors))
    assert all(other == same for other in comm.allgather(same))


@pytest.mark.parametrize("method", ["hosvd", "sthosvd"])
@pytest.mark.parametrize(("shape", "ranks"), CASES)
def test_spectra(comm: Comm, device: str, shape: tuple[int, ...], ranks: tuple[int, ...], method: str) -> None:
    dense = np.random.default_rng(1).random(shape)
    mine = dense if comm.rank == 0 else None
    model = amped.tucker(mine, ranks, method=method, precision="fp64", device=device)
    turned = dense_hosvd(dense.transpose(), ranks[::-1], True)[::-1]
    want = turned if method == "sthosvd" else dense_hosvd(dense, ranks, False)
    assert_same_spaces(model.factors, want, 1e-6)


def test_blocks_of_some_ranks_alone_leave_the_device(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks have one index of the slowest mode, or two: with the right memory two are too many."""
    monkeypatch.setattr(dense_block, "HOST_PIECE", 16)
    dense, leaves = np.random.default_rng(1).random((2 * comm.size - 1, 100, 100)), list[bool]()
    make_room = DenseCore._reserve

    def noted(core: DenseCore, source: Any) -> None:
        leaves.append(core.plan.slot > 0 and core._block.resident)
        make_room(core, source)

    monkeypatch.setattr(DenseCore, "_reserve", noted)
    mine, fits = dense if comm.rank == 0 else None, list[float]()
    for memory in range(200_000, 1_000_000, 40_000):
        with suppress(amped.InputError):  # too little of it
            model = amped.tucker(mine, (1, 10, 10), max_iters=2, device="cpu", precision="fp64", device_memory=memory)
            fits.append(model.fits[-1])
    np.testing.assert_allclose(fits, [fits[0]] * len(fits), rtol=1e-13)
    differ = [len(set(each)) > 1 for each in zip(*comm.allgather(leaves), strict=True)]
    assert comm.size == 1 or any(differ)
