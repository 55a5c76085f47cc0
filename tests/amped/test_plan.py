"""``plan``: what a run would need, said before anything is allocated, and true."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import (
    entries,
    in_process,
    on_ranks,
    random_tensor,
    refused,
    run_amped,
    run_partitioner,
    small_tns,
    succeeded,
    write_factors,
)
from forms import exhaustive

from amped.backend.cpu.device import CpuDevice
from amped.backend.cpu.layout import PIECE
from amped.backend.cpu.ops.mttkrp import Segmented
from amped.report.text import human
from partitioner.host.worth import ALWAYS, SETTING

RANK = 16
CPU = ["--device", "cpu"]
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


cached_modules = pytest.mark.skipif(
    sys.dont_write_bytecode, reason="a process that compiles the modules it imports takes more memory than planned"
)


def tables(text: str) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return the two tables of a plan, row by row: of ranks and modes, and of memory."""
    found: list[list[dict[str, str]]] = []
    head: list[str] = []
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if cells[0] == "rank":
            head = cells
            found.append([])
        elif head and len(cells) == len(head) and cells[0].isdigit():
            found[-1].append(dict(zip(head, cells, strict=True)))
        else:
            head = []
    assert len(found) == 2, text
    return found[0], found[1]


def number(text: str) -> float:
    """Read bytes as a report shows them, or a count."""
    match = re.fullmatch(r"([\d,.]+)(?: (\w+))?", text)
    assert match, text
    return float(match[1].replace(",", "")) * UNITS[match[2] or "B"]


def plan(*arguments: object) -> str:
    """Return what `plan` prints."""
    return succeeded(run_amped("plan", *arguments, *CPU)).out


def placements(*arguments: object) -> set[str]:
    """Return the different placements that a plan has."""
    return {row["placement"] for row in tables(plan(*arguments))[0]}


# ------------------------------------------------------------------------------------------------ what it says


def test_nothing_is_written_or_allocated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a plan allocates")

    for kind, names in ((CpuDevice, ("empty", "zeros", "slot")), (Segmented, ("make", "run"))):
        for name in names:
            monkeypatch.setattr(kind, name, refuse)
    path = small_tns(folder)
    before = entries(folder)
    plan(path, "--rank", RANK)
    plan(path, "--rank", RANK, "--ranks", 5, "--placement", "stream")
    assert entries(folder) == before


def test_a_plan_of_many_ranks_deals_every_row_and_nonzero_once(folder: Path) -> None:
    indices, values = random_tensor((50, 40, 3), 2_000)
    np.savez("t.npz", indices=indices, values=values)
    text = plan("t.npz", "--rank", RANK, "--ranks", 4)
    rows, memory = tables(text)
    assert [(row["rank"], row["mode"]) for row in rows] == [(str(r), str(m)) for r in range(4) for m in range(3)]
    for mode, length in enumerate((50, 40, 3)):
        of_mode = [row for row in rows if row["mode"] == str(mode)]
        assert sum(number(row["rows owned"]) for row in of_mode) == length
        shares = [number(row["nonzeros"]) for row in of_mode]
        assert sum(shares) == 2_000
        assert max(shares) <= 500 * 1.01  # also in the mode of three rows, for four ranks
    worst = max(max(number(row["nonzeros"]) for row in rows if row["mode"] == str(m)) for m in range(3))
    assert f"the fullest rank has {worst / 500 - 1:.2%} more nonzeros than the mean" in text
    assert [row["rank"] for row in memory] == ["0", "1", "2", "3"]


def test_more_ranks_than_nonzeros(folder: Path) -> None:
    path = small_tns(folder, shape=(2, 1, 3), nonzeros=2)
    rows, _ = tables(plan(path, "--rank", 2, "--ranks", 5))
    assert sum(number(row["nonzeros"]) for row in rows if row["mode"] == "0") == 2
    assert {row["placement"] for row in rows} == {"resident", "-"}


def test_ranks_default_to_those_that_are_started(folder: Path) -> None:
    path = small_tns(folder)
    assert len(tables(plan(path, "--rank", RANK))[1]) == 1
    result = on_ranks(2, "plan", path, "--rank", RANK, *CPU)
    assert result.code == 0, result.err
    assert len(tables(result.out)[1]) == 2  # and once, though two ranks know it


