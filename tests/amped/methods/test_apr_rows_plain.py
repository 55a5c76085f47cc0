"""CP-APR row by row without compiled code, compared with an oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counts import by_rows, random_counts
from forms import in_turn
from oracle import PRECISIONS, random_factors, small_pieces

import amped

pytestmark = pytest.mark.usefixtures("without_compiled_code")

CASES = [((9, 7), 3), ((6, 5, 8), 1), ((6, 5, 8), 7), ((4, 6, 5, 3), 5), ((3, 3, 4, 3, 3, 3), 3)]
METHODS = pytest.mark.parametrize("method", ["pdnr", "pqnr"])
SERIES = "loglikelihood", "inner_iterations"


@METHODS
@pytest.mark.parametrize(("case", "pieces"), in_turn(CASES, [10, 20, 1000]))
def test_the_same_path_as_an_oracle(case: tuple[tuple[int, ...], int], pieces: int, method: Any) -> None:
    """Also of rows whose nonzeros are in several shards."""
    shape, rank = case
    tensor, start = random_counts(len(shape), shape), random_factors(0, shape, rank)
    want = by_rows(tensor, start, 5, method)
    with small_pieces(pieces):
        model = amped.cp_apr(
            tensor, rank, init=start, max_iters=5, precision="fp64", method=method, mu_iters=0, device="cpu"
        )  # fmt: skip
    assert "without compiled code" in model.run["device_description"]
    for name in SERIES:
        np.testing.assert_allclose(model.series[name], getattr(want, name), rtol=1e-9)
    np.testing.assert_allclose(model.full(), want.model, rtol=1e-6, atol=1e-9)


@METHODS
@pytest.mark.parametrize("precision", PRECISIONS)
def test_small_batches_of_rows(method: Any, precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, models = random_counts(7, (12, 9, 10)), []
    for numbers in (1 << 20, 30):
        monkeypatch.setattr("amped.backend.plain.ops.rowproblems.NUMBERS", numbers)
        models.append(amped.cp_apr(tensor, 3, max_iters=3, precision=precision, method=method, device="cpu"))
    whole, parts = models
    np.testing.assert_allclose(parts.series["loglikelihood"], whole.series["loglikelihood"], rtol=1e-12)


@METHODS
def test_rows_without_nonzeros_become_zero(method: Any) -> None:
    tensor = amped.SparseTensor([[0, 0, 0], [3, 1, 1], [3, 0, 1]], [2.0, 1.0, 4.0], (5, 2, 2))
    model = amped.cp_apr(tensor, 2, max_iters=3, method=method, mu_iters=0, precision="fp64", device="cpu")
    assert not model.factors[0][[1, 2, 4]].any()
    assert model.weights.sum() == pytest.approx(7, rel=1e-3)
