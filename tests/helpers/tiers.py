"""The tests that run with ``--quick``, and under mpirun on each number of ranks: files, or functions in files.

Of tests marked `in_turn`, not all combinations of parameters run, see the function.
Under mpirun all tests run on 2 ranks, on 3 those of `UNEVEN`, each with at most `MOST` of its parameters, and on other
numbers those of `SMOKE`, each with its first parameters. With ``--exhaustive`` all run on every number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
MOST = {2: 6, 3: 3}
"""The sets of parameters of a test that run on a number of ranks; others run in one process, or with --exhaustive."""
EVERY_CALL = "amped/parallel/test_calls_mpi.py"  # in which each set of parameters is another argument: all on 2 ranks

# Tests of `launch/test --quick`: fast, and some of each package.
QUICK = """
    amped/test_api_errors.py amped/test_refused_output.py amped/backend/ops/test_solve.py
    amped/backend/cuda/test_layout.py amped/methods/test_initial.py
    amped/models/test_kruskal.py amped/operators/sources/test_sparse_mpi.py
    amped/parallel/test_comm_mpi.py amped/backend/test_exchange_mpi.py
    amped/report/test_progress.py launch/test_scripts.py::test_syntax partitioner/tensors/test_sparse.py
    partitioner/cuda/test_sort.py partitioner/sorting/test_sort.py partitioner/readers/arrays/test_npz.py
    partitioner/readers/text/test_tns_mpi.py
    partitioner/readers/tables/test_bins.py test_documents.py
""".split()

# Tests that distribute data or work, which 3 ranks cannot do evenly.
UNEVEN = """
    amped/backend/test_exchange_mpi.py amped/operators/sources/test_sparse_mpi.py amped/parallel/test_calls_mpi.py
    amped/parallel/test_comm_mpi.py partitioner/test_build_mpi.py partitioner/store/test_shared_fs_mpi.py
    partitioner/readers/test_formats_mpi.py partitioner/readers/text/test_tns_mpi.py
    amped/test_callers_arrays_mpi.py::test_any_error_on_one_rank_is_raised_by_all
    amped/test_callers_arrays_mpi.py::test_rank_0_shares_what_it_may_not_write_to
    amped/test_missing_mpi.py::test_the_same_path_as_an_oracle
    amped/test_missing_mpi.py::test_files_keep_their_zeros
    amped/test_holdout_mpi.py::test_ranks_agree
    amped/operators/grid/test_grid_mpi.py::test_cp_als_follows_the_same_path_on_every_grid
    amped/operators/grid/test_grid_mpi.py::test_heavy_rows_are_split
    amped/test_hypersparse_mpi.py
    amped/test_planned_bytes_mpi.py
    amped/test_stochastic_mpi.py
    amped/test_tables_mpi.py::test_a_store_has_the_same_bytes
    amped/test_tables_mpi.py::test_compact
    amped/test_tables_mpi.py::test_every_rank_has_its_share_and_all_labels
    amped/methods/test_als_mpi.py::test_empty_rows_are_zero_whoever_owns_them
    amped/methods/test_als_mpi.py::test_more_components_and_ranks_than_rows
    amped/methods/test_als_mpi.py::test_the_same_path_as_a_dense_oracle
    amped/methods/test_apr_mpi.py::test_ranks_without_nonzeros
    amped/methods/test_apr_mpi.py::test_the_same_path_as_an_oracle
    amped/methods/test_singular_vectors_mpi.py::test_all_ranks_take_rank_0_s
    amped/methods/test_tucker_dense_mpi.py::test_blocks_of_some_ranks_alone_leave_the_device
    amped/methods/test_tucker_dense_mpi.py::test_hooi_takes_the_path_of_an_oracle
    amped/methods/test_tucker_mpi.py::test_spectra
    amped/methods/test_tucker_mpi.py::test_the_path_of_an_oracle
    amped/operators/test_dense_file_mpi.py::test_a_rank_reads_its_part_once
    amped/operators/dense/test_gaps_mpi.py::test_as_a_sparse_tensor
    amped/operators/dense/test_gradient_mpi.py
    amped/operators/dense/test_operator_mpi.py::test_mttkrps_are_right
    amped/operators/dense/test_operator_mpi.py::test_one_rank_alone_streams
    amped/operators/dense/test_operator_mpi.py::test_products_that_serve_pairs_of_modes
    amped/operators/sources/test_device_tensor_mpi.py::test_a_file_that_all_ranks_read
    amped/operators/sources/test_device_tensor_mpi.py::test_a_tensor_in_the_memory_of_rank_0
    amped/operators/sources/test_device_tensor_mpi.py::test_one_rank_without_room_is_enough
    amped/operators/test_permuted_mpi.py::test_fewer_nonzeros_or_rows_than_ranks
    amped/operators/test_permuted_mpi.py::test_rows_that_all_ranks_have
    amped/operators/sparse/test_operator_mpi.py::test_any_tensor_any_placement
    amped/operators/sparse/test_operator_mpi.py::test_blocks_that_all_ranks_agree_on
    amped/operators/sparse/test_operator_mpi.py::test_damage_that_one_rank_finds_stops_all
    amped/operators/sparse/test_operator_mpi.py::test_factors_are_published
    amped/operators/sparse/test_operator_mpi.py::test_fewer_nonzeros_or_rows_than_ranks
    amped/operators/sparse/test_operator_mpi.py::test_files_and_stores
    amped/operators/sparse/test_operator_mpi.py::test_heavy_rows_are_split_and_summed
    amped/operators/sparse/test_operator_mpi.py::test_ranks_get_less_where_nonzeros_take_longer
    amped/operators/sparse/test_operator_mpi.py::test_shares_add_up
    amped/operators/sparse/test_mapped_mpi.py
    amped/operators/sparse/test_row_systems_mpi.py::test_value_gradient_and_newton_step
    amped/operators/ttm/test_operator_mpi.py::test_a_file_that_ranks_write_together
    amped/operators/ttm/test_operator_mpi.py::test_equal_shares
    amped/operators/ttm/test_operator_mpi.py::test_fibres_that_pieces_and_ranks_share
