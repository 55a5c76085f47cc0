"""
Is the model the same from every start?
=======================================

Alternating least squares can end in different places. Several starts show whether the components are a property of
the data: models from other starts that fit as well should match the best one.
"""

import matplotlib.pyplot as plt
import numpy as np

import amped

rng = np.random.default_rng(9)
factors = [rng.random((length, 4)) for length in (25, 20, 15)]
X = np.einsum("ir,jr,kr->ijk", *factors) + 0.05 * rng.standard_normal((25, 20, 15))

figure, axes = plt.subplots(figsize=(5, 3))
for rank, mark in ((4, "o"), (7, "x")):
    models = [amped.cp_als(X, rank, seed=seed, max_iters=200) for seed in range(6)]
    best = max(models, key=lambda model: model.fits[-1])
    matches = [best.compare(model).match for model in models if model is not best]
    print(f"{rank} components: factor match with the best start {min(matches):.2f} to {max(matches):.2f}")
    axes.plot([model.fits[-1] for model in models if model is not best], matches, mark, label=f"{rank} components")
axes.set(xlabel="fit", ylabel="match with the best start", ylim=(0, 1.05))
axes.locator_params(axis="x", nbins=4)
axes.legend()