def test_placement_follows_the_memory(folder: Path) -> None:
    indices, values = random_tensor((60, 50, 40), 20_000)
    np.savez("t.npz", indices=indices, values=values)
    common = ["t.npz", "--rank", 4]
    assert placements(*common) == {"resident"}
    assert placements(*common, "--placement", "stream") == {"streamed"}
    partly = placements(*common, "--device-memory", "400K")
    assert all(re.fullmatch(r"\d+% resident", text) for text in partly), partly
    _, memory = tables(plan(*common, "--device-memory", "400K"))
    assert number(memory[0]["stream slots"]) > 0
    assert 330 * 1024 < number(memory[0]["device"]) <= 400 * 1024  # it uses what it is given, and no more
    tight = placements(*common, "--device-memory", "100K")
    assert tight
    assert all(text != "resident" for text in tight)


def test_memory_grows_with_rank_and_precision(folder: Path) -> None:
    path = small_tns(folder, shape=(300, 200, 100), nonzeros=50)

    def factors(*flags: object) -> float:
        return number(tables(plan(path, *flags))[1][0]["factor matrices"])

    assert factors("--rank", 64) == pytest.approx(600 * 64 * 4, rel=1e-2)
    assert factors("--rank", 128) == pytest.approx(600 * 128 * 4, rel=1e-2)
    assert factors("--rank", 64, "--precision", "fp64") == pytest.approx(600 * 64 * 8, rel=1e-2)


