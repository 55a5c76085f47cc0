"""How CUDA sources and their headers are put together."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from amped.backend.cuda import source

FOLDER = files("amped.backend.cuda")
KERNELS = sorted(each.name.removesuffix(".cu") for each in FOLDER.joinpath("kernels").iterdir())
HEADERS = sorted(each.name for each in FOLDER.joinpath("include").iterdir())


def included(folder: str, name: str) -> list[str]:
    return re.findall(r'^#include "(.+)"$', FOLDER.joinpath(folder, name).read_text("utf-8"), re.MULTILINE)


def test_every_header_is_a_header_that_something_includes() -> None:
    assert all("\n#pragma once\n" in FOLDER.joinpath("include", name).read_text("utf-8") for name in HEADERS)
    users = [*(("kernels", f"{name}.cu") for name in KERNELS), *(("include", name) for name in HEADERS)]
    assert {header for user in users for header in included(*user)} == set(HEADERS)


@pytest.mark.parametrize("name", KERNELS)
def test_each_header_takes_the_place_of_its_first_include(name: str) -> None:
    needed, todo = set[str](), included("kernels", f"{name}.cu")
    while todo:
        header = todo.pop()
        todo += [] if header in needed else included("include", header)
        needed.add(header)
    text = source.text(name)
    assert sorted(re.findall(r'^#line 1 "(.+)"$', text, re.MULTILINE)) == sorted(needed)
    assert re.search(r"^#(include|pragma once)", text, re.MULTILINE) is None


@pytest.mark.parametrize("name", KERNELS)
def test_lines_are_numbered_as_in_their_files(name: str) -> None:
    """So that a message of the compiler says where to look."""
    file, number = f"{name}.cu", 1
    seen = dict[str, set[int]]()
    for line in source.text(name).splitlines():
        if found := re.fullmatch(r'#line (\d+) "(.+)"', line):
            number, file = int(found[1]), found[2]
            continue
        folder = "kernels" if file.endswith(".cu") else "include"
        own = FOLDER.joinpath(folder, file).read_text("utf-8").splitlines()
        assert line == own[number - 1] or own[number - 1].startswith(("#include", "#pragma once"))
        seen.setdefault(file, set()).add(number)
        number += 1
    assert f"{name}.cu" in seen


def test_a_header_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        list(source._lines("kernels", "none.cu", set()))
