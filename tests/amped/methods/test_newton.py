"""Newton steps of rows: whatever their second derivatives are, a step is one of descent."""

from __future__ import annotations

import numpy as np

from amped.methods.newton import derivatives, newton_steps


def test_regular_singular_flat_and_indefinite_rows() -> None:
    curvature = np.array([[[4.0, 1], [1, 3]], [[1, 1], [1, 1]], [[0, 0], [0, 0]], [[2, 0], [0, -4]]])
    gradient = np.array([[1.0, 2], [2, 2], [1, 1], [2, 4]])
    want = [-np.linalg.solve(curvature[0], gradient[0]), [-1, -1], [0, 0], [-1, -1]]
    np.testing.assert_allclose(newton_steps(gradient, curvature), want, atol=1e-15)
    assert newton_steps(np.zeros((0, 2)), np.zeros((0, 2, 2))).shape == (0, 2)


def test_parts_of_row_systems() -> None:
    systems = np.arange(14.0).reshape(2, 7)
    got = derivatives(systems, 2)
    assert got.curvature is not None
    assert got.gradient.tolist() == [[0, 1], [7, 8]]
    assert got.curvature[1].tolist() == [[9, 10], [11, 12]]
    assert got.values.tolist() == [6, 13]
    assert derivatives(systems, 6).curvature is None
