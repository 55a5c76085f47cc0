"""Messages name flags on the command line and keyword arguments in Python, and write numbers as people do."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from partitioner.wording import command_line, parameter, readable, setting


def test_parameters() -> None:
    assert [parameter("index_base"), setting("dense"), setting("gather", "fp16"), setting("tol", 1e-5)] == [
        "index_base", "dense=True", "gather='fp16'", "tol=1e-05",
    ]  # fmt: skip
    with command_line(), command_line():
        assert [parameter("index_base"), setting("dense"), setting("gather", "fp16"), setting("tol", 1e-5)] == [
            "--index-base", "--dense", "--gather fp16", "--tol 1e-05",
        ]  # fmt: skip


def test_the_command_line_ends() -> None:
    @command_line()
    def main() -> str:
        return parameter("key")

    assert [main(), main(), parameter("key")] == ["--key", "--key", "key"]
    with pytest.raises(KeyError), command_line():
        raise KeyError
    assert parameter("key") == "key"


def test_numbers_have_no_exponent_that_people_would_not_write() -> None:
    numbers = 99_250.4, -1_105_009.3, 9999.996, 1077.6, 2012.0, 0.09263572, 0.0, 1e15, 2e-5, float("inf"), float("nan")
    texts = "99,250.4 -1,105,009 10,000 1,077.6 2,012 0.0926357 0 1e+15 2e-05 inf nan"
    assert [readable(number) for number in numbers] == texts.split()
    assert [readable(number, 4) for number in (99_250.4, 7450.12, 0.12345)] == ["99,250", "7,450", "0.1235"]


FLAGS = re.compile(r"(?<![\w-])--[a-z]")
OF_COMMANDS = {  # messages of the command line, flags of other programs, and variables of CSS
    "amped/cli", "amped/run.py", "amped/files.py", "amped/methods/proximal/terms.py", "amped/report/charts.py",
    "amped/report/metrics.py", "partitioner/__main__.py", "partitioner/flags.py", "partitioner/wording.py",
    "partitioner/cuda/code.py", "partitioner/host/ranks.py", "partitioner/readers/tables/database.py",
}  # fmt: skip


def test_messages_name_parameters_as_the_user_writes_them() -> None:
    """By `parameter` and `setting`: a flag in a text would be wrong in Python."""
    root = Path(__file__).parents[2]
    for path in (each for package in ("amped", "partitioner") for each in (root / package).rglob("*.py")):
        name = path.relative_to(root)
        if OF_COMMANDS.isdisjoint(map(str, (name, *name.parents))):
            nodes = [*ast.walk(ast.parse(path.read_text()))]
            docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            texts = [n.value for n in nodes if isinstance(n, ast.Constant) and id(n) not in docstrings]
            assert not [text for text in texts if isinstance(text, str) and FLAGS.search(text)], name
