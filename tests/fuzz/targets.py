"""What is fuzzed: each target gives bytes to a reader, or to a command line, and fails unless the promise is kept.

The promise: whatever the bytes are, the answer is a result or one clear line, without a crash or a hang, and in memory
bounded by the size of the input.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import socket
import tempfile
import tracemalloc
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from amped import run
from amped.errors import InputError
from amped.methods.driver import MethodState
from amped.models.kruskal import KruskalTensor
from amped.operators.sources.dense import open_dense_source
from amped.operators.sources.sparse import StoreSource
from amped.options import Options
from amped.parallel.mpi import SingleComm
from amped.runs import assembly as job
from amped.runs.assembly import bring_up, place
from amped.runs.checkpoint import Checkpoint, CheckpointWriter, Origin, check, load
from partitioner import __main__ as partition
from partitioner import build, distributed_reading
from partitioner.errors import InputWarning
from partitioner.host import checksums
from partitioner.readers import read
from partitioner.store.format import Store, write_files
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor

ROOM = 128 << 20  # bytes of memory that any input may take: compiled code, buffers
TIMES = 4200  # and for each byte of it: deflate makes 1032 of one, and a tensor is sorted in up to 4 copies
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # a folder, for files that are gone soon
SHAPE = (5, 4, 3)
RANK = 2


@cache
def folder() -> Path:
    """Return a folder of this process, the current one from then on."""
    made = Path(tempfile.mkdtemp(prefix="amped-fuzz-", dir=None if "TMPDIR" in os.environ else MEMORY))
    os.chdir(made)
    return made


def remove_folder() -> None:
    """Remove the folder of this process."""
    os.chdir("/")
    shutil.rmtree(folder(), ignore_errors=True)
    folder.cache_clear()


@contextlib.contextmanager
def promise(size: int) -> Iterator[None]:
    """Fail unless what runs within ends well, or with one line, in bounded memory."""
    tracemalloc.start()
    try:
        said = "as it should"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", InputWarning)
                yield
        except InputError as error:
            said = str(error)
        assert said.isprintable(), f"not one clear line: {said!r}"
        peak = tracemalloc.get_traced_memory()[1]
        assert peak < ROOM + TIMES * size, f"{peak:,} bytes of memory for {size:,} bytes of input"
    finally:
        tracemalloc.stop()


def tns(data: bytes) -> None:
    """Text: as it is, compressed, or as what claims to be compressed.

    After "n" and "c" lines are read without values and indices are renumbered; after "s" the same lines come a
    thousand times, compressed to next to nothing.
    """
    kind, content = data[:1], data[1:]
    how = {"no_values": kind in (b"n", b"N"), "compact": kind in (b"c", b"n")}
    file = folder() / ("t.tns.gz" if kind in (b"z", b"Z", b"s") else "t.tns")
    if kind == b"s":
        content = gzip.compress(content[:1000] * 1000, 1)
    file.write_bytes(gzip.compress(content, 1) if kind == b"z" else content)
    with promise(len(content)):
        _check(read(file, **how))


def npz(data: bytes) -> None:
    """An archive, read as a tensor and as a model."""
    file = folder() / "t.npz"
    file.write_bytes(data)
    with promise(len(data)):
        _check(read(file))
    with promise(len(data)):
        KruskalTensor.load(file).norm()
    with promise(len(data)):
        _check(read(file, no_values=True, compact=True))


def npy(data: bytes) -> None:
    """A file of a dense tensor."""
    file = folder() / "t.npy"
    file.write_bytes(data)
    with promise(len(data)):
        tensor = read(file)
        assert isinstance(tensor, DenseTensor)
        tensor.norm()
        tensor.digest()
    with promise(len(data)):  # modes may be long
        options = Options("cpu", deterministic=True, device_memory=ROOM // 2)
        machine = bring_up(options, SingleComm())
        operator = place(open_dense_source(file, SingleComm()), RANK, machine, options)
        for mode in range(operator.order):
            operator.mttkrp(mode)


def store(data: bytes) -> None:
    """A store whose manifest, or one of whose files, is not what it was."""
    path = _store()
    _damage(path, data)
    with promise(len(data)):
        _check(read(path))
    with promise(len(data)):
        source = StoreSource(Store(path), SingleComm())  # whose modes may be long: factor matrices, too, have bounds
        options = Options("cpu", deterministic=True, device_memory=ROOM // 2)
        operator = place(source, RANK, bring_up(options, SingleComm()), options)
        for mode in range(operator.order):
            operator.mttkrp(mode)


def _store() -> Path:
    """Return a fresh store, with labels."""
    tensor = SparseTensor(np.argwhere(np.ones(SHAPE)), np.arange(1.0, 61.0), SHAPE).compacted()
    return _template("store", lambda target: (target.mkdir(), write_files(tensor, target)))


def checkpoint(data: bytes) -> None:
    """A checkpoint whose manifest, or one of whose files, is not what it was."""
    path, facts, state = _checkpoint()
    _damage(path, data)
    with promise(len(data)):
        check(load(path), facts, state, path.parent)


def _checkpoint() -> tuple[Path, dict[str, Any], MethodState]:
    """Return a fresh checkpoint, the facts that it has to be of, and its state."""
    tensor = {"shape": list(SHAPE), "nonzeros": 60, "hash": "0123456789abcdef"}
    facts: dict[str, Any] = {"method": "als", **tensor, "rank": RANK}

    norms = np.ones((len(SHAPE), RANK))
    state = MethodState({"weights": np.ones(RANK), "norms": norms, "scales": norms}, {"fit": [0.5]}, 1)

    def make(target: Path) -> None:
        factors = [np.ones((length, RANK)) for length in SHAPE]
        writer = CheckpointWriter(target.parent)
        writer.write(Checkpoint(state, factors, Origin(facts, 0, None, {})))
        writer.close()
        os.rename(target.parent / "iteration-1", target)

    return _template("checkpoint", make), facts, state


SPECIAL: tuple[Callable[[Path], object], ...] = (
    os.mkfifo,
    os.mkdir,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("/dev/full"),
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("nowhere"),
    lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
)


def special(data: bytes) -> None:
    """A pipe, device, folder, link or socket in place of a file: the first byte says what, the second which."""
    what, which = [*data[:2], 0, 0][:2]
    path, (made, facts, state) = _store(), _checkpoint()
    alone = folder() / "special.npz"
    places = [alone, *sorted(path.iterdir()), *sorted(made.iterdir())]
    place = places[which % len(places)]
    for file in {alone, place}:
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink(missing_ok=True)
    SPECIAL[what % len(SPECIAL)](place)
    for action in (
        lambda: read(alone),
        lambda: KruskalTensor.load(alone),
        lambda: StoreSource(Store(path), SingleComm()).tensor(),
        lambda: check(load(made), facts, state, made.parent),
    ):
        with promise(len(data)):
            action()


VERBS = ("cpd", "mttkrp", "plan", "info", "partition")
WORDS = """--rank --max-iters --tol --seed --init --output --checkpoint --every --resume --mode --repeat --ranks
    --device --precision --placement --device-memory --kernel --deterministic --gather --threads --metrics --force
    --quiet --no-verify --help -h -- - = t.tns t.npz store 0 1 4 -1 1e9 0.5 nan inf cpu auto cuda fp32 fp64 stream
    resident 16G all nvecs permuted fp16 c out m.jsonl None --no-values --compact 1_0 ٣ ² 1e_3 +7 0x10""".split()
WORDS.append("9" * 5000)


def command(data: bytes) -> None:
    """A command line, up to where the tensor would be read. A single byte stands for a word, others for themselves."""
    verb = VERBS[data[0] % len(VERBS)] if data else ""
    pieces = data[1:].split(b"\0")
    words = [WORDS[p[0] % len(WORDS)] if len(p) == 1 else os.fsdecode(p) for p in pieces]
    if any("/" in word or ".." in word for word in words):
        return  # it would leave this folder
    before = sorted(os.listdir(folder()))
    if "c" not in before:
        (folder() / "c").mkdir()
        before = sorted(os.listdir(folder()))
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _unread():
        try:
            code = partition.main(words) if verb == "partition" else run.main([verb, *words] if verb else words)
        except SystemExit as request:
            code = int(request.code or 0)
    assert code in (0, 2), f"exit code {code}"
    lines = err.getvalue()
    assert (code == 2) == bool(lines), lines
    assert not lines or (lines.endswith("\n") and lines[:-1].isprintable()), f"not one clear line: {lines!r}"
    assert sorted(os.listdir(folder())) == before, "a refused run left something behind"


TARGETS: dict[str, Callable[[bytes], None]] = {
    t.__name__: t for t in (tns, npz, npy, store, checkpoint, special, command)
}


@contextlib.contextmanager
def _unread() -> Iterator[None]:
    """Put an error in place of the tensor."""

    def refuse(*_: object, **__: object) -> None:
        raise InputError("far enough")

    with (
        mock.patch.object(job, "open_path", refuse),
        mock.patch.object(distributed_reading, "open_part", refuse),
        mock.patch.object(build, "read_sparse", refuse),
    ):
        yield


def _check(tensor: SparseTensor) -> None:
    """Fail unless a tensor is one: what reads hostile bytes must not let them through."""
    assert tensor.nnz == len(tensor.values) > 0
    assert np.all(np.isfinite(tensor.values))
    for column, length in zip(tensor.columns, tensor.shape, strict=True):
        assert 0 <= column.min() <= column.max() < length


def _template(name: str, make: Callable[[Path], object]) -> Path:
    """Return a fresh copy of what `make` makes once."""
    whole, copy = folder() / f"{name}-whole", folder() / name
    if not whole.exists():
        make(whole)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    return copy


def _damage(path: Path, data: bytes) -> None:
    """Change a folder under checksums: with its first byte `data` says how.

    "r": the manifest is the rest; "m": fields of the manifest are those of the rest, JSON, and its checksum is right;
    any other number: the rest is a file, and its checksum is right.
    """
    how, rest = data[:1], data[1:]
    if how == b"r":
        (path / checksums.MANIFEST).write_bytes(rest)
        return
    body = json.loads((path / checksums.MANIFEST).read_text())
    body.pop("crc32")
    if how == b"m":
        try:
            changes = json.loads(rest)
        except (ValueError, RecursionError):
            return
        if not isinstance(changes, dict):
            return
        for key, value in changes.items():  # one level down too: the shape among a checkpoint's facts
            body[key] = body[key] | value if isinstance(value, dict) and isinstance(body.get(key), dict) else value
    elif how:
        files = sorted(path.glob("*.npy"))
        file = files[how[0] % len(files)]
        file.write_bytes(rest)
        name = file.name if file.name in body["files"] else file.stem
        body["files"][name] = {"bytes": len(rest), "crc32": [zlib.crc32(rest)] if rest else []}
    with contextlib.suppress(ValueError, RecursionError, UnicodeError):  # not to be written as JSON
        checksums.write_manifest(path, body)
