"""Losses that are defined outside the package, and an oracle of row systems in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from oracle import model_values

from amped.backend.known_losses import loss_of
from amped.backend.losses import Loss, Maps

GAUSSIAN, POISSON = loss_of("gaussian"), loss_of("poisson")

HUBER = Loss(
    name="huber",
    value="where(abs(x - m) < 0.5, (x - m)**2, abs(x - m) - 0.25)",
    first="where(abs(x - m) < 0.5, 2 * (m - x), where(m > x, 1, -1))",
    second="where(abs(x - m) < 0.5, 2, 0)",
)
LOGIT = Loss(
    name="bernoulli-logit",
    value="where(m > 0, m + log1p(exp(-m)), log1p(exp(m))) - x * m",
    first="1 / (1 + exp(-m)) - x",
    second="1 / (2 + exp(m) + exp(-m))",
)


def oracle_systems(
    columns: Any, values: np.ndarray, factors: Sequence[np.ndarray], mode: int, maps: Maps
) -> np.ndarray:
    """Return gradient, second derivatives and objective of each row in one matrix; see `system_width`."""
    models = np.maximum(model_values(columns, factors), maps.lower)
    product = np.ones((values.size, factors[0].shape[1]))
    for m, factor in enumerate(factors):
        if m != mode:
            product *= factor[columns[m]]
    each = [maps.weight(values, models)[:, None] * product]
    if maps.curve:
        squares = maps.curve(values, models)[:, None, None] * product[:, :, None] * product[:, None, :]
        each.append(squares.reshape(values.size, -1))
    each.append(maps.value(values, models)[:, None])
    terms = np.concatenate(each, axis=1)
    out = np.zeros((len(factors[mode]), terms.shape[1]))
    np.add.at(out, columns[mode], terms)
    return out
