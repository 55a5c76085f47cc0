"""
Which weekdays are alike in a table of events?
==============================================

`amped.from_frame` counts the rows of a table by its keys, which are columns or expressions of SQL, such as the name
of the weekday. Their values become labels.
"""

import numpy as np
import pandas as pd

import amped

rng = np.random.default_rng(0)
day = rng.integers(0, 180, 20_000)
weekend = day % 7 >= 5  # day 0 is a Monday
commute = rng.choice([8, 17], day.size) + rng.normal(0, 1, day.size)
hour = np.where(weekend, rng.normal(13, 3, day.size), commute).clip(0, 23)
leisure = rng.choice(["park", "museum", "station"], day.size)
place = np.where(weekend, leisure, rng.choice(["office", "station"], day.size))
time = pd.Timestamp("2024-01-01") + pd.to_timedelta(day * 24 + hour, "h")
visits = pd.DataFrame({"time": time, "place": place})

X = amped.from_frame(visits, {"weekday": "dayname(time)", "hour": "hour(time)", "place": "place"})
model = amped.cp_als(X, 2, nonnegative=True)
model.plot()

# %%
# Weekdays whose rows point in the same direction are alike.

rows = model.frame(0)
(rows.T / np.linalg.norm(rows, axis=1)).T.round(2)
