"""
Which spectra belong together?
==============================

Fluorescence of 30 samples: emission and excitation spectra of three substances, in unknown amounts. The rows of the
sample mode are the amounts, and samples with similar rows belong together.
"""

import matplotlib.pyplot as plt
import numpy as np

import amped

rng = np.random.default_rng(2)
mixtures = np.array([[5, 1, 0.2], [0.3, 4, 1], [0.5, 0.5, 5]])  # of three groups of samples
group = rng.integers(3, size=30)
amounts = mixtures[group] * rng.uniform(0.7, 1.3, (30, 3))
emission, excitation = np.arange(300, 500, 4.0), np.arange(240, 320, 4.0)
peaks = [
    np.exp(-0.5 * ((axis[:, None] - centres) / width) ** 2)
    for axis, centres, width in ((emission, [340, 380, 430], 25), (excitation, [255, 275, 295], 10))
]
X = np.einsum("ir,jr,kr->ijk", amounts, *peaks)
X = amped.DenseTensor(X + 0.02 * rng.standard_normal(X.shape)).labelled([np.arange(30), emission, excitation])

model = amped.cp_als(X, 3, nonnegative=True, starts=3, max_iters=200)
model.plot(titles={0: "sample", 1: "emission in nm", 2: "excitation in nm"})

# %%
# Each colour is a group that was mixed in the same way; the model did not know them.

shares = model.factors[0] * model.weights
shares /= shares.sum(axis=1, keepdims=True)
figure, axes = plt.subplots(figsize=(5, 4))
axes.scatter(*shares[:, :2].T, c=group, cmap="viridis")
axes.set(xlabel="share of component 1", ylabel="share of component 2")
