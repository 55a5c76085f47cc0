import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyttb

days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
events = pd.read_csv("events.csv", parse_dates=["time"])
events["weekday"] = pd.Categorical(events["time"].dt.day_name(), days)
events = events.assign(hour=events["time"].dt.hour, row=events["row"] // 10, column=events["column"] // 10)
keys = ["weekday", "hour", "row", "column"]
counts = events.groupby(keys, observed=True).size()
labels = counts.index.levels
subscripts = np.stack(counts.index.codes, axis=1)
tensor = pyttb.sptensor(subscripts, counts.to_numpy(float)[:, None], tuple(map(len, labels)))
model, _, _ = pyttb.cp_apr(tensor, 6, maxiters=50, printitn=0)
model.normalize(sort=True, normtype=1)
for number in range(6):
    print(f"{number + 1} weight {model.weights[number]:.0f}")
    for names, factor in zip(labels, model.factor_matrices, strict=True):
        top = np.argsort(-factor[:, number])[:3]
        print("  " + ", ".join(f"{names[row]} {factor[row, number]:.0%}" for row in top))
model.viz(show_figure=False, mode_titles=keys)
plt.savefig(sys.argv[1], bbox_inches="tight")
