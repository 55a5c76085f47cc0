"""What the normal equations of CP-ALS have in common on all devices: state, inverses, and solvers of rows."""
