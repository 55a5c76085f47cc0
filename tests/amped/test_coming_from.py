"""The code of the page for users of other packages runs, and its assertions hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "coming_from.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_code(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("pyttb", "tensorly"):
        if re.search(rf"import .*\b{library}\b", BLOCKS[number]):
            pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"{PAGE.name}, block {number}", "exec"), {})


def test_every_package_but_programs_has_code() -> None:
    assert len(BLOCKS) == 4
