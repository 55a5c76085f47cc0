"""
Where does a new sample belong?
===============================

A model of old samples describes new ones: `transform` solves only for their rows, which are amounts of the same
patterns.
"""

import matplotlib.pyplot as plt
import numpy as np

import amped

rng = np.random.default_rng(8)
patterns = [rng.random((length, 2)) ** 2 for length in (25, 20)]
amounts = np.vstack([rng.normal(centre, 0.15, (15, 2)) for centre in ([1, 3], [3, 1])])
old = np.einsum("ir,jr,kr->ijk", amounts, *patterns)
new = np.einsum("ir,jr,kr->ijk", np.array([[1.1, 2.8], [2, 2]]), *patterns)  # one like the first group, one between
model = amped.cp_als(old + 0.01 * rng.standard_normal(old.shape), 2, nonnegative=True, max_iters=200)
rows = model.transform(new, 0)
print(rows.round(3))

figure, axes = plt.subplots(figsize=(5, 4))
axes.scatter(*(model.factors[0] * model.weights).T, label="old samples")
axes.scatter(*rows.T, marker="*", s=200, label="new samples")
axes.set(xlabel="component 1", ylabel="component 2")
axes.legend()
