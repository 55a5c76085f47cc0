"""Options: one definition for types, signatures and flags."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import get_type_hints

import pytest

import amped
from amped.options import OptionNames, Options
from amped.run import parser

NAMES = [field.name for field in fields(Options)]


def test_the_names_that_type_checkers_know_are_the_options() -> None:
    hints = get_type_hints(Options)
    assert get_type_hints(OptionNames) == {name: hints[name] for name in NAMES}


@pytest.mark.parametrize("function", [amped.cp_als, amped.mttkrp])
def test_python_functions_name_all_options(function: object) -> None:
    shown = inspect.signature(function).parameters  # type: ignore[arg-type]
    assert [name for name in shown if name in NAMES] == NAMES
    assert all(shown[name].default == getattr(Options(), name) for name in NAMES)
    assert "options" not in shown


def test_a_misspelt_option_is_named() -> None:
    with pytest.raises(TypeError, match=r"cp_als\(\) got an unexpected keyword argument 'precison'"):
        amped.cp_als(None, 3, precison="fp64")  # type: ignore[call-arg]


@pytest.mark.parametrize("verb", ["cpd", "mttkrp", "plan", "info"])
def test_every_option_is_a_flag_with_the_same_default(verb: str) -> None:
    line = [verb, "t.tns"] + (["--rank", "3"] if verb != "info" else [])
    parsed = vars(parser().parse_args(line))
    assert {name: parsed[name] for name in NAMES} == vars(Options())


@pytest.mark.parametrize("verb", ["cpd", "mttkrp", "plan", "info"])
def test_help_shows_an_example_that_parses(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([verb, "--help"])
    _, example = " ".join(capsys.readouterr().out.split()).split("example: ")
    assert parser().parse_args(example.split(maxsplit=example.split().index(verb))[-1].split()).verb == verb


def test_required_flags_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["cpd", "--help"])
    assert capsys.readouterr().out.startswith("usage: amped cpd [-h] --rank R ")
