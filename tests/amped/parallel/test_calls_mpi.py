"""Ranks that are given different arguments: each rank says which one, and none waits for another."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import random_tensor, small_tns
from forms import exhaustive

import amped
from amped.api.projection import project
from amped.parallel.mpi import Comm
from amped.run import VERBS, parse, parser
from partitioner.build import partition
from partitioner.readers.form import ReadOptions

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(2, 3), pytest.mark.quick]

SHAPE, RANK = (9, 7, 5), 3
TENSOR = amped.SparseTensor(*random_tensor(SHAPE))
OTHER = amped.SparseTensor(*random_tensor((9, 7, 6)))
FACTORS = [np.ones((length, RANK)) for length in SHAPE]
WIDE = [np.ones((length, RANK + 1)) for length in SHAPE]

MODEL = amped.KruskalTensor(np.ones(RANK), FACTORS)

FIRST: dict[str, Any] = {
    "model": MODEL,
    "X": TENSOR,
    "rank": RANK,
    "factors": FACTORS,
    "mode": 1,
    "path": "n.tns",
    "target": "store",
}
"""What all ranks but the last are given, where it is not the default."""
BASE = ReadOptions(index_base=0)
CHANGES: dict[str, list[Any]] = {
    "model": [amped.KruskalTensor(np.ones(RANK + 1), WIDE), 3],
    "X": [OTHER, "other.tns", 3],
    "rank": [RANK + 1, 0, 3.0, "3"],
    "max_iters": [7, 0],
    "tol": [0.5, -1.0, float("nan")],
    "seed": [3, -1],
    "init": ["nvecs", FACTORS, WIDE, 3],
    "mask": ["stored", "other.tns", 3],
    "weights": [OTHER, "other.tns", 3],
    "holdout": [0.1, OTHER, 2.0],
    "holdout_seed": [3, -1],
    "patience": [3, 0],
    "callback": [3],
    "starts": [3, 0],
    "loss": ["poisson", "l1"],
    "nonnegative": [True, (0, 1), (0, -1), 3],
    "constraints": [{1: "unimodal"}, 3],
    "ridge": [0.5, (1.0, 0.0, 2.0), -1.0, "x"],
    "fixed": [{1: np.ones((len(FACTORS[1]), RANK), bool)}, 3],
    "fixed_modes": [(1,), (0, 2), (-1,), 1],
    "factors": [WIDE, FACTORS[:2], "nvecs", 3],
    "mode": [0, -1, "all"],
    "verbose": [True, -1],
    "deadline": [500.0, -2.0],
    "checkpoint": ["other", 3],
    "every": [2, 0],
    "resume": [True, "yes"],
    "metrics": ["other.jsonl", 3],
    "report": ["other.html", 3],
    "device": ["cuda", "tpu"],
    "precision": ["fp64", "half"],
    "placement": ["stream", "cloud"],
    "kernel": ["segmented", 3],
    "deterministic": [True],
    "device_memory": [1 << 30, 0],
    "threads": [1, 0],
    "gather": ["fp16", "fp4"],
    "accelerate": [False, 3],
    "grid": ["all-gather", "2"],
    "output": ["device", "disk"],
    "workspace": [1 << 20, 0],
    "path": ["other.tns"],
    "memory": [1 << 30],
    "force": [True],
    "form": [
        ReadOptions(no_values=True),
        ReadOptions(compact=True),
        ReadOptions(key=("who", "what")),
        ReadOptions(value="cost"),
        ReadOptions(index_base=0),
    ],
}
"""What the last rank is given in its place."""
OWN = ("ranks", "progress")  # of partition(): not compared
CASES = [
    (function, name, change)
    for function in (amped.cp_als, amped.mttkrp, project, partition)
    for name in inspect.signature(function).parameters
    if name not in OWN
    for change in (["other"] if name == "target" else CHANGES[name])
]


@pytest.fixture
def last(comm: Comm) -> bool:
    """Whether this is the rank that is given something else."""
    return comm.rank == comm.size - 1


@pytest.mark.parametrize(("function", "name", "change"), CASES, ids=lambda case: getattr(case, "__name__", None))
def test_an_argument_that_one_rank_has_otherwise_is_named_on_all(
    comm: Comm, last: bool, function: Callable[..., Any], name: str, change: Any
) -> None:
    own = {"ranks": comm} if function is partition else {}
    given = {each: FIRST[each] for each in inspect.signature(function).parameters if each in FIRST}
    with pytest.raises(amped.InputError) as caught:
        function(**{**given, **own, **({name: change} if last else {})})
    named = (
        next(f for f, given in vars(change).items() if given != getattr(ReadOptions(), f)) if name == "form" else name
    )
    assert named.replace("_", " ") in str(caught.value).replace("_", " ")
    assert len(set(comm.allgather(str(caught.value)))) == 1


@pytest.mark.parametrize("other", [amped.mttkrp, partition])
def test_another_function(comm: Comm, last: bool, other: Callable[..., Any]) -> None:
    ours = {amped.mttkrp: (TENSOR, FACTORS, 0), partition: ("n.tns", "store")}[other]
    how = {"ranks": comm} if other is partition else {}
    call = partial(other, *ours, **how) if last else partial(amped.cp_als, TENSOR, RANK)
    with pytest.raises(amped.InputError, match=r"rank 0 calls cp_als\(\), rank \d (mttkrp|partition)\(\)"):
        call()


def test_a_misspelt_name_on_one_rank(last: bool) -> None:
    with pytest.raises(TypeError, match="max_iter"):
        amped.cp_als(TENSOR, RANK, **({"max_iter": 5} if last else {}))  # type: ignore[arg-type]


class Broken:
    """An object of a caller's whose conversion fails."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise RuntimeError("lost the device")


