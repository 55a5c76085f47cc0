"""Make the bundled example from its source: ``python -m bench.pickups FOLDER`` with the six months' CSV files.

They are the FiveThirtyEight FOIL data of Uber pickups in New York, ``uber-raw-data-{apr..sep}14.csv``, with the first
65,535 rows of each month, from which ``uber393k_4d.tns.gz`` was made, too. A row is a pickup: its time and place.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path

import numpy as np

from partitioner.tensors.labels import Labels, named

from .bundled import EXAMPLE

MONTHS = "apr", "may", "jun", "jul", "aug", "sep"
WEEKDAYS = "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"
CELLS = 100  # of a degree: about 1.1 km from south to north, 0.84 km from west to east
DIGITS = 10_000  # of a degree, as the source has them
NAMES = "weekday", "hour", "place"
TARGET = Path(__file__).parent.parent / "amped" / "data" / EXAMPLE

Cell = tuple[int, int]


def cell(latitude: str, longitude: str) -> Cell:
    """Return which square of a hundredth of a degree a place is in."""
    north, east = (round(float(degrees) * DIGITS) * CELLS // DIGITS for degrees in (latitude, longitude))
    return north, east


def label(place: Cell) -> str:
    """Return the middle of a cell as maps take it: latitude and longitude."""
    return " ".join(f"{(number + 0.5) / CELLS:.3f}" for number in place)


def pickups(folder: Path) -> Counter[tuple[int, int, Cell]]:
    """Return how many there were by weekday, hour and cell."""
    found = Counter[tuple[int, int, Cell]]()
    for month in MONTHS:
        with open(folder / f"uber-raw-data-{month}14.csv") as file:
            for row in csv.DictReader(file):
                time = datetime.strptime(row["Date/Time"].replace("-", "/"), "%Y/%m/%d %H:%M:%S")
                found[time.weekday(), time.hour, cell(row["Lat"], row["Lon"])] += 1
    return found


def main() -> None:
    """Write the tensor with its labels."""
    found = pickups(Path(sys.argv[1]))
    places = sorted({place for *_, place in found})
    number = {place: at for at, place in enumerate(places)}
    rows = sorted((weekday, hour, number[place], count) for (weekday, hour, place), count in found.items())
    table = np.array(rows)
    labels = Labels.of([WEEKDAYS, np.arange(24), list(map(label, places))], (7, 24, len(places)))
    assert labels is not None
    labels.names = NAMES
    np.savez_compressed(
        TARGET, indices=table[:, :3].astype(np.int16), values=table[:, 3].astype(np.float32),
        shape=np.array([7, 24, len(places)]), **named(labels),
    )  # fmt: skip


if __name__ == "__main__":
    main()
