"""Phrases that documents avoid, and what to write instead.

`banned` takes any plain text, so docstrings and messages can be checked like pages: pages go through `prose` first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_UNITS = r"\d(?:[\d.,]*\d)? ms us GB [a-z]*seconds? ones? numbers? array sequence sweeps? factorisation barrier"
_PER = f"(?:{'|'.join(_UNITS.split())})"

# Regular expressions, matched without regard to case, and what says the same.
PHRASES = {
    r"\btold\b": "name who reports what: prints, reports, shows",
    r"\btell(?:s|ing)?\b": "prints, reports, shows, or a passive with a subject",
    r"\bask(?:s|ed|ing)? for\b": "request, use, need",
    r"\b(?:was|were|is|are) asked\b": "target, required",
    r"\basked were\b": "target: ...",
    r"\balone\b": "only, by itself, in one process",
    r"\bwants\b": "needs",
    r"\banew\b": "again",
    r"\bso many\b": "as many, N",
    r"\bthat there (?:is|are)\b": "existing, or leave it out",
    r"\bof (?:its|their|our|your|his|her) own\b": "its own ..., separate",
    rf"\b{_PER} a (?:mode|row|column|rank|node|nonzero)\b": "per mode, for each mode",
    r"\bmended\b": "fixed",
    r"\briddles?\b": "problem, unclear",
}


def prose(markdown: str) -> str:
    """Return the running text of a page: no code, no targets of links, no line breaks within sentences."""
    text = re.sub(r"^```.*?^```$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]+`", "CODE", text)
    return re.sub(r"\s+", " ", re.sub(r"\]\([^)]*\)", "]", text))


def banned(text: str) -> Iterator[str]:
    """Yield each banned phrase of a text with its surroundings, and what to write instead."""
    for pattern, instead in PHRASES.items():
        for found in re.finditer(pattern, text, re.IGNORECASE):
            around = text[max(found.start() - 40, 0) : found.end() + 30]
            yield f"{found[0]!r} in '...{around}...': {instead}"
