"""Wrong input: one line that names file, line and cause, exit code 2, nothing written, on any number of ranks."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from command import (
    entries,
    on_ranks,
    refused,
    refused_on_ranks,
    run_amped,
    run_partitioner,
    small_tns,
    succeeded,
    write_factors,
)
from forms import exhaustive

from amped.backend.cuda import probe
from partitioner.store import format as store

RANK = 4
GOOD = "1 1 1 1.5\n2 3 1 -2.0\n3 2 2 0.5\n"

# Name: (contents, the line at fault or None, what the message must say)
TEXTS: dict[str, tuple[str, int | None, tuple[str, ...]]] = {
    "empty": ("", None, ("empty",)),
    "only comments": ("# a\n\n# b\n", None, ("no nonzeros",)),
    "too few columns": (GOOD + "1 2 3.0\n", 4, ("3 columns", "expected 4")),
    "too many columns": (GOOD + "# c\n1 2 3 4 5.0\n", 5, ("5 columns", "expected 4")),
    "fractional index": (GOOD + "1 2.5 1 3.0\n", 4, ("2.5", "mode 1", "not an integer")),
    "text for an index": (GOOD + "1 2 x 3.0\n", 4, ("'x'", "mode 2", "not an integer")),
    "zero index": ("1 1 1 1.0\n2 0 1 1.0\n", 2, ("'0'", "mode 1", "from 1")),
    "zero index in the first line": ("0 1 1 1.0\n", 1, ("'0'", "mode 0", "from 1")),
    "negative index": (GOOD + "-3 1 1 1.0\n", 4, ("-3", "mode 0", "from 1")),
    "huge index": (GOOD + f"1 {2**31} 1 1.0\n", 4, (str(2**31), "mode 1", str(2**31 - 1))),
    "index past 64 bits": (GOOD + f"1 1 {10**30} 1.0\n", 4, ("mode 2", str(2**31 - 1))),
    "not a number": (GOOD + "1 1 1 nan\n", 4, ("nan", "not finite")),
    "infinite": (GOOD + "1 1 1 -Inf\n", 4, ("Inf", "not finite")),
    "past a double": (GOOD + "1 1 1 1e999\n", 4, ("1e999", "too large")),
    "text for a value": (GOOD + "1 1 1 one\n", 4, ("one", "not a number")),
    "order 1": ("1 2.0\n2 3.0\n", 1, ("order 1", "2 to 8")),
    "order 9": ("1 1 1 1 1 1 1 1 1 2.0\n", 1, ("order 9", "2 to 8")),
    "only zeros": ("1 1 1 0.0\n1 2 1 0\n", None, ("no nonzeros",)),
    "beyond the declared shape": ("sptensor\n3\n3 3 2\n2\n1 1 1 1.0\n1 2 3 1.0\n", 6, ("'3'", "mode 2", "length 2")),
    "declared length past 31 bits": (f"3\n3 {2**31} 2\n1 1 1 1.0\n", 2, (str(2**31), "mode 1", str(2**31 - 1))),
    "wrong count in the header": ("sptensor\n3\n3 3 2\n5\n1 1 1 1.0\n", 4, ("5", "1")),
    "binary": ("1 1 1 1.0\n\x01\x02\n", 2, ("not text",)),
}


def refuse(path: Path, *parts: object) -> str:
    """Check that a tensor is refused by every verb that reads it, and leaves no file behind."""
    before = entries(Path.cwd())
    line = refused(run_amped("mttkrp", path, "--rank", RANK, "--output", "out.npz"), path, *parts)
    for verb in (["info", path], ["plan", path, "--rank", RANK]):
        assert refused(run_amped(*verb)) == line
    assert refused(run_partitioner(path, "--output", "store"), program="amped-partition").endswith(line[6:])
    assert entries(Path.cwd()) == before
    return line


# ---------------------------------------------------------------------------------------------- the tensor


@pytest.mark.parametrize("case", TEXTS)
def test_wrong_text_is_refused_with_its_line(folder: Path, case: str) -> None:
    text, line, parts = TEXTS[case]
    path = folder / "bad.tns"
    path.write_text(text)
    message = refuse(path, *parts)
    if line is not None:
        assert f"bad.tns, line {line}: " in message
    packed = folder / "bad.tns.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert refuse(packed) == message.replace("bad.tns", "bad.tns.gz")


def test_missing_file(folder: Path) -> None:
    for name in ("none.tns", "none.tns.gz", "none.npz", "no/such/folder"):
        refuse(folder / name, "no such file")


def test_truncated_and_damaged_gzip(folder: Path) -> None:
    rng = np.random.default_rng(0)
    whole = gzip.compress(
        "".join(f"{i} {j} 1 {v}\n" for i, j, v in zip(*rng.integers(1, 99, (3, 900)), strict=True)).encode()
    )
    path = folder / "cut.tns.gz"
    for size in (5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        refuse(path, "gzip")
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    path.write_bytes(flipped)
    refuse(path)


def test_error_is_that_of_the_first_wrong_line_of_a_long_file(folder: Path) -> None:
    lines = [f"{i % 97 + 1} {i % 13 + 1} {i % 5 + 1} 1.0\n" for i in range(400_000)]
    lines[310_000], lines[399_999] = "1 1 0 1.0\n", "1 nonsense\n"
    path = folder / "long.tns"
    path.write_text("".join(lines))
    assert "long.tns, line 310001: " in refuse(path, "'0'", "mode 2")


def npz(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def test_wrong_archives(folder: Path) -> None:
    indices, values = np.array([[0, 0, 0], [1, 2, 1]]), np.array([1.0, 2.0])
    good = {"indices": indices, "values": values, "shape": np.array([2, 3, 2])}
    wrong: list[tuple[dict[str, object], tuple[str, ...]]] = [
        ({"indices": indices + 0.5}, ("indices", "integers")),
        ({"indices": indices - 1}, ("index -1", "mode 0")),
        ({"indices": indices[:, :1], "shape": np.array([2])}, ("order 1",)),
        ({"indices": indices.ravel()}, ("indices", "(nnz, order)")),
        ({"indices": indices[:0], "values": values[:0]}, ("no nonzeros",)),
        ({"shape": np.array([2, 2, 2])}, ("index 2", "mode 1", "length 2")),
        ({"shape": np.array([2, 3, 2**31])}, (str(2**31), "mode 2", str(2**31 - 1))),
        ({"shape": np.array([2, 3])}, ("2 modes", "3")),
        ({"shape": np.array([2, 3, 0])}, ("length 0",)),
        ({"values": np.array([1.0, np.nan])}, ("nan", "not finite")),
        ({"values": np.array([1.0, -np.inf])}, ("inf", "not finite")),
        ({"values": np.array([0.0, 0.0])}, ("no nonzeros",)),
        ({"values": np.array([1.0, 2.0, 3.0])}, ("3", "2")),
        ({"values": np.array([1j, 2.0])}, ("values", "complex")),
        ({"values": np.array([1.0, "x"], dtype=object)}, ("values",)),
    ]
    for change, parts in wrong:
        refuse(npz(folder / "bad.npz", **{**good, **change}), *parts)
    refuse(npz(folder / "bad.npz", values=values), "indices")
    refuse(npz(folder / "bad.npz", indices=indices), "values")
    whole = npz(folder / "bad.npz", **good).read_bytes()
    for content in (b"", b"not a zip", whole[: len(whole) // 2], whole[:200] + bytes(60) + whole[260:]):
        (folder / "bad.npz").write_bytes(content)
        refuse(folder / "bad.npz")


def make_store(folder: Path) -> Path:
    succeeded(run_partitioner(small_tns(folder), "--output", folder / "store"))
    return folder / "store"


def refuse_store(path: Path, *parts: object) -> str:
    """Check that a run on a store is refused, and leaves no file behind."""
    before = entries(path.parent)
    line = refused(run_amped("mttkrp", path, "--rank", RANK, "--output", path.parent / "out.npz"), *parts)
    assert entries(path.parent) == before
    return line


def test_store_with_a_missing_file(folder: Path) -> None:
    path = make_store(folder)
    names = sorted(p.name for p in path.iterdir())
    assert len(names) == 1 + 3 * 4
    for name in names:
        (path / name).rename(folder / "aside")
        refuse_store(path, path, name)
        (folder / "aside").rename(path / name)
    succeeded(run_amped("mttkrp", path, "--rank", RANK))


def test_store_with_a_damaged_file(folder: Path) -> None:
    path = make_store(folder)
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        for damage in (whole[:-1], whole + b"\0", b"", whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]):
            file.write_bytes(damage)
            refuse_store(path, file)
        file.write_bytes(whole)
    succeeded(run_amped("mttkrp", path, "--rank", RANK))


def test_a_damaged_store_is_taken_unverified_if_asked_for(folder: Path) -> None:
    path = make_store(folder)
    whole = (path / "mode0.values.npy").read_bytes()
    (path / "mode0.values.npy").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refuse_store(path, "mode0.values.npy", "checksum")
    succeeded(run_amped("mttkrp", path, "--rank", RANK, "--no-verify"))


def test_store_of_another_version_and_folders_that_are_none(folder: Path) -> None:
    path = make_store(folder)
    manifest = path / store.MANIFEST
    body = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**body, "version": 99}))
    refuse_store(path, manifest, "99")
    manifest.write_text("[]")
    refuse_store(path, manifest)
    manifest.unlink()
    refuse_store(path, path, store.MANIFEST)
    (folder / "bare").mkdir()
    refuse_store(folder / "bare", folder / "bare", "not a store")


# ------------------------------------------------------------------------------------------- flags and start

FLAGS: dict[str, tuple[list[object], tuple[str, ...]]] = {
    "no such verb": (["decompose", "T"], ("decompose", "cpd")),
    "a tensor for a verb": (["T"], ("T", "cpd")),
    "unknown flag": (["cpd", "T", "--rank", 4, "--colour"], ("--colour",)),
    "unknown flag of the example": (["--colour"], ("--colour",)),
    "flag of another verb": (["mttkrp", "T", "--rank", 4, "--tol", 0], ("--tol",)),
    "no tensor": (["cpd", "--rank", 4], ("TENSOR",)),
    "no rank": (["cpd", "T"], ("--rank",)),
    "rank is not a number": (["cpd", "T", "--rank", "x"], ("--rank", "'x'")),
    "rank 0": (["mttkrp", "T", "--rank", 0], ("rank 0", "from 1 to 4096")),
    "rank below 0": (["mttkrp", "T", "--rank", -1], ("rank -1", "from 1 to 4096")),
    "rank 1025": (["mttkrp", "T", "--rank", 1025], ("rank 1025", "from 1 to 1024")),
    "rank 0 of a plan": (["plan", "T", "--rank", 0], ("rank 0", "from 1 to 4096")),
    "rank 1025 of a plan": (["plan", "T", "--rank", 1025], ("rank 1025", "from 1 to 1024")),
    "mode past the order": (["mttkrp", "T", "--rank", 4, "--mode", 3], ("--mode 3", "0 to 2")),
    "negative mode": (["mttkrp", "T", "--rank", 4, "--mode", -1], ("--mode -1", "0 to 2")),
    "mode is not a number": (["mttkrp", "T", "--rank", 4, "--mode", "first"], ("--mode first", "0 to 2")),
    "mode is a digit of another kind": (["mttkrp", "T", "--rank", 4, "--mode", "²"], ("--mode ²", "0 to 2")),
    "device memory is not a number": (
        ["plan", "T", "--rank", 4, "--device-memory", "big"],
        ("--device-memory", "'big'"),
    ),
    "device memory 0": (["plan", "T", "--rank", 4, "--device-memory", 0], ("--device-memory", "'0'")),
    "device memory below 0": (["plan", "T", "--rank", 4, "--device-memory", "-4G"], ("--device-memory",)),
    "device memory nan": (["plan", "T", "--rank", 4, "--device-memory", "nan"], ("--device-memory", "'nan'")),
    "device memory too small": (["mttkrp", "T", "--rank", 4, "--device-memory", "1K"], ("device memory", "1,024")),
    "too small to be resident": (
        ["mttkrp", "T", "--rank", 4, "--device-memory", "1K", "--placement", "resident"],
        ("device memory", "1,024"),
    ),
    "precision": (["cpd", "T", "--rank", 4, "--precision", "fp16"], ("--precision", "fp16", "fp32", "fp64")),
    "device": (["cpd", "T", "--rank", 4, "--device", "tpu"], ("--device", "tpu", "cuda")),
    "placement": (["cpd", "T", "--rank", 4, "--placement", "disk"], ("--placement", "disk", "stream")),
    "kernel": (["mttkrp", "T", "--rank", 4, "--kernel", "fastest"], ("fastest", "auto")),
    "threads": (["mttkrp", "T", "--rank", 4, "--threads", 0], ("threads 0",)),
    "a mode of many digits": (["mttkrp", "T", "--rank", 4, "--mode", "1" * 5000], ("--mode 111", "...", "0 to 2")),
    "rank with an underscore": (["cpd", "T", "--rank", "1_0"], ("--rank", "'1_0'", "whole number")),
    "rank in Arabic digits": (["cpd", "T", "--rank", "٣"], ("--rank", "whole number")),
    "tolerance with an underscore": (["cpd", "T", "--rank", 4, "--tol", "1_0"], ("--tol", "'1_0'", "not a number")),
    "threads of many digits": (
        ["mttkrp", "T", "--rank", 4, "--threads", "9" * 5000],
        ("--threads", "has more than 32 digits"),
    ),
    "repeat": (["mttkrp", "T", "--rank", 4, "--repeat", 0], ("--repeat 0",)),
    "ranks 0": (["plan", "T", "--rank", 4, "--ranks", 0], ("--ranks 0",)),
    "ranks below 0": (["plan", "T", "--rank", 4, "--ranks", -2], ("--ranks -2",)),
    "negative seed": (["mttkrp", "T", "--rank", 4, "--seed", -1], ("seed -1",)),
    "seed and init": (["mttkrp", "T", "--rank", 4, "--seed", 1, "--init", "x.npz"], ("--init", "--seed")),
    "iterations": (["cpd", "T", "--rank", 4, "--max-iters", 0], ("--max-iters 0",)),
    "tolerance below 0": (["cpd", "T", "--rank", 4, "--tol", -1], ("--tol -1",)),
    "tolerance nan": (["cpd", "T", "--rank", 4, "--tol", "nan"], ("--tol nan",)),
    "no name of a folder": (["cpd", "T", "--rank", 4, "--checkpoint", ""], ("--checkpoint", "the name is empty")),
    "every without a checkpoint": (["cpd", "T", "--rank", 4, "--every", 2], ("--every needs --checkpoint",)),
    "every": (["cpd", "T", "--rank", 4, "--checkpoint", "c", "--every", 0], ("--every 0",)),
    "deadline": (["cpd", "T", "--rank", 4, "--deadline", 0], ("--deadline", "seconds above 0")),
    "resume from nowhere": (["cpd", "T", "--rank", 4, "--resume"], ("--resume", "--checkpoint")),
}


@pytest.mark.parametrize("case", FLAGS)
def test_wrong_flag_is_refused(folder: Path, case: str) -> None:
    arguments, parts = FLAGS[case]
    path = small_tns(folder, "T")
    before = entries(folder)
    refused(run_amped(*(path.name if a == "T" else a for a in arguments)), *parts)
    assert entries(folder) == before


def test_a_flag_is_found_before_the_tensor_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs no tensor to be known is said at once, not after minutes of reading."""

    def too_late(*_: object) -> None:
        raise AssertionError("the tensor is read first")

    monkeypatch.setattr("amped.runs.assembly.open_source", too_late)
    path = small_tns(folder)
    refused(run_amped("cpd", path, "--rank", 0), "rank 0")
    refused(run_amped("mttkrp", path, "--rank", 4097), "rank 4097")
    refused(run_amped("mttkrp", path, "--rank", 4, "--repeat", 0), "--repeat 0")
    refused(run_amped("mttkrp", path, "--rank", 4, "--seed", -1), "seed -1")
    refused(run_amped("plan", path, "--rank", 4, "--ranks", -1), "--ranks -1")
    refused(run_amped("cpd", path, "--rank", 4, "--init", "none.npz"), "none.npz")


