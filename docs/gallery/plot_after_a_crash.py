"""
How does a run continue after a crash?
======================================

With ``checkpoint=`` and ``every=`` a run that was interrupted continues from its last checkpoint, and gives the
result of an uninterrupted one.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np

import amped

X = np.random.default_rng(0).random((30, 20, 10))
how = {"rank": 5, "max_iters": 40, "tol": 0, "precision": "fp64", "deterministic": True}
folder = tempfile.TemporaryDirectory()


def crash(iteration, fit):
    """Stand in for a failure of the machine."""
    if iteration == 23:
        raise RuntimeError("the machine failed")


try:
    amped.cp_als(X, checkpoint=f"{folder.name}/ck", every=10, callback=crash, **how)
except RuntimeError as error:
    print(f"{error} after {len(error.model.fits)} iterations")
resumed = amped.cp_als(X, checkpoint=f"{folder.name}/ck", every=10, resume=True, **how)
print(f"the same as without the failure: {resumed.fits == amped.cp_als(X, **how).fits}")
folder.cleanup()

figure, axes = plt.subplots(figsize=(5, 3))
axes.plot(range(1, 41), resumed.fits)
axes.axvline(23, color="0.7", linestyle="--")
axes.set(xlabel="iteration", ylabel="fit", title="dashed: the failure")
