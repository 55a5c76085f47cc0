"""
When and where do people take a taxi?
=====================================

Uber pickups in New York, counted by weekday, hour and place; this tensor comes with amped. Components without
negative numbers are habits that add up.
"""

from pathlib import Path

import amped

pickups = amped.read(Path(amped.__file__).parent / "data" / "uber_pickups.npz")
model = amped.cp_als(pickups, 4, nonnegative=True)
model.plot(modes=["weekday", "hour"], components=range(4))

# %%
# Each component's share of the pickups and its main labels; places are latitude and longitude.

model.top(3)
