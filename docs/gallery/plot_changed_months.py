"""
What changed between two months?
================================

Two models, one of each month. `compare` matches their components one to one and lists the labels that gained or
lost.
"""

import numpy as np

import amped


def month(evening, seed):
    """Return counts of three habits by weekday, hour and place; one of them peaks in the evening or at night."""
    rng = np.random.default_rng(0)
    hours = np.exp(-0.5 * ((np.arange(24)[:, None] - [8, 13, evening]) / 1.5) ** 2)
    days, places = (rng.dirichlet(np.full(length, 0.4), 3).T for length in (7, 40))
    model = amped.KruskalTensor(np.array([9e3, 7e3, 5e3]), [days, hours / hours.sum(axis=0), places])
    counts = np.random.default_rng(seed).poisson(model.full())
    X = amped.SparseTensor(np.argwhere(counts), counts[counts > 0].astype(float), counts.shape)
    week, squares = "Mon Tue Wed Thu Fri Sat Sun".split(), [f"place {n}" for n in range(40)]
    return X.labelled({"weekday": week, "hour": np.arange(24), "place": squares})


march, april = (amped.cp_als(X, 3, nonnegative=True, starts=3, max_iters=100) for X in (month(20, 1), month(23, 2)))
comparison = march.compare(april)
print(comparison)

# %%
# The hours of the changed component moved; its days and places did not.

changed = min(range(3), key=lambda number: comparison.pairs[number].congruence)
march.plot(components=[comparison.pairs[changed].first], overlay={"April": april})
