"""The results on disk: documents name each of them, and they have medians and spread instead of samples."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from command import ROOT

from bench.record import RESULTS, WIDTH, formatted

FILES = sorted(path for path in RESULTS.rglob("*") if path.is_file())
PLACEHOLDERS = "PART", "DEVICE", "RANKS"


@pytest.fixture(scope="module")
def patterns() -> set[str]:
    """Return the names of results in documents, with * for placeholders."""
    text = "\n".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    names = set(re.findall(r"[\w*-]+\.(?:json|png)", text)) | set(re.findall(r"bench/results/([\w-]+\*)", text))
    return {re.sub("|".join(PLACEHOLDERS), "*", name) for name in names} - {"*.json", "*.png"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_document_names_it(path: Path, patterns: set[str]) -> None:
    assert any(fnmatch(path.name, pattern) for pattern in patterns)


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".json"], ids=lambda path: path.stem)
def test_it_has_no_samples(path: Path) -> None:
    text = path.read_text()
    result = json.loads(text)
    assert result["benchmark"] == path.stem
    assert formatted(result) + "\n" == text
    assert max(map(len, lists(result)), default=0) < 20, "more is samples"


def lists(value: Any) -> list[list[float]]:
    """Return all lists of numbers in a value."""
    if isinstance(value, dict):
        return [found for each in value.values() for found in lists(each)]
    if not isinstance(value, list):
        return []
    numbers = [value] if all(isinstance(each, int | float) for each in value) else []
    return numbers + [found for each in value for found in lists(each)]


def test_what_fits_is_one_line() -> None:
    value = {"a": 1 / 3, "b": [1, 2.5], "c": {"d": None, "e": (True, "x")}}
    assert formatted(value) == '{"a": 0.333333333, "b": [1, 2.5], "c": {"d": null, "e": [true, "x"]}}'
    wide = {"first": {"a": "x" * WIDTH}, "second": [{"b": "y" * WIDTH}, 1], "numbers": list(range(100))}
    text = formatted(wide)
    assert json.loads(text) == wide
    assert text.splitlines()[1] == ' "first": {'
    assert sum(line.startswith(' "numbers": [0, 1,') for line in text.splitlines()) == 1
