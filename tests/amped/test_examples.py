"""The examples in the docstrings of the public functions and classes run and print what they show."""

from __future__ import annotations

import doctest
import inspect

import pytest

import amped


@pytest.mark.parametrize("name", amped.__all__)
def test_examples(name: str) -> None:
    thing = getattr(amped, name)
    module = inspect.getmodule(thing)
    assert module is not None
    names = {**vars(amped), **vars(module)}
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder(recurse=True).find(thing, name, module=module, globs=names):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
