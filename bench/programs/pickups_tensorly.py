import sys

import numpy as np
import xarray as xr
from tensorly.decomposition import non_negative_parafac
from tlviz.postprocessing import postprocess
from tlviz.visualisation import components_plot

with np.load("pickups.npz") as file:
    array = np.zeros(tuple(file["shape"]))
    array[tuple(file["indices"].T)] = file["values"]
days, hours, places = "Mon Tue Wed Thu Fri Sat Sun".split(), np.arange(24), np.arange(array.shape[2])
axes = {"weekday": days, "hour": hours, "place": places}
pickups = xr.DataArray(array, coords=axes, dims=list(axes))
model = non_negative_parafac(pickups.data, 4, init="random", n_iter_max=50, tol=1e-300, random_state=0)
model = postprocess(model, pickups)
for number in range(4):
    print(f"{number + 1} weight {model[0][number]:.0f}")
    for factor in model[1]:
        print("  " + ", ".join(map(str, factor[number].sort_values(ascending=False).index[:3])))
components_plot(model)[0].savefig(sys.argv[1])