def test_one_copy_takes_less(folder: Path) -> None:
    path = small_tns(folder, shape=(30, 20, 10, 5), nonzeros=200)
    common = [path, "--rank", 8, "--ranks", 2]
    copies, one = (tables(plan(*common, *flags)) for flags in ([], ["--kernel", "permuted"]))
    nonzeros = number(copies[0][0]["nonzeros"])

    def in_pieces(each: int, rows: float) -> int:
        """Return the bytes of nonzeros, `each`, and of the pieces that these rows may have."""
        return int(each * nonzeros + 8 * min(nonzeros, rows + nonzeros // PIECE))

    def possible(each: int, row: dict[str, str]) -> set[str]:
        """Return what may be printed: the second rank may compute a row that the first one owns."""
        return {human(in_pieces(each, number(row["rows owned"]) + head)) for head in (0, 1)[: 1 + int(row["rank"])]}

    for row in copies[0]:  # three indices in 16 bits, and the value
        assert row["bytes"] in possible(10, row)
    for row in one[0]:
        if row["mode"] == "0":
            assert row["bytes"] in possible(20, row)
        else:
            assert row["bytes"] == human(in_pieces(4, (30, 20, 10, 5)[int(row["mode"])]))
    assert [row["rows owned"] for row in one[0]] == [row["rows owned"] for row in copies[0]]
    for table in (copies, one):
        for rank, row in enumerate(table[1]):
            of_modes = sum(number(of_mode["bytes"]) for of_mode in table[0][4 * rank : 4 * rank + 4])
            assert number(row["resident nonzeros"]) == pytest.approx(of_modes, abs=5 * 52)  # as they are shown
    assert [row["MTTKRP output"] for row in one[1]] == 2 * [human(20 * 8 * 8)]  # the longest of the other modes, whole
    refused = run_amped("plan", *common, "--kernel", "permuted", "--placement", "stream", *CPU)
    assert refused.code == 2
    assert refused.err == ("amped: error: kernel 'permuted' does not support placement 'stream'\n")


def test_a_store_has_the_plan_of_its_tensor(folder: Path) -> None:
    path = small_tns(folder)
    succeeded(run_partitioner(path, "--output", "store"))
    flags = ["--rank", RANK, "--ranks", 3]
    assert tables(plan("store", *flags))[0] == tables(plan(path, *flags))[0]


def test_units() -> None:
    assert [human(n) for n in (0, 1023, 1024, 1536, 1 << 20, 5 << 30)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "5.0 GiB",
    ]  # fmt: skip


# ----------------------------------------------------------------------------------------------- that it is true


def events(path: Path) -> dict[str, dict[str, Any]]:
    """Return the last event of each name."""
    return {e["event"]: e for e in map(json.loads, path.read_text().splitlines())}


@pytest.mark.parametrize("flags", [exhaustive([]), ["--device-memory", "120K"]])
def test_a_run_uses_the_plan(folder: Path, flags: list[object]) -> None:
    """The plan of three ranks is the plan that three ranks make."""
    indices, values = random_tensor((60, 50, 40), 6_000)
    np.savez("t.npz", indices=indices, values=values)
    common = [folder / "t.npz", "--rank", 8, "--threads", 1, *flags]
    _, memory = tables(plan(*common, "--ranks", 3))
    result = on_ranks(3, "mttkrp", *common, *CPU, "--metrics", folder / "m.jsonl")
    assert result.code == 0, result.err
    for row, planned in zip(memory, events(folder / "m.jsonl")["start"]["planned_bytes"], strict=True):
        device = {name: size for name, size in planned.items() if name != "host"}
        assert {name: row[name] for name in device} == {name: human(size) for name, size in device.items()}
        assert row["device"] == human(sum(device.values()))
        assert row["host"] == human(planned["host"])


@pytest.mark.parametrize(
    "flags", [[], ["--nonnegative"], ["--ridge", 0.5], ["--nonnegative-modes", "1", "--fixed-modes", "0"]]
)
def test_a_run_under_constraints_uses_the_plan(folder: Path, flags: list[object]) -> None:
    path, common = small_tns(folder, shape=(9, 7, 5)), ["--rank", RANK, *flags, *CPU, "--metrics"]
    succeeded(run_amped("plan", path, *common, "plan.jsonl"))
    if "--fixed-modes" in flags:
        write_factors(folder / "start.npz", (9, 7, 5), RANK)
        flags = ["--init", "start.npz"]
    else:
        flags = []
    succeeded(run_amped("cpd", path, *common, "run.jsonl", *flags, "--max-iters", 1, "--output", "out"))
    planned, used = (events(folder / f"{name}.jsonl") for name in ("plan", "run"))
    assert planned["plan"]["planned_bytes"] == used["start"]["planned_bytes"]


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (["--fixed-modes", "0,3"], "--fixed-modes: there is no mode 3; the tensor has modes 0 to 2"),
        (["--fixed-modes", "0,1,2"], "all modes are fixed"),
        (["--ridge", "1,2"], "ridge: 2 numbers for a tensor of order 3"),
        (["--ridge", "-1"], "a number of at least 0"),
        (["--loss", "poisson", "--method", "mu", "--ridge", "1"], "method 'mu' supports no holdout, ridge"),
    ],
)
def test_constraints_that_no_run_can_have(folder: Path, flags: list[object], cause: str) -> None:
    refused(run_amped("plan", small_tns(folder), "--rank", RANK, *flags, *CPU), cause)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tensor, and its store, of two million nonzeros: enough that data outweighs all else."""
    folder = tmp_path_factory.mktemp("large")
    rng = np.random.default_rng(0)
    shape, nonzeros = (20_000, 5_000, 3_000), 2_000_000
    indices = np.stack([rng.integers(0, length, nonzeros, dtype=np.int32) for length in shape], axis=1)
    np.savez(folder / "t.npz", indices=indices, values=rng.random(nonzeros, dtype=np.float32) + 0.5)
    succeeded(run_partitioner(folder / "t.npz", "--output", folder / "t.store"))
    return folder


@pytest.mark.parametrize(
    ("tensor", "ranks", "flags"),
    [
        # By name: a plan has room for all kernels that may be tried, and a short run does not try them all.
        exhaustive("t.npz", 1, ["--placement", "resident", "--kernel", "segmented"]),
        exhaustive("t.npz", 1, ["--placement", "stream", "--kernel", "segmented"]),
        exhaustive("t.npz", 1, ["--device-memory", "60M", "--precision", "fp64", "--kernel", "segmented"]),
        exhaustive("t.store", 1, ["--placement", "resident", "--kernel", "segmented"]),
        exhaustive("t.store", 1, ["--placement", "resident", "--precision", "fp64", "--kernel", "segmented"]),
        exhaustive("t.store", 1, ["--placement", "stream", "--precision", "fp64", "--kernel", "segmented"]),
        exhaustive("t.npz", 3, ["--placement", "stream", "--kernel", "segmented"]),
        exhaustive("t.npz", 1, ["--kernel", "tiled"]),
        exhaustive("t.npz", 1, ["--kernel", "permuted"]),
        exhaustive("t.npz", 1, ["--kernel", "permuted", "--precision", "fp64"]),
        exhaustive("t.npz", 3, ["--kernel", "permuted"]),
        ("t.store", 1, ["--kernel", "permuted"]),
    ],
)
def test_measured_memory_is_within_a_tenth_of_the_plan(
    large: Path, tmp_path: Path, tensor: str, ranks: int, flags: list[object]
) -> None:
    taken, env = list[list[dict[str, tuple[int, int]]]](), {SETTING: ALWAYS}
    # A process that finds no kernels on the disk compiles them, and the compiler would be measured too.
    several = ["--max-iters", 2, "--output", tmp_path / "compiled"]
    assert in_process("cpd", large / tensor, "--rank", RANK, *flags, *several, *CPU, env=env).code == 0
    above = 0.25 if tensor.endswith(".store") else 0.1  # columns are counted until all shards of a mode are made
    below = 0.12 if "permuted" in flags else 0.1  # what threads take for blocks varies; most where little else is there
    # What libraries take besides varies, by 15 MB on a busy machine: if one run deviates, the middle of three counts.
    for turn in range(3):
        arguments = ["cpd", large / tensor, "--rank", RANK, "--tol", 0, "--max-iters", 2, *flags, *CPU]
        arguments += ["--metrics", tmp_path / f"{turn}.jsonl", "--output", tmp_path / f"out-{turn}"]
        result = on_ranks(ranks, *arguments, env=env) if ranks > 1 else in_process(*arguments, env=env)
        assert result.code == 0, result.err
        taken.append(events(tmp_path / f"{turn}.jsonl")["memory"]["used_and_planned_bytes"])
        assert len(taken[-1]) == ranks
        if all(-below <= plan / used - 1 <= above for places in taken[0] for used, plan in places.values()):
            break
    taken.sort(key=lambda each: sum(used for places in each for used, _ in places.values()))
    by_rank = taken[len(taken) // 2]
    for rank, places in enumerate(by_rank):
        for place, (used, planned) in places.items():
            assert -below <= planned / used - 1 <= above, f"rank {rank}, {place}: {planned:,} planned, {used:,} used"
    _, memory = tables(plan(large / tensor, "--rank", RANK, "--ranks", ranks, *flags))
    for row, places in zip(memory, by_rank, strict=True):
        for place, (used, _) in places.items():
            relative = number(row[place]) / used - 1
            assert -below <= relative <= above, f"{place}: {row[place]} planned, {human(used)} used"


@cached_modules
@pytest.mark.parametrize("method", [exhaustive("pdnr"), "pqnr"])
def test_plans_count_the_code_that_solves_rows(folder: Path, method: str) -> None:
    """Of small tensors it is most of all; rows that ranks share take more of it."""
    flags = ["--rank", 4, "--loss", "poisson", "--method", method, "--mu-iters", 0, "--max-iters", 2, "--threads", 1]
    flags += ["--metrics", folder / "m.jsonl", "--output", folder / "out", "--force"]
    succeeded(run_amped("cpd", small_tns(folder), *flags, *CPU))  # compiles for all ranks what one rank needs
    for _ in range(2):  # the first one may compile what ranks share
        (folder / "m.jsonl").unlink(missing_ok=True)
        result = on_ranks(2, "cpd", small_tns(folder), *flags, *CPU, env={SETTING: ALWAYS})
        assert result.code == 0, result.err
    for places in events(folder / "m.jsonl")["memory"]["used_and_planned_bytes"]:
        used, planned = places["host"]
        assert used <= 1.1 * planned, f"{planned:,} planned, {used:,} used"


@cached_modules
@pytest.mark.parametrize("flags", [[], exhaustive(["--mask", "stored"]), exhaustive(["--precision", "fp64"])])
def test_newton_steps_are_planned(folder: Path, flags: list[object]) -> None:
    """Row systems of a long mode, steps block by block, and the compiler of the loss's formulas."""
    rng, shape = np.random.default_rng(0), (40_000, 300, 200)
    indices = np.stack([rng.integers(0, length, 100_000, dtype=np.int32) for length in shape], axis=1)
    np.savez("t.npz", indices=indices, values=np.ones(len(indices), np.float32))
    arguments = ["cpd", "t.npz", "--rank", 12, "--loss", "poisson", "--method", "newton", *flags, *CPU]
    for _ in range(2):  # the first one compiles, which takes memory
        outputs = ["--max-iters", 2, "--output", folder / "out", "--force", "--metrics", folder / "m.jsonl"]
        assert in_process(*arguments, *outputs, env={SETTING: ALWAYS}).code == 0
    ((used, planned),) = (place["host"] for place in events(folder / "m.jsonl")["memory"]["used_and_planned_bytes"])
    assert -0.1 <= planned / used - 1 <= 0.4, f"{planned:,} planned, {used:,} used"


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["hosvd", "sthosvd"])
def test_spectra_are_planned(large: Path, tmp_path: Path, method: str) -> None:
    """A process seldom gives back what finding spectra has taken, before nonzeros are placed."""
    arguments = ["tucker", large / "t.npz", "--rank", "4,4,4", "--method", method, *CPU, "--output", tmp_path / "out"]
    for _ in range(2):  # the first one compiles, which takes memory
        assert in_process(*arguments, "--force", "--metrics", tmp_path / "m.jsonl").code == 0
    ((used, planned),) = (place["host"] for place in events(tmp_path / "m.jsonl")["memory"]["used_and_planned_bytes"])
    assert -0.15 <= planned / used - 1 <= 0.25, f"{planned:,} planned, {used:,} used"


