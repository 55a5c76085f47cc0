"""Missing files, and files of unsupported types."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from partitioner.errors import InputError
from partitioner.readers import ReadOptions, open_part, read
from partitioner.readers.kinds import REMEDIES, check_kind


@pytest.mark.parametrize("ending", sorted(REMEDIES))
@pytest.mark.parametrize("keys", [(), ("a", "b")])
def test_other_kinds_of_files(tmp_path: Path, ending: str, keys: tuple[str, ...]) -> None:
    path = tmp_path / f"x{ending.upper()}"
    path.write_bytes(b"\x1f\x8b\x08\x00" + bytes(range(256)))
    with pytest.raises(InputError, match=r"which amped does not read: ") as error:
        read(path, keys=keys)
    assert "\n" not in str(error.value)
    path.write_text("1 1 0.5\n2 2 1.5\n# \N{GREEK SMALL LETTER ALPHA}" + "\N{GREEK SMALL LETTER ALPHA}" * 999)
    check_kind(path, path, known=False)  # a text may have any name
    if not keys:
        assert read(path).shape == (2, 2)


@pytest.mark.parametrize(
    "name", ["x.csv", "x.parquet", "x.npz", "x.npy", "x.h5", "x.h5:a", "x.zarr", "x.mat", "x", "x.tns"]
)
@pytest.mark.parametrize("how", [{}, {"keys": ["a", "b"]}, {"keys": ["a"]}, {"no_values": True}, {"shape": (2, 2)}])
def test_a_missing_file_is_said_first(tmp_path: Path, name: str, how: dict[str, object]) -> None:
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / name, **how)  # type: ignore[arg-type]


def test_further_files_are_looked_at_too(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    np.arange(9).tofile(tmp_path / "b.xlsx")
    for name, told in (("b.xlsx", "b.xlsx: a spreadsheet"), ("c.csv", "c.csv: no such file")):
        with pytest.raises(InputError, match=told):
            open_part(tmp_path / "a.csv", form=ReadOptions(key=("a", "b"), more=(str(tmp_path / name),)))


def test_files_of_arrow(tmp_path: Path) -> None:
    pyarrow, _ = pytest.importorskip("pyarrow"), pytest.importorskip("duckdb")
    table = pyarrow.table({"ID": ["a", "b"], "id": ["x", "y"], "v": [1, 2]})
    for ending, new in (
        ("feather", pyarrow.ipc.new_file),
        ("arrow", pyarrow.ipc.new_file),
        ("ipc", pyarrow.ipc.new_stream),
    ):
        path = tmp_path / f"x.{ending}"
        with pyarrow.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
            writer.write_table(table)
        tensor = read(path, keys=["ID", "id"], value="v")
        assert tensor.values.tolist() == [1, 2]  # type: ignore[union-attr]
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"x\.ipc: not an Arrow file"):
        read(path, keys=["ID", "id"])