@pytest.mark.skipif(not probe(), reason="this machine has a GPU")
def test_cuda_without_a_gpu(folder: Path) -> None:
    path = small_tns(folder)
    before = entries(folder)
    for verb in ("mttkrp", "plan"):
        refused(run_amped(verb, path, "--rank", RANK, "--device", "cuda"), "--device cuda")
    assert entries(folder) == before


def test_wrong_start(folder: Path) -> None:
    path, shape = small_tns(folder), (9, 7, 5)
    start = folder / "start.npz"

    def refuse_start(*parts: object) -> None:
        refused(run_amped("mttkrp", path, "--rank", RANK, "--init", start, "--output", "out.npz"), start, *parts)
        assert not (folder / "out.npz").exists()

    refuse_start("no such file")
    write_factors(start, shape, RANK + 1)
    refuse_start("factor_0", (9, RANK + 1), (9, RANK))
    write_factors(start, (9, 7, 6), RANK)
    refuse_start("factor_2", (6, RANK), (5, RANK))
    write_factors(start, shape[:2], RANK)
    refuse_start("2 factor matrices", "order 3")
    write_factors(start, (*shape, 2), RANK)
    refuse_start("4 factor matrices", "order 3")
    factors = write_factors(start, shape, RANK)
    factors[1][3, 2] = np.nan
    np.savez(start, **{f"factor_{n}": f for n, f in enumerate(factors)})
    refuse_start("factor_1", "not finite")
    np.savez(start, **{f"factor_{n}": f[:, 0] for n, f in enumerate(factors)})
    refuse_start("factor_0")
    np.savez(start, **{f"factor_{n}": f.astype(str) for n, f in enumerate(factors)})
    refuse_start("factor_0")
    np.savez(start, other=factors[0])
    refuse_start("factor_0")
    start.write_bytes(start.read_bytes()[:100])
    refuse_start("damaged")
    start.write_text(GOOD)
    refuse_start("npz")


