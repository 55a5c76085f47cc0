"""Members of archives that threads read: their checksums, in pieces."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.readers.arrays import members
from partitioner.readers.arrays.members import Member, joined


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_checksum_of_two_parts(first: bytes, second: bytes) -> None:
    assert joined(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


def test_the_checksum_of_a_long_part() -> None:
    first, second = b"abc", bytes(range(256)) * 4099
    assert joined(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


@pytest.mark.parametrize("read", [[], [(0, 999)], [(500, 499)], [(300, 100), (7, 13), (20, 200)]], ids=str)
def test_a_member_is_verified_whatever_was_read_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(members, "PIECE", 100)
    content = bytes(range(256)) * 4
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other", "before")
        archive.writestr("this", content[:999])
    for damage in (None, 0, 350, 998):
        data = bytearray(path.read_bytes())
        if damage is not None:
            data[data.find(content[:99]) + damage] ^= 1
        (tmp_path / "y.zip").write_bytes(data)
        with open(tmp_path / "y.zip", "rb") as file:
            member = Member(file.fileno(), zipfile.ZipFile(file).getinfo("this"))
            for begin, size in read:
                found = member.read(begin, size).tobytes()
                assert damage is not None or found == content[begin : begin + size]
            if damage is None:
                member.verify()
            else:
                with pytest.raises(zipfile.BadZipFile, match="Bad CRC-32 for file 'this'"):
                    member.verify()
