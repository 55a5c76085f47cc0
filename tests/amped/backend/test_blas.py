"""The threads of the caller's linear algebra."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import threadpoolctl

import amped
from amped.errors import InputError

TENSOR = amped.SparseTensor([[0, 1, 2], [2, 2, 0]], [1.0, 2.0])


def blas_threads() -> list[int]:
    pools = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return [pool.num_threads for pool in pools]


SCIPY = """
import numpy as np
import threadpoolctl
import amped

def threads():
    pools = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return {pool.filepath: pool.num_threads for pool in pools}

def start(callback):
    amped.cp_als(np.random.default_rng(0).random((3, 100, 4)), 2, max_iters=2, device="cpu", threads=1, init="nvecs",
                 callback=callback)

before, inside = threads(), []
INNER
assert all(set(each.values()) == {1} for each in inside), inside
assert len(threads()) > len(before), "SciPy has brought its own"
assert set(threads().values()) == set(before.values()), (before, threads())
"""


@pytest.mark.parametrize(
    "inner",
    [
        "start(lambda *_: inside.append(threads()))",
        "amped.cp_als(np.ones((3, 4, 5)), 1, device='cpu', threads=1, "
        "callback=lambda *_: (start(None), inside.append(threads())))",
    ],
    ids=["a call", "a call within another one"],
)
def test_a_library_that_a_call_has_loaded_is_limited_and_given_back(inner: str) -> None:
    """In a separate process, because SciPy is loaded in this one; without compiled code, which loads it, too."""
    subprocess.run(
        [sys.executable, "-c", SCIPY.replace("INNER", inner)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "2", "AMPED_COMPILE": "never"}, check=True, timeout=120,
    )  # fmt: skip


def test_a_call_leaves_them_as_they_were(device: str) -> None:
    """On a GPU, and with one thread on the host, a call limits them to one for itself."""
    with threadpoolctl.threadpool_limits(2):
        before = blas_threads()
        inside: list[list[int]] = []
        amped.cp_als(
            TENSOR, 1, max_iters=2, device=device, threads=1, callback=lambda *_: inside.append(blas_threads())
        )
        assert set(inside[0]) == {1}
        assert blas_threads() == before
        amped.mttkrp(TENSOR, [np.ones((3, 2))] * 3, 0, device=device, threads=1)
        assert blas_threads() == before
        with pytest.raises(InputError):
            amped.cp_als(TENSOR, 5000, device=device, threads=1)
        assert blas_threads() == before
