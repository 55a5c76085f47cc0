"""
How far can a simulation be compressed?
=======================================

A Tucker decomposition with ``error=`` chooses the smallest ranks whose relative error is below the limit.
"""

import matplotlib.pyplot as plt
import numpy as np

import amped

x, y, t = np.linspace(0, 1, 60)[:, None, None], np.linspace(0, 1, 50)[None, :, None], np.linspace(0, 1, 40)
wave = np.sin(6 * (x + t)) * np.cos(4 * y) + np.exp(-20 * ((x - 0.3 - 0.4 * t) ** 2 + (y - 0.5) ** 2))

errors, ratios = [0.1, 0.03, 0.01, 0.003, 0.001], []
for error in errors:
    model = amped.tucker(wave, error=error, method="sthosvd", precision="fp64")
    kept = model.core.size + sum(factor.size for factor in model.factors)
    ratios.append(wave.size / kept)
    print(f"error {error}: core {' x '.join(map(str, model.core.shape))}, {ratios[-1]:.0f} times smaller")

# %%
# The original and the last model at one time.

figure, axes = plt.subplots(1, 2, figsize=(7, 3), sharey=True)
for panel, values, title in zip(
    axes, (wave, model.full()), ("original", f"{ratios[-1]:.0f} times smaller"), strict=True
):
    panel.imshow(values[:, :, 20], aspect="auto")
    panel.set(title=title, xlabel="y", ylabel="x")
