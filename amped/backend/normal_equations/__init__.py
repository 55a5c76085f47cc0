"""Normal equations of CP-ALS, the parts that all devices share: state, inverses and row solvers."""
