"""Phrases that documents and code avoid, and what to write instead.

`banned` checks plain text. `prose` extracts it from a page, `texts_of_code` from a Python file.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from itertools import groupby

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
_EACH = "bytes? bits? index indices keys? labels? threads? arrays?".replace(" ", "|")

# The same, for code only.
CODE_PHRASES = PHRASES | {
    r"\bwhoever\b": "the caller, the reader, ...",
    r"\bwhat there is\b": "the ..., or leave it out",
    r"(?<!there )\bis no (?:number|integer|object|table|tensor|array|column|model|text|label|file)\b": "is not a ...",
    r"\blet(?:s|ting)? (?:it |them )?go\b": "release, drop, free",
    r"\b(?:can|may|could) be had\b": "is available",
    r"\bput aside\b": "deferred, stored",
    r"\bas (?:it|they) (?:is|are) kept\b": "as stored, in canonical form",
    r"\bbehind each other\b": "consecutive, concatenated",
    r"\blooked at together\b": "processed at a time",
    r"\bunasked\b": "by default, automatically",
    rf"\b(?:{_EACH}) an? (?:mode|row|column|rank|node|nonzero|GPU|thread|block|file|iteration|sweep)\b": "per ...",
}

# All of them in one pass over text in lower case.
_ANY = re.compile(r"\b(?:" + "|".join(pattern.removeprefix(r"\b").lower() for pattern in CODE_PHRASES) + ")")
_MARKS = re.compile(r"(?:\\[nrt]|[\s#!\"'\\])+")  # what may stand between words of a phrase in the source


def prose(markdown: str) -> str:
    """Return the running text of a page: no code, no targets of links, no line breaks within sentences."""
    text = re.sub(r"^```.*?^```$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]+`", "CODE", text)
    return re.sub(r"\s+", " ", re.sub(r"\]\([^)]*\)", "]", text))


def texts_of_code(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments, docstrings and other string literals of a Python file, each with its first line number.

    Comments on consecutive lines are one text. Names in backticks are removed, and so are line breaks.
    """
    for line, text in [*_strings(source), *_comments(source)]:
        yield line, re.sub(r"\s+", " ", re.sub(r"`[^`]+`", "CODE", text))


def _strings(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _comments(source: str) -> Iterator[tuple[int, str]]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    for _, group in groupby(enumerate(comments), key=lambda item: _paragraph(*item)):
        lines = [token for _, token in group]
        yield lines[0].start[0], " ".join(token.string.lstrip("#! ") for token in lines)


def _paragraph(number: int, comment: tokenize.TokenInfo) -> tuple[bool, int]:
    """Return a key that comments on consecutive lines share, unless they follow code on the same line."""
    line, column = comment.start
    trailing = bool(comment.line[:column].strip())
    return trailing, line if trailing else line - number


def banned(text: str, phrases: Mapping[str, str] = PHRASES) -> Iterator[str]:
    """Yield each banned phrase of a text with its surroundings, and what to write instead."""
    for pattern, instead in phrases.items():
        for match in re.finditer(pattern, text, re.IGNORECASE):
            around = text[max(match.start() - 40, 0) : match.end() + 30]
            yield f"{match[0]!r} in '...{around}...': {instead}"


def banned_in_code(source: str) -> Iterator[str]:
    """Yield each banned phrase in the comments and strings of a Python file, with its line number."""
    if not _ANY.search(_MARKS.sub(" ", source.lower())):  # a fifth of the time that parsing takes
        return
    texts = list(texts_of_code(source))
    if any(banned("\n".join(text for _, text in texts), CODE_PHRASES)):  # in one piece a tenth of the time
        for line, text in texts:
            yield from (f"line {line}: {phrase}" for phrase in banned(text, CODE_PHRASES))


def banned_in_script(source: str) -> Iterator[str]:
    """Yield each banned phrase in a shell script, with its line number."""
    for line, text in enumerate(source.splitlines(), 1):
        yield from (f"line {line}: {phrase}" for phrase in banned(text, CODE_PHRASES))
