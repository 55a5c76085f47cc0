"""What is found around a run: the locale, a standard output of any kind, names of files, settings of libraries."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import finish, in_process, refused, small_tns, succeeded

import amped

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # a locale whose encoding is not UTF-8
SMALL = amped.SparseTensor(np.array([[0, 0, 0], [1, 2, 3], [2, 1, 0]]), np.ones(3), (3, 4, 5))


class TakesText:
    """What scripts put in the place of standard output, to copy it to a log."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def fit(**options: Any) -> amped.KruskalTensor:
    return amped.cp_als(SMALL, 2, max_iters=2, device="cpu", verbose=True, **options)


def test_the_locale_changes_no_file_that_is_read_or_written(tmp_path: Path) -> None:
    model = amped.cp_als(SMALL, 1, max_iters=2, device="cpu")
    model.labels = [["é", "x", "y"], list("abcd"), list("abcde")]
    (tmp_path / "out").mkdir()
    model.save(tmp_path / "out" / "model.npz")
    (tmp_path / "out" / "run.json").write_text('{"command": "é"}', "utf-8")
    assert "\\xe9" in succeeded(in_process("show", "out", cwd=tmp_path, env=ASCII)).out
    succeeded(in_process("report", "out", cwd=tmp_path, env=ASCII))
    assert "é" in (tmp_path / "out" / "report.html").read_text("utf-8")
    code = "import amped; amped.cp_als([X], 2, max_iters=2, device='cpu')".replace(
        "[X]", repr(str(small_tns(tmp_path)))
    )
    succeeded(finish([sys.executable, "-c", code], env=ASCII))  # compiled code is named by a digest of its sources


@pytest.mark.parametrize("output", [lambda: None, TakesText, io.StringIO])
def test_standard_output_may_be_nothing_or_an_object_that_takes_text(
    output: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stands_in = output()
    monkeypatch.setattr(sys, "stdout", stands_in)
    model = fit()
    assert len(model.fits) == 2
    if isinstance(stands_in, TakesText):
        assert "iteration   2" in stands_in.text


def test_a_run_goes_on_where_standard_output_was_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    assert len(fit().fits) == 2
    assert capsys.readouterr().err.count("standard output: I/O operation on closed file; the run continues") == 1


def test_a_command_needs_no_standard_output(tmp_path: Path) -> None:
    line = f'"{sys.executable}" -m amped.run cpd small.tns --rank 1 --max-iters 2 --device cpu --output out >&-'
    small_tns(tmp_path)
    result = finish(["sh", "-c", line], cwd=tmp_path)
    assert (result.code, result.err) == (0, "")
    assert (tmp_path / "out" / "model.npz").exists()


@pytest.mark.parametrize("call", [amped.read, lambda name: amped.cp_als(name, 2)])
@pytest.mark.parametrize(
    ("name", "cause"),
    [("", "the file name is empty"), ("n" * 300 + ".tns", "File name too long"), ("a\0.tns", "null byte")],
)
def test_names_that_no_file_can_have(call: Callable[[Any], Any], name: str, cause: str) -> None:
    for given in (name, os.fsencode(name)):
        with pytest.raises(amped.InputError, match=cause):
            call(given)


def test_names_in_bytes_that_are_no_text(tmp_path: Path) -> None:
    name = os.fsencode(small_tns(tmp_path).rename(tmp_path / os.fsdecode(b"\xff.tns")))
    assert amped.read(name).shape == amped.cp_als(name, 1, max_iters=1, device="cpu").shape


def test_compiled_code_that_numba_is_told_not_to_make(tmp_path: Path) -> None:
    arguments = ["cpd", small_tns(tmp_path), "--rank", 1, "--device", "cpu", "--output", tmp_path / "out"]
    result = in_process(*arguments, env={"NUMBA_DISABLE_JIT": "1", "AMPED_COMPILE": "always"})
    refused(result, "NUMBA_DISABLE_JIT is set", "unset it")


def test_a_sparse_tensor_is_no_sequence() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        list(SMALL)
    with pytest.raises(TypeError, match="not iterable"):
        1.0 in SMALL  # noqa: B015
