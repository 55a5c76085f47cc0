"""The published examples of other packages: their code runs, in order, and its numbers are those of the page."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "published.md"


def test_the_numbers_of_the_page() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 8
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of fits that are low, as those of random numbers are
        for number, block in enumerate(blocks):
            exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)
