"""Documents name what is there: links, flags, files, functions. launch/docs runs the tutorials and the gallery."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from phrases import banned, banned_in_code, banned_in_script, prose, texts_of_code

import amped
from amped.run import VERBS, parser
from partitioner import __main__ as partition

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCES = [ROOT / name for name in ("amped", "partitioner", "bench", "tests", "launch")]
# Folders without banned phrases in comments, docstrings and messages.
PLAIN = "amped bench docs/gallery launch partitioner tests".split()
WITH_PHRASES = "test_documents.py", "test_names.py"  # whose data are phrases and old names
# Flags of other programs, and of scripts that read their arguments themselves.
OTHERS = {"--quick", "--with-mpi", "--mpi", "--nodes", "--signal", "--gpus-per-task", "--kill-on-bad-exit", "--help"}
OTHERS |= {"--oversubscribe", "--editable", "--strict", "--kills", "--exhaustive", "--coverage"}
FOLDERS = [
    "",
    "amped",
    "partitioner",
    "partitioner/readers",
    "docs",
    "docs/guide",
    "docs/design",
    "amped/operators",
    "amped/backend",
    "amped/methods",
]


def text_of(page: Path) -> str:
    """Return a page without what tutorials run: that is checked by running it."""
    return re.sub(r"^```\{code-cell\}.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def flags_of(given: argparse.ArgumentParser) -> Iterator[str]:
    """Yield all flags of a parser and of its verbs."""
    for action in given._actions:
        yield from action.option_strings
        for verb in (action.choices or {}).values() if isinstance(action, argparse._SubParsersAction) else ():
            yield from flags_of(verb)


@cache
def known_flags() -> set[str]:
    """Return the flags of amped, of the partitioner, and of benchmarks."""
    bench = "\n".join(path.read_text() for path in (ROOT / "bench").glob("*.py"))
    fuzz = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path.name in ("fuzz.py", "soak.py"))
    found = re.findall(r'"(--[a-z][a-z0-9-]*)"', bench + fuzz)
    return {*flags_of(parser()), *flags_of(partition.parser()), *found, *OTHERS}


def slug(heading: str) -> str:
    """Return the anchor of a heading on a repository page."""
    plain = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return plain.replace(" ", "-")


def test_links() -> None:
    for page, link in ((each, link) for each in PAGES for link in re.findall(r"\]\(([^)\s]+)\)", text_of(each))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in map(slug, headings), f"{page.name}: {link}"


def test_flags() -> None:
    for page in PAGES:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", page.read_text()))
        assert named - known_flags() == set(), page.name


def test_files() -> None:
    pattern = r"`([\w./*-]+\.(?:py|cu|cuh|md|toml|sbatch|sh)\b|(?:amped|bench|tests|launch|partitioner)/[\w./*-]+)"
    for page, name in ((each, name) for each in PAGES for name in re.findall(pattern, text_of(each))):
        any_of = re.sub("DEVICE|RANKS|PART|OP|METHOD|KIND|(?<=_)x(?=[_.])", "*", name).rstrip(
            "*"
        )  # bench/results/host-PART.json
        found = [path for folder in FOLDERS for path in (ROOT / folder).glob(f"{any_of}*")]
        found = found or [path for source in SOURCES for path in source.rglob(any_of)]
        assert found, f"{page.name}: {name}"


def test_names() -> None:
    for page in PAGES:
        for name in re.findall(r"(?<![\w/.'-])amped\.(\w+)(?![\w./-]*\.(?:md|npz))", page.read_text()):
            assert hasattr(amped, name) or name in ("run", "def"), f"{page.name}: amped.{name}"


@cache
def known_tests() -> set[str]:
    """Return the names of all tests, and of their files."""
    files = list((ROOT / "tests").rglob("test_*.py"))
    functions = (name for path in files for name in re.findall(r"def (test_\w+)\(", path.read_text()))
    return {*functions, *(path.stem for path in files)}


def test_tests() -> None:
    for page in PAGES:
        named = set(re.findall(r"\btest_\w+", page.read_text())) - {"test_x", "test_x_mpi"}
        assert named - known_tests() == set(), page.name


def test_pages_of_the_gallery_answer_questions_in_few_lines() -> None:
    for path in ROOT.glob("docs/gallery/*.py"):
        lines = path.read_text().splitlines()
        assert len(lines) <= 40, path
        assert lines[1].endswith("?"), path
        assert set(lines[2]) == {"="}, path
        assert len(lines[2]) >= len(lines[1]), path


def test_pages_of_methods_have_the_same_sections() -> None:
    sections = ["Formula", "Parameters", "Stopping rule", "Cost", "Reference values", "Pitfalls"]
    for page in ROOT.glob("docs/methods/*.md"):
        if page.stem != "index":
            assert re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE) == sections, page


def commands(page: Path) -> Iterator[str]:
    """Yield the command lines of amped that a page shows, without who starts them and without placeholders."""
    shown = r"^ {0,8}(?:mpirun -n \d+ )?(?:python -m amped\.run|amped|launch/quickstart|launch/local) ([a-z]+ .+)$"
    inline = r"`(?:mpirun -n \d+ )?(?:python -m amped\.run|amped|launch/quickstart|launch/local) ([a-z]+ [^`]+)`"
    text = re.sub(r"\\\n *", "", page.read_text())
    for command in re.findall(f"{shown}|{inline}", text, re.MULTILINE):
        line = "".join(command)
        verb, then = line.split()[:2]
        whole = verb in VERBS and not then.startswith("-")
        if whole and not re.search(r"\.\.\.|\b(TENSOR|FILE|MODEL|STORE|[A-Z])\b", line):
            yield line


def test_commands() -> None:
    found, reads = [command for page in PAGES for command in commands(page)], parser()
    for command in found:
        args = reads.parse_args(shlex.split(command, comments=True))
        args.request.of(args)
    assert {"cpd", "scan", "show", "table", "plan", "info"} <= {command.split()[0] for command in found}


def test_reference_has_every_name() -> None:
    reference = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    found = re.findall(r"^\.\. auto(?:function|class|exception):: (?:amped\.)?(\w+)$", reference, re.MULTILINE)
    assert set(amped.__all__) - set(found) == set()


def test_the_guide_has_every_command() -> None:
    found = re.findall(r"^\| `amped (\w+)", (ROOT / "docs" / "guide" / "running.md").read_text(), re.MULTILINE)
    (verbs,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert sorted(found) == sorted(verbs.choices)


def newest(page: Path) -> str:
    """Return a page; of the changes only the newest section."""
    text = page.read_text()
    return "## ".join(text.split("\n## ")[:2]) if page.name == "CHANGELOG.md" else text


def test_phrases() -> None:
    for page in PAGES:
        assert list(banned(prose(newest(page)))) == [], page


def plain_files(folder: str) -> list[Path]:
    """Return the Python files and scripts of a folder in which phrases are checked."""
    files = (ROOT / folder).rglob("*")
    files = [path for path in files if path.suffix in (".py", ".sh", ".sbatch") or path.parent == ROOT / "launch"]
    return sorted(path for path in files if path.is_file() and path.name not in WITH_PHRASES)


@pytest.mark.parametrize("folder", PLAIN)
def test_phrases_of_code(folder: str) -> None:
    assert plain_files(folder)
    for path in plain_files(folder):
        check = banned_in_code if path.suffix == ".py" else banned_in_script
        assert list(check(path.read_text())) == [], path


def test_banned_phrases_are_found_in_comments_and_strings() -> None:
    source = (
        '''"""Return what there is."""\n\nalone = 1  # tells\n# It is not\n# told.\nx = f"{alone} anew `wants`"\n'''
    )
    assert [line for line, _ in texts_of_code(source)] == [1, 6, 3, 4]
    found = sorted((phrase.split(":")[0], phrase.split("'")[1]) for phrase in banned_in_code(source))
    assert found == [("line 1", "what there is"), ("line 3", "tells"), ("line 4", "told"), ("line 6", "anew")]


def test_banned_phrases_are_found_in_prose_only() -> None:
    text = "It takes 3 ms a\nmode, by rounding\nalone, and a copy of its\nown.\n\n    tell sh\n\n`tell` [a](told.md)"
    assert [found.split("'")[1] for found in banned(prose(text))] == ["alone", "of its own", "ms a mode"]
    assert list(banned(prose("A model of a mode: each column of a row, per mode."))) == []
