"""How a tensor is read: lines without values, and modes whose indices are few but far apart."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import (
    entries,
    finish,
    in_process,
    mpirun_line,
    on_ranks,
    refused,
    refused_on_ranks,
    run_amped,
    run_partitioner,
    succeeded,
)
from forms import exhaustive

import amped
from amped.models.kruskal import KruskalTensor

RANK = 3
FAR = 1_700_000_000  # an index that is a time stamp
LIMIT = 8_000_000 << 10  # bytes of address space


def limited(**options: Any) -> dict[str, Any]:
    """Options of a process that has little memory: what is as long as a mode does not fit."""
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT)), **options}


def events(folder: Path, lines: int = 300) -> Path:
    """Write lines of three keys, many of them the same."""
    rows = np.random.default_rng(0).integers(1, 9, (lines, 3))
    path = folder / "events.tns"
    path.write_text("".join(f"{i} {j} {k}\n" for i, j, k in rows.tolist()))
    return path


def stamped(folder: Path, lines: int = 400) -> Path:
    """Write nonzeros of which one index is a time stamp."""
    rng = np.random.default_rng(1)
    columns = rng.integers(1, 9, lines), FAR - rng.integers(0, 10**6, lines), rng.integers(1, 6, lines)
    path = folder / "stamped.tns"
    path.write_text("".join(f"{i} {j} {k} 1.5\n" for i, j, k in zip(*map(np.ndarray.tolist, columns), strict=True)))
    return path


# ---- lines without values


def test_keys_taken_for_values_are_warned_of(folder: Path) -> None:
    path = events(folder)
    for result in (run_amped("info", path), run_amped("cpd", path, "--rank", RANK, "--max-iters", 1, "--output", "o")):
        assert result.code == 0
        assert result.err.startswith(f"amped: warning: {path}: column 3 is read as values, but may be a key")
        assert "--no-values" in result.err
        assert result.err.count("\n") == 1
    result = run_partitioner(path, "--output", "store")
    assert result.code == 0
    assert result.err.startswith(f"amped-partition: warning: {path}: column 3")
    with pytest.warns(amped.InputWarning, match="no_values=True"):
        amped.read(path)


@pytest.mark.parametrize(
    "text",
    [
        "1 1 1 1\n1 2 1 1\n2 1 1 3\n",  # counts: each coordinate once
        "1 1 1 1.5\n1 1 1 2\n",  # no whole numbers
        "1 1 1 0\n1 1 1 2\n2 1 1 -1\n",
        "1 1 1 1.5\n1 1 1 1.5\n",  # though their sum is one
        "2\n2 2\n1 1 1\n1 1 1\n",  # a header declares the order
        "1 1 0.5\n2 1 1\n",
    ],
)
def test_what_is_not_warned_of(folder: Path, text: str) -> None:
    (folder / "t.tns").write_text(text)
    succeeded(run_amped("info", "t.tns"))


def test_bundled_counts_are_not_warned_of(folder: Path) -> None:
    succeeded(run_amped("info", Path(amped.__file__).parent / "data" / "uber393k_4d.tns.gz"))


def test_lines_without_values_count(folder: Path) -> None:
    path = events(folder)
    rows, counts = np.unique(np.loadtxt(path, int) - 1, axis=0, return_counts=True)
    tensor = amped.read(path, no_values=True)
    assert tensor.indices.tolist() == rows.tolist()
    assert tensor.values.tolist() == counts.tolist()
    assert "8 x 8 x 8" in succeeded(run_amped("info", path, "--no-values")).out
    succeeded(run_partitioner(path, "--output", "store", "--no-values"))
    assert np.array_equal(amped.read("store").columns, tensor.columns)
    refused(run_amped("info", "store", "--no-values"), "store", "--no-values")


def test_a_shape_that_is_a_number(folder: Path) -> None:
    Path("x.tns").write_text("1 1 2.5\n")
    with pytest.raises(amped.InputError, match="shape 5: expected an integer for each mode"):
        amped.read("x.tns", shape=5)  # type: ignore[arg-type]


def test_a_declared_order_is_checked(folder: Path) -> None:
    path = folder / "declared.tns"
    for head in ("3\n9 9 9\n", "sptensor\n3\n9 9 9\n2\n"):
        path.write_text(head + "1 1 1\n1 2 3\n")
        line = head.count("\n") + 1
        refused(run_amped("info", path), f"line {line}: 3 columns, expected 4", "order 3", "--no-values")
        succeeded(run_amped("info", path, "--no-values"))
        path.write_text(head + "1 1 1 2\n1 2 3 4\n")
        refused(run_amped("info", path, "--no-values"), f"line {line}: 4 columns, expected 3", "without values")


# ---- long modes


def test_a_mode_too_long_for_memory_is_refused(folder: Path) -> None:
    path, rank = stamped(folder), 200
    before, cpd = entries(folder), ["cpd", path, "--rank", rank, "--output", "o"]
    parts = (path, "mode 1", "1,69", "indices are used", "bytes", "--compact")
    refused_on_ranks(on_ranks(2, *cpd, **limited()), *parts)
    refused(in_process(*cpd, **limited()), *parts)
    refused(run_amped("plan", path, "--rank", rank), *parts)
    succeeded(run_amped("info", path))
    for call in (
        lambda: amped.cp_als(path, rank),
        lambda: amped.mttkrp(path, [np.ones((8, rank)), None, np.ones((5, rank))], 1),  # type: ignore[list-item]
    ):
        with pytest.raises(amped.InputError, match="compact=True"):
            call()
    assert entries(folder) == before


@pytest.mark.parametrize("ranks", [1, exhaustive(3)])
def test_a_plan_is_bounded_by_the_nonzeros(folder: Path, ranks: int) -> None:
    plan = ["plan", stamped(folder), "--rank", RANK, "--device-memory", "1T"]
    result = on_ranks(ranks, *plan, **limited()) if ranks > 1 else in_process(*plan, **limited())
    assert result.code == 0, result.err


@pytest.mark.parametrize("ranks", [exhaustive(1), 2])
def test_what_is_bounded_by_the_nonzeros(folder: Path, ranks: int) -> None:
    path = stamped(folder)
    cpd = ["cpd", path, "--rank", RANK, "--max-iters", 2, "--compact", "--output", "out"]
    result = on_ranks(ranks, *cpd, **limited()) if ranks > 1 else in_process(*cpd, **limited())
    assert result.code == 0, result.err
    labels = amped.load("out").labels
    assert labels is not None
    assert np.array_equal(labels[1], np.unique(np.loadtxt(path)[:, 1]).astype(int))


def test_a_store_of_a_long_mode(folder: Path) -> None:
    path = stamped(folder)
    line = [*mpirun_line(2), sys.executable, "-m", "partitioner", str(path), "--device", "cpu", "--quiet", "--output"]
    assert finish([*line, "long"], **limited()).code == 0
    assert finish([*line, "short", "--compact"], **limited()).code == 0
    refused(run_amped("cpd", "long", "--rank", 200, "--output", "o"), "mode 1", "from its file with --compact")
    refused(run_amped("cpd", "long", "--rank", RANK, "--compact", "--output", "o"), "without --compact")
    succeeded(run_amped("mttkrp", "short", "--rank", RANK, "--output", "out.npz"))
    with np.load("out.npz") as out:
        assert out["mode_1"].shape == (out["labels_1"].size, RANK)
        assert out["labels_1"].max() > FAR - 10**6


def test_masked_matrices_are_refused(folder: Path) -> None:
    tensor = amped.SparseTensor([[0, 0], [1, 1]], [1.0, 2.0])
    factors = [np.ones((2, 1)), np.ma.masked_greater(np.arange(2.0)[:, None], 0)]
    with pytest.raises(amped.InputError, match=r"factors\[1\] has masked entries"):
        amped.mttkrp(tensor, factors, 0)
    with pytest.raises(amped.InputError, match=r"init\[1\] has masked entries"):
        amped.cp_als(tensor, 1, init=factors)


def test_labels_are_those_of_the_file(folder: Path) -> None:
    path = stamped(folder)
    tensor = amped.read(path, compact=True)
    model = amped.cp_als(tensor, RANK, max_iters=2, device="cpu")
    assert tensor.labels is not None
    assert model.labels is not None
    for mode in range(3):
        assert np.array_equal(model.labels[mode], np.unique(np.loadtxt(path)[:, mode]).astype(int))
    model.save("model.npz")
    again = KruskalTensor.load("model.npz")
    assert again.labels is not None
    assert np.array_equal(again.labels[1], model.labels[1])


def test_a_compact_run_is_not_resumed_as_another(folder: Path) -> None:
    (folder / "t.tns").write_text("1 1 90 1.5\n2 3 1 2.5\n4 2 7 1\n")
    cpd = ["cpd", "t.tns", "--rank", 2, "--max-iters", 2, "--output", "o", "--force", "--checkpoint", "c"]
    succeeded(run_amped(*cpd))
    refused(run_amped(*cpd, "--resume", "--compact"), "was made with shape [4, 3, 90], this run has [3, 3, 3]")


def test_indices_that_count_from_0(folder: Path) -> None:
    Path("t.tns").write_text("0 0 2 1.5\n3 1 0 2\n")
    refused(run_amped("info", "t.tns"), "line 1", "--index-base 0")
    assert "4 x 2 x 3" in succeeded(run_amped("info", "t.tns", "--index-base", "0")).out
    succeeded(run_partitioner("t.tns", "--output", "store", "--index-base", "0", "--compact"))
    assert [each.tolist() for each in amped.read("store").labels or ()] == [[0, 3], [0, 1], [0, 2]]
    refused(run_amped("info", "store", "--index-base", "0"), "store", "--index-base")
    refused(run_amped("info", "t.tns", "--index-base", "2"), "--index-base")
    np.save("t.npy", np.ones((2, 2)))
    refused(run_amped("cpd", "t.npy", "--rank", "2", "--index-base", "0"), "t.npy", "--index-base")
