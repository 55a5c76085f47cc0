"""Operations on the columns of factor matrices."""

from __future__ import annotations

import numpy as np

from amped.models.columns import largest_entries


def test_the_first_of_the_largest_entries_counts() -> None:
    factor = np.array([[1.0, -2.0, 0.0, 3.0], [-1.0, 2.0, 0.0, -4.0]])
    np.testing.assert_array_equal(largest_entries(factor), [1, -2, 0, -4])