@pytest.fixture(scope="module")
def lesser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tensors so small that libraries and working memory outweigh their elements."""
    folder, rng = tmp_path_factory.mktemp("lesser"), np.random.default_rng(0)
    np.save(folder / "small.npy", rng.random((60, 50, 40)))
    np.save(folder / "medium.npy", rng.random((150, 120, 100), np.float32))
    for name, shape, nonzeros in (("few", (20, 18, 16), 1_000), ("more", (200, 150, 100), 50_000)):
        indices = np.stack([rng.integers(0, length, nonzeros, dtype=np.int32) for length in shape], axis=1)
        np.savez(folder / f"{name}.npz", indices=indices, values=rng.random(nonzeros, np.float32) + 0.5)
    return folder


@cached_modules
@pytest.mark.parametrize(
    ("tensor", "start", "precision", "ranks"),
    [
        ("small.npy", ["tucker", "--method", "hosvd"], "fp32", 1),
        exhaustive("small.npy", ["tucker", "--method", "sthosvd"], "fp64", 2),
        exhaustive("medium.npy", ["tucker", "--method", "hosvd", "--rank", "60,50,40"], "fp64", 2),
        exhaustive("medium.npy", ["cpd", "--init", "nvecs"], "fp32", 1),
        exhaustive("few.npz", ["tucker", "--method", "sthosvd"], "fp32", 2),
        exhaustive("few.npz", ["cpd", "--init", "nvecs"], "fp64", 1),
        ("more.npz", ["tucker", "--method", "hosvd"], "fp64", 2),
        exhaustive("more.npz", ["tucker", "--init", "nvecs", "--max-iters", "2"], "fp32", 1),
    ],
)
def test_spectra_of_small_tensors_are_planned(
    lesser: Path, tmp_path: Path, tensor: str, start: list[str], precision: str, ranks: int
) -> None:
    """No rank takes more than is planned, and what is planned is at most 8 MiB more than 1.5 times what is taken."""
    verb, *flags = start
    arguments = [verb, lesser / tensor, *flags, "--precision", precision, *CPU]
    if "--rank" not in flags:
        arguments += ["--rank", "4,4,4" if verb == "tucker" else 4]
    if verb == "cpd":
        arguments += ["--max-iters", 2]
    arguments += ["--output", tmp_path / "out", "--force"]
    assert run_amped(*arguments).code == 0  # a process that compiles takes memory for that
    arguments += ["--metrics", tmp_path / "m.jsonl"]
    result = on_ranks(ranks, *arguments) if ranks > 1 else in_process(*arguments)
    assert result.code == 0, result.err
    taken = [places["host"] for places in events(tmp_path / "m.jsonl")["memory"]["used_and_planned_bytes"]]
    assert len(taken) == ranks
    for used, planned in taken:
        assert used <= planned, f"{planned:,} planned, {used:,} used"
    used, planned = taken[0]  # others plan for a library that only some data make them load
    assert planned <= 1.5 * used + (8 << 20), f"{planned:,} planned, {used:,} used"
