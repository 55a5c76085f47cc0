"""The examples in the docstrings of the public functions and classes run and print what they show."""

from __future__ import annotations

import ast
import doctest
import inspect
import sys
from pathlib import Path

import numpy as np
import pytest
from command import finish, succeeded

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


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_public_completes_its_parameters(name: str) -> None:
    """Editors and notebooks show them; only scikit-learn's `set_params`, and what refuses all, take any names."""
    thing = PUBLIC[name]
    members = (
        inspect.getmembers(thing, lambda each: inspect.isfunction(each) or inspect.ismethod(each))
        if inspect.isclass(thing)
        else [(name, thing)]
    )
    for member, function in members:
        if member.startswith("_") or member == "set_params" or function is amped.TuckerTensor.update:
            continue
        kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds, member


def test_names_are_imported_when_they_are_used() -> None:
    """From the modules whose names type checkers read; ``import amped`` itself loads no other package."""
    tree = ast.parse(inspect.getsource(amped))
    block = next(each for each in tree.body if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING")
    read = {
        alias.asname: "." * node.level + str(node.module)
        for node in block.body
        for alias in getattr(node, "names", ())
        if isinstance(node, ast.ImportFrom)
    }
    assert read == amped._MODULES
    assert set(amped.__all__) <= set(dir(amped))
    with pytest.raises(AttributeError, match="module 'amped' has no attribute 'cp_sla'"):
        amped.cp_sla  # type: ignore[attr-defined] # noqa: B018
    program = "import amped, sys; sys.exit(', '.join({'numpy', 'scipy', 'numba'} & sys.modules.keys()) or 0)"
    assert succeeded(finish([sys.executable, "-c", program])).err == ""
