"""Which tests run under mpirun on which numbers of ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tiers


def item(entry: str, parameter: str, gpu: bool = False) -> Any:
    """Return what pytest has of a test."""
    name, _, function = entry.partition("::")
    mark = SimpleNamespace() if gpu else None
    return SimpleNamespace(
        path=tiers.TESTS / name, originalname=function, parameter=parameter, get_closest_marker=lambda _: mark
    )


SMOKE = "amped/operators/ttm/test_operator_mpi.py::test_every_rank_has_the_result"
UNEVEN = "amped/operators/ttm/test_operator_mpi.py::test_equal_shares"
OTHER = "amped/operators/ttm/test_operator_mpi.py::test_what_ranks_read_together"
ITEMS = [
    item(SMOKE, "a"), item(SMOKE, "b"), item(SMOKE, "c", gpu=True), item(UNEVEN, "d"), item(UNEVEN, "e"),
    item("partitioner/test_build_mpi.py::test_any", "f"), item(OTHER, "g"),
]  # fmt: skip


@pytest.mark.parametrize(("ranks", "due"), [(1, "ac"), (2, "abcdefg"), (3, "def"), (4, "ac"), (8, "ac")])
def test_what_runs_on_ranks(ranks: int, due: str) -> None:
    """On GPUs the first parameters of a test count for themselves."""
    assert "".join(each.parameter for each in tiers.on_ranks(ranks, ITEMS)) == due


@pytest.mark.parametrize(("ranks", "due"), [(2, 6), (3, 3), (1, 1)])
def test_how_many_parameters_run_on_ranks(ranks: int, due: int) -> None:
    """Of a test of both `SMOKE` and `UNEVEN`, and of one in which each is another argument."""
    test = "amped/backend/test_exchange_mpi.py::test_reduce"
    found = tiers.on_ranks(ranks, [item(test, f"{k}") for k in range(20)])
    assert len(found) == due
    assert (found[0].parameter, found[-1].parameter) == ("0", "19" if due > 1 else "0")
    every = [item(f"{tiers.EVERY_CALL}::test_any", f"{k}") for k in range(20)]
    assert tiers.on_ranks(2, every) == every


def of(params: dict[str, Any], *names: str, marked: bool) -> Any:
    """Return what pytest has of a test with parameters, some of them from marks."""
    marks = [SimpleNamespace(args=(name,)) for name in names]
    found = SimpleNamespace() if marked else None
    return SimpleNamespace(
        nodeid=f"t[{params}]", callspec=SimpleNamespace(params=params), iter_markers=lambda _: marks,
        get_closest_marker=lambda name: found if name == "in_turn" else None,
    )  # fmt: skip


@pytest.mark.parametrize(("threads", "others", "due"), [(3, 4, 4), (3, 2, 3), (3, 1, 3), (1, 3, 3)])
def test_numbers_of_threads_take_turns(threads: int, others: int, due: int) -> None:
    backends = [("cpu", k + 1) for k in range(threads)]
    items = [of({"backend": b, "rank": k}, "rank", marked=False) for k in range(others) for b in backends]
    found = [each.callspec.params for each in tiers.in_turn(items)]
    assert len(found) == due
    assert {each["backend"] for each in found} == set(backends)
    assert {each["rank"] for each in found} == set(range(others))
    other = of({"rank": 1}, "rank", marked=False)
    assert other in tiers.in_turn([*items, other])


def test_parameters_take_turns() -> None:
    """Arguments of one mark stay together: their pairs are the values."""
    pairs = [(1, "a"), (1, "b"), (2, "c")]
    items = [
        of({"shape": a, "rank": b, "device": d}, "shape, rank", marked=True) for a, b in pairs for d in ("cpu", "null")
    ]
    found = [each.callspec.params for each in tiers.in_turn(items)]
    assert [(each["shape"], each["rank"]) for each in found] == pairs
    assert {each["device"] for each in found} == {"cpu", "null"}
    every = [of({"shape": a, "device": d}, "shape", marked=False) for a in range(2) for d in ("cpu", "null")]
    assert tiers.in_turn(every) == every


@pytest.mark.parametrize(
    ("options", "read", "unread"),
    [
        ({"markexpr": ""}, ["test_tiers.py", "amped/models/test_kruskal.py"], ["amped/parallel/test_comm_mpi.py"]),
        ({"markexpr": "quick"}, ["amped/models/test_kruskal.py"], ["test_tiers.py", "amped/models/test_interop.py"]),
        ({"markexpr": "", "with_mpi": True}, ["amped/parallel/test_comm_mpi.py"], ["amped/parallel/test_calls_mpi.py"]),
        ({"markexpr": "quick", "with_mpi": True}, ["amped/parallel/test_comm_mpi.py"], ["test_documents.py"]),
        ({"markexpr": "", "with_mpi": True, "exhaustive": True}, ["amped/parallel/test_calls_mpi.py"], []),
    ],
)
def test_files_without_tests_of_a_tier_are_not_read(
    pytestconfig: pytest.Config, options: dict[str, Any], read: list[str], unread: list[str]
) -> None:
    """To read them all takes seconds; this is one rank."""
    config: Any = SimpleNamespace(getoption=lambda name, default=None: options.get(name, default))
    plugins = pytestconfig.pluginmanager.get_plugins()
    (conftest,) = (p for p in plugins if getattr(p, "__file__", None) == str(tiers.TESTS / "conftest.py"))
    for names, ignored in ((read, None), (unread, True)):
        for name in names:
            assert conftest.pytest_ignore_collect(tiers.TESTS / name, config) is ignored, name


def test_all_entries_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiers.missing() == []
    wrong = ["amped/test_none.py", f"{OTHER}_not", f"{OTHER}"]
    monkeypatch.setattr(tiers, "SMOKE", wrong)
    assert tiers.missing() == wrong[:2]
