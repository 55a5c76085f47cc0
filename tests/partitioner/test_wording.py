"""Messages name flags on the command line, and keyword arguments in Python."""

from __future__ import annotations

import pytest

from partitioner.wording import command_line, parameter, setting


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
