"""
Squares or counts: which loss for small counts?
===============================================

Least squares assumes the same noise everywhere. Counts have a variance equal to their mean, which the Poisson loss
(CP-APR) takes into account: where most counts are 0 or 1 it finds the patterns more precisely.
"""

import matplotlib.pyplot as plt
import numpy as np

import amped

rng = np.random.default_rng(6)
factors = [rng.dirichlet(np.full(length, 0.2), 3).T for length in (40, 30, 20)]
totals = [1000, 3000, 10000, 30000]
matches = []
for total in totals:
    truth = amped.KruskalTensor(total * np.array([0.5, 0.3, 0.2]), factors)
    counts = rng.poisson(truth.full())
    X = amped.SparseTensor(np.argwhere(counts), counts[counts > 0].astype(float), counts.shape)
    models = amped.cp_als(X, 3, nonnegative=True, starts=3), amped.cp_apr(X, 3, max_iters=30)
    matches.append([truth.compare(model).match for model in models])
    print(f"{total} events: factor match {matches[-1][0]:.3f} with squares, {matches[-1][1]:.3f} with counts")

figure, axes = plt.subplots(figsize=(5, 3))
axes.semilogx(totals, matches, "o-", label=["least squares", "Poisson"])
axes.set(xlabel="events", ylabel="factor match")
axes.legend()