""".split()

# Smoke tests, a few seconds, for one rank under mpirun and for more ranks than rows and cores.
SMOKE = """
    amped/backend/test_exchange_mpi.py::test_gather_rows
    amped/backend/test_exchange_mpi.py::test_reduce
    amped/backend/test_exchange_mpi.py::test_reduce_rows
    amped/methods/test_als_mpi.py::test_empty_rows_are_zero_whoever_owns_them
    amped/methods/test_als_mpi.py::test_no_tensor_on_rank_0
    amped/test_missing_mpi.py::test_the_same_path_as_an_oracle
    amped/methods/test_als_mpi.py::test_the_same_path_as_a_dense_oracle
    amped/methods/test_apr_mpi.py::test_the_same_path_as_an_oracle
    amped/methods/test_tucker_mpi.py::test_the_path_of_an_oracle
    amped/operators/dense/test_gaps_mpi.py::test_as_a_sparse_tensor
    amped/operators/dense/test_gradient_mpi.py
    amped/operators/dense/test_operator_mpi.py::test_mttkrps_are_right
    amped/operators/sources/test_sparse_mpi.py::test_ranks_that_are_several_read_together
    amped/operators/sources/test_sparse_mpi.py::test_shares_are_those_of_a_tensor_in_memory
    amped/operators/sparse/test_operator_mpi.py::test_fewer_nonzeros_or_rows_than_ranks
    amped/operators/sparse/test_operator_mpi.py::test_heavy_rows_are_split_and_summed
    amped/operators/sparse/test_mapped_mpi.py
    amped/operators/sparse/test_row_systems_mpi.py::test_value_gradient_and_newton_step
    amped/operators/ttm/test_operator_mpi.py::test_every_rank_has_the_result
    amped/parallel/test_comm_mpi.py
    amped/test_stochastic_mpi.py::test_full_passes_are_those_of_one_rank
    amped/test_tables_mpi.py::test_every_rank_has_its_share_and_all_labels
    partitioner/test_build_mpi.py::test_swap
    partitioner/test_build_mpi.py::test_the_store_is_the_same_on_any_number_of_ranks
    partitioner/store/test_shared_fs_mpi.py::test_what_differs_is_named_on_every_rank
    partitioner/readers/text/test_tns_mpi.py::test_the_parts_are_the_file_in_its_order
    partitioner/readers/test_formats_mpi.py
