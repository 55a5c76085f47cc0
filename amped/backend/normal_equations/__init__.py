"""Normal equations of CP-ALS that the host solves, with and without constraints."""