def test_an_argument_that_fails_in_its_own_way_on_one_rank(last: bool) -> None:
    with pytest.raises(RuntimeError if last else amped.InputError, match="lost the device"):
        amped.cp_als(TENSOR, RANK, init=[Broken()] if last else None)  # type: ignore[list-item]


@pytest.mark.parametrize("kind", ["tensor", "path"])
@pytest.mark.parametrize("init", [None, "nvecs", FACTORS], ids=["random", "nvecs", "matrices"])
def test_what_rank_0_alone_may_give(comm: Comm, tmp_path: Path, kind: str, init: Any) -> None:
    given: Any = TENSOR
    if kind == "path":
        given = small_tns(tmp_path) if comm.rank == 0 else None
    options: dict[str, Any] = {"max_iters": 2, "device": "cpu", "threads": 1}
    mine = amped.cp_als(given if comm.rank == 0 else None, RANK, init=init if comm.rank == 0 else None, **options)
    assert len(set(comm.allgather(tuple(mine.fits)))) == 1


NEEDED = {
    "info": [],
    "show": [],
    "report": [],
    "compare": ["m"],
    "update": ["m"],
    "residuals": ["m"],
    "predict": ["--at", "p.tns"],
    "scan": [],
    "table": ["--output", "store"],
    "ttm": ["--rank", "3", "--mode", "0"],
}
"""What a verb must be given; others a rank."""
VALUES = {"init": "nvecs", "grid": "2x1x1", "accelerate": "off", "encoding": "latin-1"}


def flags() -> list[Any]:
    """Return each verb with each of its flags, as passed to one rank: by default each flag with one verb."""
    found, seen = list[Any](), set[str]()
    for verb in VERBS:
        choices = next(action.choices for action in parser()._actions if action.choices)
        for action in choices[verb]._actions:  # type: ignore[index, union-attr, call-overload]
            if action.option_strings and action.dest != "help":
                value = action.choices[-1] if action.choices else VALUES.get(action.dest, "7")
                flag = action.option_strings[0]
                case = verb, [flag, *([] if action.nargs == 0 else [str(value)])]
                found.append(exhaustive(*case) if flag in seen else case)
                seen.add(flag)
    return found


@pytest.mark.parametrize(("verb", "given"), flags(), ids=lambda case: case if isinstance(case, str) else case[0])
def test_a_flag_that_one_rank_has_otherwise(comm: Comm, last: bool, verb: str, given: list[str]) -> None:
    needed = NEEDED.get(verb, ["--rank", "3"]) if given[0] != "--error" else ["--error", "0.5"]
    line = [verb, "n.tns", *needed, *(given if last else [])]
    with pytest.raises(
        amped.InputError, match=f"^the command line: {given[0]} is .* on rank 0 and .* on rank {comm.size - 1};"
    ):
        parse(comm, line)


@pytest.mark.parametrize("line", [["info", "n.tns"], ["cpd", "k.tns", "--rank", "3"], ["cpd", "--help"], ["cpd"], []])
def test_another_command_line(comm: Comm, last: bool, line: list[str]) -> None:
    with pytest.raises(amped.InputError):
        parse(comm, line if last else ["cpd", "n.tns", "--rank", "3"])
