"""The examples in the docstrings of the public functions and classes run and print what they show."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import numpy as np
import pytest

import amped


@pytest.mark.parametrize("name", amped.__all__)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    thing = getattr(amped, name)
    module = inspect.getmodule(thing)
    assert module is not None
    names = {"np": np, **vars(amped), **vars(module)}
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder(recurse=True).find(thing, name, module=module, globs=names):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