""".split()


def missing() -> list[str]:
    """Return the entries whose file or function does not exist."""
    return [entry for entry in QUICK + UNEVEN + SMOKE if not _exists(entry)]


def _exists(entry: str) -> bool:
    """Return whether an entry's file exists and has the function that it names."""
    name, _, function = entry.partition("::")
    path = TESTS / name
    return path.exists() and (not function or f"def {function}(" in path.read_text())


def is_of(item: pytest.Item, entries: Collection[str]) -> bool:
    """Return whether entries name a test or its file."""
    name = item.path.relative_to(TESTS).as_posix()
    return name in entries or f"{name}::{getattr(item, 'originalname', '')}" in entries


def has_tests(path: Path, entries: Collection[str]) -> bool:
    """Return whether entries name a file, or tests of it."""
    return path.relative_to(TESTS).as_posix() in {entry.partition("::")[0] for entry in entries}


def in_turn(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return tests without the combinations of their parameters that run only with ``--exhaustive``.

    Of tests marked `in_turn`, each value of each parameter runs, with values of the others in turn. Of other tests that
    have the fixture `backend`, each number of host threads and each set of other parameters runs. Arguments of one mark
    `parametrize` are one parameter; GPUs have separate turns.
    """
    items = list(items)
    groups: dict[tuple[str, bool], list[pytest.Item]] = {}
    for item in items:
        if hasattr(item, "callspec"):
            key = item.nodeid.partition("[")[0], bool(item.get_closest_marker("gpu"))
            groups.setdefault(key, []).append(item)
    due = {id(item) for group in groups.values() for item in _covering(group)}
    return [item for item in items if id(item) in due or not hasattr(item, "callspec")]


def _covering(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return tests of one function that have all values of its parameters, few of them twice."""
    if items[0].get_closest_marker("in_turn"):
        values = {id(item): set(_parameters(item).items()) for item in items}
    elif all(_threads(item) for item in items):
        values = {id(item): {("threads", _threads(item)), ("others", _others(item))} for item in items}
    else:
        return list(items)
    found, missing = [], set[Any]().union(*values.values())
    while missing:
        found.append(max(items, key=lambda item: len(values[id(item)] & missing)))
        missing -= values[id(found[-1])]
    return found


def _parameters(item: pytest.Item) -> dict[str, str]:
    """Return the parameters of a test, by the names of their arguments."""
    names = [mark.args[0] if mark.args else mark.kwargs["argnames"] for mark in item.iter_markers("parametrize")]
    split = [name.replace(",", " ").split() if isinstance(name, str) else list(name) for name in names]
    params = dict(item.callspec.params)  # type: ignore[attr-defined]
    found = {" ".join(group): repr([params.pop(name) for name in group if name in params]) for group in split}
    return found | {name: repr(value) for name, value in params.items()}


def _threads(item: pytest.Item) -> str:
    """Return a test's parameter `backend` if that is one of the CPU, else nothing."""
    backend = item.callspec.params.get("backend")  # type: ignore[attr-defined]
    return str(backend) if isinstance(backend, tuple) and backend[0] == "cpu" else ""


def _others(item: pytest.Item) -> str:
    """Return a test's parameters other than `backend`."""
    return repr([(name, each) for name, each in item.callspec.params.items() if name != "backend"])  # type: ignore[attr-defined]


def entries_on(size: int) -> Collection[str] | None:
    """Return the entries of the tests under mpirun that run on this number of ranks; None if all do."""
    return None if size == 2 else UNEVEN if size == 3 else SMOKE


def on_ranks(size: int, items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the tests under mpirun that run on this number of ranks."""
    entries = entries_on(size)
    tests: dict[tuple[Any, ...], list[pytest.Item]] = {}
    for item in items:
        if entries is None or is_of(item, entries):
            number = len(tests) if size == 2 and is_of(item, [EVERY_CALL]) else None
            test = item.path, getattr(item, "originalname", ""), bool(item.get_closest_marker("gpu")), number
            tests.setdefault(test, []).append(item)
    return [item for of_test in tests.values() for item in _spread(of_test, MOST.get(size, 1))]


def _spread(items: list[pytest.Item], most: int) -> list[pytest.Item]:
    """Return at most `most` of a test's parameters, at equal distances from the first to the last."""
    if len(items) <= most:
        return items
    return [items[k * (len(items) - 1) // max(1, most - 1)] for k in range(most)]
