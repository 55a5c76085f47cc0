import sys

import numpy as np
import xarray as xr
from tensorly.decomposition import non_negative_parafac_hals
from tlviz.factor_tools import factor_match_score
from tlviz.model_evaluation import core_consistency, fit
from tlviz.postprocessing import postprocess
from tlviz.visualisation import components_plot

axes = {"sample": np.arange(30), "emission": np.load("emission.npy"), "excitation": np.load("excitation.npy")}
spectra = xr.DataArray(np.load("spectra.npy"), coords=axes, dims=list(axes))
models = {}
for rank in range(1, 6):
    starts = [
        non_negative_parafac_hals(spectra.data, rank, init="random", n_iter_max=200, tol=1e-6, random_state=seed)
        for seed in range(5)
    ]
    starts.sort(key=lambda model: -fit(model, spectra.data))
    matches = [factor_match_score(starts[0], each, consider_weights=False) for each in starts[1:]]
    halves = [
        non_negative_parafac_hals(spectra.data[half::2], rank, init="random", n_iter_max=200, tol=1e-6, random_state=0)
        for half in (0, 1)
    ]
    split = factor_match_score(*[(h.weights, h.factors[1:]) for h in halves], consider_weights=False)
    consistency = core_consistency(starts[0], spectra.data)
    models[rank] = postprocess(starts[0], spectra)
    explained = fit(starts[0], spectra.data)
    print(f"{rank} fit {explained:.4f} match {min(matches):.2f} halves {split:.2f} {consistency:.0f} %")
components_plot(models[3])[0].savefig(sys.argv[1])
