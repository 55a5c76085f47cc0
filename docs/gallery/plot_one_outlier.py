"""
Does one wrong reading spoil the model?
=======================================

Least squares squares errors, so a few wrong readings dominate them. The Huber loss counts large errors linearly.
"""

import matplotlib.pyplot as plt
import numpy as np

import amped

rng = np.random.default_rng(5)
factors = [rng.random((length, 2)) for length in (15, 12, 10)]
clean = np.einsum("ir,jr,kr->ijk", *factors)
X = clean + 0.01 * rng.standard_normal(clean.shape)
wrong = rng.choice(X.size, 20, replace=False)
X.reshape(-1)[wrong] += 5  # 20 of 1,800 readings

squares = amped.cp_als(X, 2, starts=3, max_iters=100)
robust = amped.cp(X, 2, loss="huber:0.1", starts=3, max_iters=200)
truth = amped.KruskalTensor(np.ones(2), factors)
for name, model in (("least squares", squares), ("Huber", robust)):
    print(f"{name}: factor match with the truth {truth.compare(model).match:.3f}")

# %%
# Predictions against the clean values.

figure, axes = plt.subplots(figsize=(5, 4))
for name, model in (("least squares", squares), ("Huber", robust)):
    axes.plot(clean.reshape(-1), model.full().reshape(-1), ".", markersize=3, label=name)
axes.set(xlabel="clean value", ylabel="model")
axes.legend()
