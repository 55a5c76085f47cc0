"""
Which day was unusual?
======================

Visits by day, hour and place. On one day the number of visits was as usual, but people went to other places.
Residuals by slice find it: the z-score compares a day's misfit with that of other days.
"""

import numpy as np

import amped

rng = np.random.default_rng(3)
days, hours, places = (rng.dirichlet(np.full(length, 0.4), 3).T for length in (28, 24, 40))
visits = rng.poisson(amped.KruskalTensor(np.array([9e3, 7e3, 5e3]), [days + 0.02, hours, places]).full())
visits[17] = visits[17][:, rng.permutation(40)]  # the places of this day are mixed up
X = amped.SparseTensor(np.argwhere(visits), visits[visits > 0].astype(float), visits.shape)
dates = np.datetime64("2024-03-01") + np.arange(28)
X.labelled({"day": dates, "hour": np.arange(24), "place": [f"P{n}" for n in range(40)]})

model = amped.cp_als(X, 3, nonnegative=True, starts=3)
residuals = model.residuals(X)
print(residuals)

# %%
# Misfit over leverage: a day at the top is not described by the model, a day on the right determines it.

residuals.plot("day")
