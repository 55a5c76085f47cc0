"""Names that the vocabulary replaced are not defined any more, and a class name belongs to one package."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("amped", "partitioner", "bench")
# Modules of `cpu/simd` may have these names: there they are the standard terms.
SIMD = {"registers", "quotients"}
MODULES = """
telling given asked dealt ahead small onhost multiply narrow leading eights registers quotients team aside join beside
meet note forms pace recorder hosts drafts claims checked foreign held side_by_side batched counts_side_by_side
leading_rows queued_rows eigen pairs wide several keep family remembered private filed taking words verbs functions
answer pauses draws
""".split()
CLASSES = """
Teller Told Asked Held DealtSource Ahead SideBySide Alternating Counting Batched HostEquations HostConstrained CudaBatch
Room DeviceRoom SortedFacts
""".split()
FUNCTIONS = """
told all_told side_by_side batched counts_side_by_side queued_rows leading_rows eigen remember recall pairs_of
pairs_bytes several_of goes_ahead held_norm dealt_loading
""".split()


@cache
def sources() -> dict[Path, ast.Module]:
    """Return the syntax trees of all modules, by path."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in paths}


def definitions(kind: type[ast.ClassDef] | type[ast.FunctionDef]) -> Iterator[tuple[str, Path]]:
    """Yield the names of all classes, or of all functions and methods, and where they are."""
    for path, tree in sources().items():
        yield from ((node.name, path) for node in ast.walk(tree) if isinstance(node, kind))


def test_no_module_has_an_old_name() -> None:
    old = [
        path for path in sources() if path.stem in MODULES and not (path.parent.name == "simd" and path.stem in SIMD)
    ]
    assert old == []


@pytest.mark.parametrize(("kind", "old"), [(ast.ClassDef, CLASSES), (ast.FunctionDef, FUNCTIONS)])
def test_nothing_is_defined_under_an_old_name(kind: type[ast.ClassDef] | type[ast.FunctionDef], old: list[str]) -> None:
    assert [(name, str(path)) for name, path in definitions(kind) if name in old] == []


def test_class_names_belong_to_one_package() -> None:
    packages = defaultdict(set)
    for name, path in definitions(ast.ClassDef):
        packages[name].add(path.parent)
    twice = {name: sorted(map(str, where)) for name, where in packages.items() if len(where) > 1}
    assert twice == {}
