import sys

import matplotlib.pyplot as plt
import numpy as np
import pyttb

with np.load("pickups.npz") as file:
    values = file["values"].astype(float).reshape(-1, 1)
    pickups = pyttb.sptensor(file["indices"].astype(int), values, tuple(file["shape"].tolist()))
    labels = ["Mon Tue Wed Thu Fri Sat Sun".split(), list(range(24)), list(range(pickups.shape[2]))]
model, _, _ = pyttb.cp_apr(pickups, 4, maxiters=50, stoptol=0, printitn=0)
model.normalize(sort=True, normtype=1)
for number in range(4):
    print(f"{number + 1} weight {model.weights[number]:.0f}")
    for mode, factor in enumerate(model.factor_matrices):
        top = np.argsort(-factor[:, number])[:3]
        print("  " + ", ".join(f"{labels[mode][row]} {factor[row, number]:.0%}" for row in top))
model.viz(show_figure=False, mode_titles=["weekday", "hour", "place"])
plt.savefig(sys.argv[1], bbox_inches="tight")
