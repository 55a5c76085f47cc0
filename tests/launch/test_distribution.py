"""The packages that pip installs: complete, and usable outside the source tree."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import amped

ROOT = Path(__file__).parents[2]
PACKAGES = "amped", "partitioner"
MAX_BYTES = 500 << 20  # of an environment without GPU extras
SMOKE = """
import amped
X = amped.read("t.tns")
model = amped.cp_als(X, 2, max_iters=3, device="cpu")
model.save("m.npz")
assert amped.load("m.npz").shape == (2, 2, 3)
assert "site-packages" in amped.__file__
"""
ANNDATA = """
import amped, anndata, numpy, scipy.sparse
counts = scipy.sparse.csr_matrix(numpy.arange(12.0).reshape(4, 3))
made = anndata.AnnData(counts, layers={"spliced": counts, "unspliced": 2 * counts})
made.write_h5ad("cells.h5ad")
for each in (made, anndata.read_h5ad("cells.h5ad"), anndata.read_h5ad("cells.h5ad", backed="r")):
    model = amped.cp_als(each, 1, device="cpu")
    assert model.labels.names == ("layer", "obs", "var")
    assert model.fits[-1] > 0.5
"""


def data_files() -> list[Path]:
    """Return the files of the packages that are neither Python code nor settings of tools."""
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    return [path for path in files if path.suffix not in (".py", ".pyc") and not path.name.startswith(".")]


def test_editable_installations_are_a_path() -> None:
    """Otherwise setuptools installs an import hook: type checkers do not run it, and a folder named amped hides it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["package-dir"] == {"": "."}


def test_every_file_is_packaged() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]
    missing = [path for path in data_files() if not any(fnmatch.fnmatch(path.name, each) for each in patterns)]
    assert not missing


def test_the_citation_has_the_version() -> None:
    found = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert found is not None
    assert found[1] == amped.__version__


def test_metadata() -> None:
    """All but a licence, which is not chosen yet, and addresses, of which there are none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"description", "readme", "authors", "keywords", "classifiers", "requires-python"} <= project.keys()
    names = [author["name"] for author in project["authors"]]
    cited = re.findall(r"^  - name: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert names == cited


def run(folder: Path, *command: object, **variables: str) -> str:
    """Run a command with little more than a PATH; return its output."""
    environment = {"PATH": os.defpath, "HOME": str(folder), **variables}
    pip = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "http"))}
    words = list(map(str, command))
    result = subprocess.run(
        words, cwd=folder, env=pip | environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def install(folder: Path, python: Path, *what: object) -> None:
    """Install packages into an environment; skip the test if no index can be reached."""
    words = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    try:
        run(folder, *words)
    except AssertionError as error:
        if "Could not find a version" in str(error):
            pytest.skip("no index of packages can be reached")
        raise


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_an_empty_environment(tmp_path: Path) -> None:
    source, built, empty = (tmp_path / name for name in ("source", "built", "empty"))
    for folder in (source, empty):
        folder.mkdir()
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    environment = tmp_path / "environment"
    run(tmp_path, sys.executable, "-m", "venv", environment)
    before, python = size(environment), environment / "bin" / "python"
    install(tmp_path, python, "build", "setuptools>=77", "wheel")
    run(source, python, "-m", "build", "--no-isolation", "--outdir", built)  # the wheel from the source archive
    (wheel,), (archive,) = built.glob("*.whl"), built.glob("*.tar.gz")
    packed = {str(path.relative_to(ROOT)) for path in data_files()}
    assert packed <= set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(archive) as opened:
        assert packed <= {name.split("/", 1)[1] for name in opened.getnames() if "/" in name}

    shutil.rmtree(environment)
    run(tmp_path, sys.executable, "-m", "venv", environment)
    install(tmp_path, python, wheel)
    assert size(environment) - before < MAX_BYTES
    (empty / "t.tns").write_text("1 1 1 2.0\n1 2 3 -4.0\n2 2 2 1\n")
    command = environment / "bin" / "amped"
    assert run(empty, command, "--version") == f"amped {amped.__version__}\n"
    run(empty, python, "-c", SMOKE)
    two = "--rank", 2, "--max-iters", 2
    run(empty, command, "cpd", "t.tns", *two, "--device", "cpu", "--output", "m")
    assert "2 components" in run(empty, command, "show", "m")
    run(empty, python, "-m", "partitioner", "t.tns", "--output", "store")
    compiled = run(
        empty, command, "cpd", "store", "--rank", 2, "--max-iters", 2, "--output", "n", AMPED_COMPILE="always"
    )
    assert "without compiled code" not in compiled
    install(tmp_path, python, "anndata")  # apart from the other tests, as it requires an older pandas
    run(empty, python, "-c", ANNDATA)


def size(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*"))
