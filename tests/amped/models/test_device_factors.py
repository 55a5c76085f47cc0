"""Models whose factor matrices are in a GPU's memory: every method works, and each matrix is copied once."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_stub import OnDevice

import amped

RNG = np.random.default_rng(5)
WEIGHTS, FACTORS = np.array([3.0, 1.0]), [RNG.random((length, 2)) for length in (5, 4, 3)]
LABELS = [np.array(list("abcde")), np.arange(4), np.array(["x", "y", "z"])]
X = amped.KruskalTensor(WEIGHTS, FACTORS).full() + 0.01 * RNG.random((5, 4, 3))


def cp_model(place: Callable[[np.ndarray], Any]) -> amped.KruskalTensor:
    return amped.KruskalTensor(WEIGHTS, [place(factor.copy()) for factor in FACTORS]).labelled(LABELS)


def core_model(place: Callable[[np.ndarray], Any]) -> amped.TuckerTensor:
    return amped.TuckerTensor(RNG.random((2, 2, 2)).round(1), [place(factor.copy()) for factor in FACTORS])


METHODS: dict[str, Callable[[Any], Any]] = {
    "arranged": lambda model: model.arranged().factors[0].tolist(),
    "compare": lambda model: [pair.congruence for pair in model.compare(cp_model(np.asarray)).pairs],
    "components": lambda model: model.to_frame().to_csv(),
    "core consistency": lambda model: amped.core_consistency(X, model, device="cpu"),
    "frame": lambda model: model.frame(1).to_csv(),
    "html": lambda model: model._repr_html_(),
    "init": lambda model: amped.cp_als(X, 2, init=model, max_iters=1, device="cpu").factors[0].tolist(),
    "norm": lambda model: model.norm(),
    "predict": lambda model: model.predict([[0, 1, 2]]).tolist(),
    "reconstruct": lambda model: model.reconstruct(0, slice(2)).tolist(),
    "residuals": lambda model: str(model.residuals(X)),
    "score": lambda model: model.score(X),
    "shares": lambda model: model.shares().tolist(),
    "signed": lambda model: model.signed().factors[0].tolist(),
    "top": lambda model: str(model.top(2)),
    "transform": lambda model: model.transform(X, 0, device="cpu").tolist(),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_cp_models(name: str) -> None:
    found, wanted = METHODS[name](cp_model(OnDevice)), METHODS[name](cp_model(np.asarray))
    assert found == wanted


def test_methods_of_tucker_models() -> None:
    methods: list[Callable[[Any], Any]] = [
        lambda model: model.full().tolist(),
        lambda model: model.score(X),
        lambda model: model.transform(X, 1, device="cpu").tolist(),
        lambda model: model.compression,
        lambda model: model._repr_html_(),
        lambda model: model.arrange().factors[0].tolist(),
    ]
    core = core_model(np.asarray).core
    for method in methods:
        models = core_model(OnDevice), core_model(np.asarray)
        for model in models:
            model.core = core.copy()
        assert method(models[0]) == method(models[1])


def test_matrices_are_copied_once_and_when_they_are_needed() -> None:
    model, before = cp_model(OnDevice), OnDevice.copies
    assert (model.shape, model.rank, repr(model)) == ((5, 4, 3), 2, "KruskalTensor(shape=(5, 4, 3), rank=2)")
    _, factors = model
    assert all(isinstance(each, OnDevice) for each in factors)
    assert OnDevice.copies == before
    model.score(X)
    model.top()
    assert OnDevice.copies == before + 3
    assert model.factors[0] is factors[0], "they stay on the device"
    model.factors = [OnDevice(2 * factor) for factor in FACTORS]
    assert np.array_equal(model.host_factors[0], 2 * FACTORS[0]), "other matrices are copied again"


def test_files_and_reports(tmp_path: Path) -> None:
    model = cp_model(OnDevice)
    model.save(tmp_path / "model.npz")
    assert np.array_equal(amped.load(tmp_path / "model.npz").factors[2], FACTORS[2])
    model.export(tmp_path / "model.ktensor")
    model.plot(tmp_path / "model.png")
    model.report(tmp_path / "model.html", X)
    assert (tmp_path / "model.html").stat().st_size > 1000
    core_model(OnDevice).save(tmp_path / "core.npz")


def test_copies_of_models() -> None:
    for other in (copy.deepcopy(cp_model(OnDevice)), pickle.loads(pickle.dumps(cp_model(OnDevice)))):
        assert np.array_equal(other.host_factors[1], FACTORS[1])


def test_host_matrices_are_the_factors() -> None:
    model = cp_model(np.asarray)
    assert model.host_factors is model.factors
    model.factors[0][:] = 0
    assert not model.full().any()
