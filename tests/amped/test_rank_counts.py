"""Every method under every distribution has the same results on any number of ranks, to 1e-12 in double precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rank_results
from command import environment, finish, mpirun_line, python_line


def results(path: Path, ranks: int, order: int) -> dict[str, list[np.ndarray]]:
    """Return the numbers of all runs of the same name, on a number of ranks."""
    line = python_line(path, order, script=rank_results.__file__)
    done = finish([*(mpirun_line(ranks) if ranks > 1 else []), *line], env=environment(AMPED_COMPILE="never"))
    assert done.code == 0, done.err
    found: dict[str, list[np.ndarray]] = {}
    with np.load(path) as arrays:
        for key, numbers in arrays.items():
            *name, _, place = key.split()
            found.setdefault(" ".join([*name, place]), []).append(numbers)
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("order", rank_results.SHAPES)
@pytest.mark.parametrize("ranks", [3, 6, 8])
def test_any_number_of_ranks(tmp_path: Path, ranks: int, order: int) -> None:
    expected = results(tmp_path / "1.npz", 1, order)
    for name, each in results(tmp_path / "many.npz", ranks, order).items():
        (want,) = expected[name]
        atol = 1e-12 * max(1, np.abs(want).max(initial=0))
        for numbers in each:
            np.testing.assert_allclose(numbers, want, rtol=0, atol=atol, err_msg=name)
