import sys

import pandas as pd
import xarray as xr
from tensorly.decomposition import non_negative_parafac_hals
from tlviz.postprocessing import postprocess
from tlviz.visualisation import components_plot

days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
events = pd.read_csv("events.csv", parse_dates=["time"])
events["weekday"] = pd.Categorical(events["time"].dt.day_name(), days)
events = events.assign(hour=events["time"].dt.hour, row=events["row"] // 10, column=events["column"] // 10)
counts = events.groupby(["weekday", "hour", "row", "column"], observed=True).size()
array = xr.DataArray.from_series(counts).fillna(0)
model = non_negative_parafac_hals(array.data, 6, init="random", n_iter_max=50, random_state=0)
model = postprocess(model, array)
for number in range(6):
    print(f"{number + 1} weight {model[0][number]:.0f}")
    for factor in model[1]:
        print("  " + ", ".join(map(str, factor[number].sort_values(ascending=False).index[:3])))
components_plot(model)[0].savefig(sys.argv[1])
