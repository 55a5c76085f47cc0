"""A table of events with a planted structure: groups of users, hosts and hours that go together, and noise."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

KEYS = ["user", "host", "hour(time)"]
PER_GROUP = {"user": 6, "host": 4, "hour": 3}
NUMBER = 5
EACH, NOISE = 400, 400  # events of a group, and others

GROUPS = {
    (
        tuple(f"user {g}-{k}, \N{GREEK SMALL LETTER ALPHA}" for k in range(PER_GROUP["user"])),
        tuple(f"host-{g}{k}.example.org" for k in range(PER_GROUP["host"])),
        tuple(range(4 * g, 4 * g + PER_GROUP["hour"])),
    )
    for g in range(NUMBER)
}
"""The labels of each group, one tuple a mode."""


@cache
def planted() -> dict[str, Any]:
    """Return the columns of the table."""
    random = np.random.default_rng(7)
    groups = sorted(GROUPS)
    columns: dict[str, list[Any]] = {"user": [], "host": [], "time": []}
    for k in range(NUMBER * EACH + NOISE):
        planned = k < NUMBER * EACH
        of_mode = [groups[k % NUMBER] if planned else groups[g] for g in random.integers(0, NUMBER, 3).tolist()]
        user, host, hour = (each[mode][random.integers(len(each[mode]))] for mode, each in enumerate(of_mode))
        columns["user"].append(user)
        columns["host"].append(host)
        minutes = int(hour) * 60 + int(random.integers(60)) + 1440 * int(random.integers(28))
        columns["time"].append(np.datetime64("2026-02-01T00:00:00", "us") + np.timedelta64(minutes, "m"))
    order = random.permutation(len(columns["user"]))
    return {
        "user": [columns["user"][k] for k in order],
        "host": [columns["host"][k] for k in order],
        "time": np.array(columns["time"])[order],
    }


def found_groups(model: Any) -> set[tuple[Any, ...]]:
    """Return the top labels of each component, as many as a group has."""
    assert model.labels is not None
    found = set()
    for component in range(model.rank):
        tops = [
            labels[np.argsort(-factor[:, component])[:size]].tolist()
            for labels, factor, size in zip(model.labels, model.factors, PER_GROUP.values(), strict=True)
        ]
        found.add(tuple(tuple(sorted(each)) for each in tops))
    return found
