import sys

import numpy as np
import xarray as xr
from tensorly import cp_to_tensor
from tensorly.decomposition import non_negative_parafac
from tlviz.factor_tools import factor_match_score
from tlviz.model_evaluation import core_consistency
from tlviz.postprocessing import postprocess
from tlviz.visualisation import components_plot

axes = {"sample": np.arange(10), "emission": np.load("emission.npy"), "excitation": np.load("excitation.npy")}
spectra = xr.DataArray(np.load("gaps.npy"), coords=axes, dims=list(axes))
how = {"init": "random", "n_iter_max": 1000, "tol": 1e-6}


def fitted(data, rank, seed):
    observed = ~np.isnan(data)
    model = non_negative_parafac(np.where(observed, data, 0), rank, mask=observed, random_state=seed, **how)
    estimate = cp_to_tensor(model)
    explained = 1 - ((data - estimate)[observed] ** 2).sum() / (data[observed] ** 2).sum()
    return explained, model, np.where(observed, data, estimate)


for rank in range(1, 5):
    starts = sorted((fitted(spectra.data, rank, seed) for seed in range(3)), key=lambda start: -start[0])
    explained, best, filled = starts[0]
    matches = [factor_match_score(best, each[1], consider_weights=False) for each in starts[1:]]
    halves = [fitted(spectra.data[half::2], rank, 0)[1] for half in (0, 1)]
    split = factor_match_score(*[(h.weights, h.factors[1:]) for h in halves], consider_weights=False)
    consistency = core_consistency(best, filled)
    print(f"{rank} fit {explained:.4f} match {min(matches):.2f} halves {split:.2f} {consistency:.0f} %")
    if rank == 3:
        model = postprocess(best, spectra.copy(data=filled))
components_plot(model)[0].savefig(sys.argv[1])
