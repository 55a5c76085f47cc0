"""The largest core elements of a Tucker model as components, which its report describes."""

from __future__ import annotations

import numpy as np

from ..models.kruskal import KruskalTensor
from ..models.tucker import TuckerTensor

MOST = 32  # core elements in a report


def largest_terms(model: TuckerTensor) -> KruskalTensor:
    """Return the largest core elements of a Tucker model, each times one column per mode, as a CP model."""
    order = np.argsort(-np.abs(model.core), axis=None, kind="stable")[:MOST]
    places = np.unravel_index(order[model.core.flat[order] != 0], model.core.shape)
    elements = model.core[places]
    factors = [factor[:, columns] for factor, columns in zip(model.host_factors, places, strict=True)]
    factors[0] = factors[0] * np.sign(elements).astype(factors[0].dtype)
    terms = KruskalTensor(np.abs(elements), factors)
    terms.labels = model.labels
    return terms
