"""
Will the model predict what it has not seen?
============================================

Hold out a tenth of the readings. The error on the others always falls with more components; the error on held-out
readings falls only as long as components describe the data and not the noise.
"""

import matplotlib.pyplot as plt
import numpy as np

import amped

rng = np.random.default_rng(7)
X = np.einsum("ir,jr,kr->ijk", *[rng.standard_normal((length, 3)) for length in (20, 16, 12)])
X += 0.5 * rng.standard_normal(X.shape)

ranks = range(1, 7)
models = [amped.cp_als(X, rank, holdout=0.1, max_iters=100, starts=2) for rank in ranks]
fitted = [min(model.series["rmse"]) for model in models]
held_out = [min(model.series["holdout_rmse"]) for model in models]
print(f"best on held-out readings: {1 + int(np.argmin(held_out))} components")

figure, axes = plt.subplots(figsize=(5, 3))
axes.plot(ranks, fitted, "o-", label="readings of the fit")
axes.plot(ranks, held_out, "o-", label="held-out readings")
axes.set(xlabel="components", ylabel="RMSE")
axes.legend()
