"""Numeric constants of row problems, for compiled code and for NumPy code, which runs without Numba."""

from __future__ import annotations

# CP-APR: the line search of PDNR and PQNR.
ACTIVE = 1e-3  # components below this and the projected gradient's norm are active if their gradient is positive
ARMIJO, LENGTHS = 1e-4, 11  # sufficient decrease, and number of step lengths 1, 1/2, 1/4, ...
RAISED = 0.01  # sum of the increments when a row is raised, relative to the row's counts
NO_LESS = -1e-15  # rounding error of a model's value that equals the floor

# PDNR.
DAMPING, MORE_DAMPING, LESS_DAMPING = 1e-5, 3.5, 2 / 7  # initial damping, and the factors that change it
POOR, GOOD = 0.25, 0.75  # ratios of actual to predicted decrease
LEAST_NEWTON_PIVOT = 1e-14  # relative to the diagonal: the effect of rounding

# PQNR.
PAIRS = 3  # pairs of steps and changes of the gradient
LEAST_CURVED = 1e-12  # least curvature of a usable pair, relative to the product of its two lengths

# Rows of CP-APR that are solved in step.
BELOW, COUNTS, CURVED = range(3)  # positions in the sums, after Phi
SOLVED, MOVING, WAITING = range(3)  # state of a row in this pass

# Least squares.
LEAST_PIVOT = 1e-12  # relative to the diagonal: columns that depend on others up to rounding are below this
DOUBTED = 1e-8  # relative pivots below this, which depend on their order, are computed in descending order
CONSISTENT = 1e-7  # relative residual of equations that have a solution
ROUNDING = 1e-15  # relative rounding error of a pivot
PRECISE = 1e-4  # squared residuals below this part of the squared values are computed from residuals
