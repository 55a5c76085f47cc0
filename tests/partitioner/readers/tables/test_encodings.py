"""Tables in other encodings than UTF-8."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path

import pytest

from partitioner.errors import InputError, InputWarning
from partitioner.readers import read
from partitioner.tensors.sparse import SparseTensor

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

TEXT = "s\xe4\xdf,v\n\xe4,1\nb\xf6,2\n"
JSON = '{"s\xe4\xdf": "\xe4", "v": 1}\n{"s\xe4\xdf": "b\xf6", "v": 2}\n'


def labels(path: Path) -> list[str]:
    tensor = read(path, keys=["s\xe4\xdf", "v"])
    assert isinstance(tensor, SparseTensor)
    assert tensor.labels is not None
    found: list[str] = tensor.labels[0].tolist()
    return found


@pytest.mark.parametrize(("name", "text"), [("x.csv", TEXT), ("x.csv.gz", TEXT), ("x.jsonl", JSON)])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_encodings(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    path, data = tmp_path / name, text.encode(encoding)
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    if encoding == "latin-1":
        with pytest.warns(InputWarning, match=f"{name}: not UTF-8: read as Windows-1252"):
            assert labels(path) == ["b\xf6", "\xe4"]
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        assert labels(path) == ["b\xf6", "\xe4"]


def test_what_only_windows_has(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(TEXT.replace("b\xf6", "\N{EURO SIGN}").encode("cp1252") + b"\x81,3\n")
    with pytest.warns(InputWarning, match="not UTF-8"):
        assert labels(path) == ["\x81", "\xe4", "\N{EURO SIGN}"]


def test_a_mixture_of_encodings(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(TEXT.encode() + "\xe4,3\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"x\.csv, line 4: is not UTF-8, but line 1 is: save it in one encoding"):
        labels(path)
    path.write_bytes(TEXT.encode("utf-16")[:-1])
    with pytest.raises(InputError, match="is not UTF-16"):
        labels(path)


@pytest.mark.parametrize("encoding", ["latin-1", "shift_jis", "utf-8", "utf-16", "cp437"])
def test_an_encoding_that_is_known(tmp_path: Path, encoding: str) -> None:
    text = {"shift_jis": "東京", "cp437": "Zürich"}.get(encoding, "Málaga")
    path = tmp_path / "t.csv"
    path.write_text(f"who,what\n{text},b\nplain,c\n", encoding=encoding)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        X = read(path, keys=["who", "what"], encoding=encoding)
    assert isinstance(X, SparseTensor)
    assert X.labels is not None
    assert set(X.labels[0]) == {text, "plain"}


def test_a_wrong_encoding(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("who,what\nMálaga,b\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"t\.csv.*is not ASCII: 'ascii' codec"):
        read(path, keys=["who", "what"], encoding="ascii")
    with pytest.raises(InputError, match="not utf-8 encoded"):
        read(path, keys=["who", "what"], encoding="utf8")
    for name in ("klingon", "base64", "", "a\0b"):
        with pytest.raises(InputError, match=r"encoding .*: unknown; expected a name"):
            read(path, keys=["who", "what"], encoding=name)
