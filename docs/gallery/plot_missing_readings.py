"""
Which readings are missing?
===========================

A sensor log has gaps, some of them for hours. ``mask="nan"`` fits a model to the readings that exist; the model
then predicts the others, and its error on held-out readings shows how far to trust it.
"""

import matplotlib.pyplot as plt
import numpy as np

import amped

rng = np.random.default_rng(0)
hours = np.arange(24)
daily = np.stack([np.sin((hours - 9) / 24 * 2 * np.pi) + 1.2, np.exp(-0.5 * ((hours - 18) / 2) ** 2)], axis=1)
truth = np.einsum("ir,jr,kr->ijk", rng.random((12, 2)) + 0.2, daily, rng.random((30, 2)) + 0.3)
readings = truth + 0.02 * rng.standard_normal(truth.shape)
readings[rng.random(truth.shape) < 0.3] = np.nan
readings[4, 6:20, 11] = np.nan  # a failure of sensor 4 on day 11

model = amped.cp_als(readings, 2, mask="nan", holdout=0.1, precision="fp64")
missing = np.argwhere(np.isnan(readings))
print(f"{len(missing)} readings are missing, for example {missing[:3].tolist()} (sensor, hour, day)")
print(f"error on held-out readings: {model.series['holdout_rmse'][-1]:.3f}; noise: 0.020")

# %%
# The failed sensor: what was read, what the model fills in, and what was hidden.

figure, axes = plt.subplots(figsize=(7, 3))
axes.plot(hours, truth[4, :, 11], label="truth", color="0.7", linewidth=5)
axes.plot(hours, model.full()[4, :, 11], label="model")
axes.plot(hours, readings[4, :, 11], "o", label="readings")
axes.set(xlabel="hour", title="sensor 4, day 11")
axes.legend()