@pytest.mark.parametrize("special", ["pipe", "device", "folder"])
def test_special_files(folder: Path, special: str) -> None:
    """Nothing waits for a pipe that nobody writes to, or reads a device that never ends."""
    path, wrong = small_tns(folder), folder / "special.npz"
    if special == "pipe":
        os.mkfifo(wrong)
    elif special == "device":
        wrong.symlink_to("/dev/zero")
    else:
        wrong.mkdir()
    cpd = ["cpd", path, "--rank", RANK, "--output", "out"]
    refused(run_amped(*cpd, "--init", wrong), wrong, "regular file")
    refused(run_amped("info", wrong), wrong, "not a store" if special == "folder" else "regular file")
    store_folder, held = folder / "store", folder / "c" / "iteration-1"
    for holder in (store_folder, held):
        holder.mkdir(parents=True)
        wrong.rename(holder / "manifest.json")
        wrong = holder / "manifest.json"
    refused(run_amped(*cpd, "--checkpoint", folder / "c", "--resume"), held, "regular file")
    wrong.rename(store_folder / "manifest.json")
    refused(run_amped("info", store_folder), store_folder, "regular file")


def test_pipes_among_the_files_of_a_store(folder: Path) -> None:
    path = make_store(folder)
    file = path / "mode1.values.npy"
    file.unlink()
    os.mkfifo(file)
    refuse_store(path, file, "regular file")


