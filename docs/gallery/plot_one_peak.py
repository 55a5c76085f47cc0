"""
How do I get curves with one peak?
==================================

Substances leave a chromatographic column one after the other, each in one peak. The constraint "unimodal" on the
time mode gives components with one maximum even where noise would add others.
"""

import matplotlib.pyplot as plt
import numpy as np

import amped

rng = np.random.default_rng(4)
time = np.arange(60.0)
peaks = np.exp(-0.5 * ((time[:, None] - [20, 30]) / 4) ** 2)
X = np.einsum("ir,jr,kr->ijk", rng.random((8, 2)), peaks, rng.random((15, 2)))
X += 0.3 * rng.standard_normal(X.shape)

free = amped.cp_als(X, 2, starts=3)
shaped = amped.cp_als(X, 2, starts=3, nonnegative=True, constraints={1: "unimodal"})

figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
for panel, title, model in zip(axes, ("no constraint", "unimodal"), (free, shaped), strict=True):
    panel.plot(time, model.factors[1] / model.factors[1].max(axis=0))
    panel.set(title=title, xlabel="minutes")
