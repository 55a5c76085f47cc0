"""How alike components are."""

from __future__ import annotations

import numpy as np
import pytest

from amped.models import matching


def test_congruences_are_products_of_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "ROWS", 3)  # several blocks
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((length, 4)) for length in (7, 3, 1)]
    factors[1][:, 2] = 0
    found = matching.congruences([each.astype(np.float32) for each in factors])
    for one in range(4):
        for other in range(4):
            cosines = [
                each[:, one] @ each[:, other] / (np.linalg.norm(each[:, one]) * np.linalg.norm(each[:, other]))
                if 2 not in (one, other) or each is not factors[1]
                else 0
                for each in factors
            ]
            assert found[one, other] == pytest.approx(np.prod(cosines), abs=1e-6)
    assert np.isfinite(found).all()
