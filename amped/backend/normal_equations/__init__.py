"""Normal equations of CP-ALS: their state, their inverses, and those that the host solves."""
