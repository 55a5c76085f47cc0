"""The examples in the docstrings of the public functions and classes run and print what they show."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import numpy as np
import pytest

import amped
from amped.models.comparison import Comparison
from amped.models.evaluation import Evaluation
from amped.models.explained import Components
from amped.models.factor_model import FactorModel
from amped.models.interop import Conversions
from amped.models.pictured import Pictured
from amped.models.residuals import Residuals
from amped.models.slices import SliceResiduals
from amped.runs.callback import ModelView
from amped.runs.planned import RunPlan
from amped.runs.scan_result import Scan
from partitioner.tensors.labels import Labelled

MODELS = Conversions, Evaluation, FactorModel, Labelled, Pictured
RESULTS = *MODELS, ModelView, Components, Comparison, Residuals, SliceResiduals, RunPlan, Scan
PUBLIC = {name: getattr(amped, name) for name in amped.__all__} | {each.__name__: each for each in RESULTS}


@pytest.mark.parametrize("name", PUBLIC)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    thing = PUBLIC[name]
    module = inspect.getmodule(thing)
    assert module is not None
    names = {"np": np, "numpy": np, "amped": amped, **vars(amped), **vars(module)}
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder(recurse=True).find(thing, name, module=module, globs=names):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("name", amped.__all__)
def test_everything_public_has_an_example(name: str) -> None:
    thing = getattr(amped, name)
    if inspect.isroutine(thing) or (inspect.isclass(thing) and not issubclass(thing, (Exception, Warning))):
        assert "\n    Examples\n    --------\n" in (thing.__doc__ or "")