# ------------------------------------------------------------------------------------------- on three ranks


@pytest.mark.parametrize("case", ["store", "output", *map(exhaustive, ["missing", "line", "flag", "start", "rank"])])
def test_refused_once_on_all_ranks(folder: Path, case: str) -> None:
    path = small_tns(folder)
    arguments: list[object] = ["mttkrp", path, "--rank", RANK, "--device", "cpu"]
    parts: tuple[object, ...]
    if case == "missing":
        arguments[1] = folder / "none.tns"
        parts = ("none.tns", "no such file")
    elif case == "line":
        path.write_text(GOOD + "1 2 0 1.0\n")
        parts = (path, "line 4", "mode 2")
    elif case == "store":
        arguments[1] = make_store(folder)
        # Near the end: only the last rank computes on these nonzeros.
        file = folder / "store" / "mode1.values.npy"
        whole = bytearray(file.read_bytes())
        whole[-3] ^= 1
        file.write_bytes(whole)
        parts = (file, "checksum")
    elif case == "flag":
        arguments.append("--colour")
        parts = ("--colour",)
    elif case == "output":
        (folder / "out.npz").write_text("precious")
        arguments += ["--output", folder / "out.npz"]
        parts = (folder / "out.npz", "exists")
    elif case == "start":
        write_factors(folder / "start.npz", (9, 7, 6), RANK)
        arguments += ["--init", folder / "start.npz"]
        parts = (folder / "start.npz", "factor_2")
    else:
        arguments[3] = 0
        parts = ("rank 0", "from 1 to 4096")
    before = entries(folder)
    # No rank waits for another in vain: the watchdog would end that with another code.
    refused_on_ranks(on_ranks(2, *arguments), *parts)
    assert entries(folder) == before
