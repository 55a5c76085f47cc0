"""A dense tensor on one rank; on several, see `test_dense_mpi.py`."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from denseblocks import use_dimension_trees
from densecases import dense_operator, low_rank
from oracle import assert_rounding_only, dense_mttkrp, random_factors

import amped
from amped.backend.cpu.ops.dense import CpuSplit
from amped.backend.cuda import probe
from amped.backend.ops.dense import RowLayout
from amped.backend.ops.dimension_tree import DimensionTreeSweep
from amped.backend.ops.equations import EquationsStatus
from amped.errors import InputError
from amped.methods.als import CpAls
from amped.methods.driver import StopRule, iterate
from amped.methods.updates import LeastSquares, run_passes
from amped.operators.dense import load as dense_load
from amped.operators.dense import plan as dense_plan
from amped.operators.sources.grid import Grid
from amped.options import DTYPES, Options
from amped.parallel.mpi import Comm, SingleComm
from amped.runs.assembly import bring_up
from partitioner.tensors.dense import DenseTensor

SHAPE = (9, 4, 1, 7)
ARRAY = np.random.default_rng(1).random(SHAPE)
FACTORS = random_factors(2, SHAPE, 5)


def kinds(folder: Path, array: np.ndarray) -> list[Any]:
    """Return a tensor as it may be given: arrays in any order, and files."""
    fortran = np.asfortranarray(array)
    np.save(folder / "c.npy", array)
    np.save(folder / "f.npy", fortran)
    return [
        array,
        fortran,
        array.transpose(1, 3, 0, 2).copy().transpose(2, 0, 3, 1),
        folder / "c.npy",
        folder / "f.npy",
    ]


@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("kernel", ["auto", "gemm", "tile"])
def test_mttkrps_are_right(
    comm: Comm, device: str, tmp_path: Path, placement: str, precision: str, kernel: str
) -> None:
    options = {"placement": placement, "precision": precision, "kernel": kernel, "device": device}
    for tensor in kinds(tmp_path, ARRAY):
        operator = dense_operator(tensor, FACTORS, comm, **options)
        assert operator.plan.streamed == (placement == "stream")
        for mode in (0, 1, 2, 3, 3, 0, 2):
            for double in (False, True):
                got = operator.gathered(mode, operator.mttkrp(mode, double=double))
                assert_rounding_only(got, dense_mttkrp(ARRAY, FACTORS, mode), precision)


@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize("kind", ["f2", "f8"])
def test_elements_in_chunks_are_read_where_they_are_used(
    comm: Comm, tmp_path: Path, placement: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    h5py = pytest.importorskip("h5py")
    monkeypatch.setattr(dense_load, "PIECE", 20)
    array = ARRAY.astype(kind)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("group/data", data=array, chunks=(2, 2, 1, 3), compression="gzip")
    operator = dense_operator(f"{tmp_path / 'x.h5'}:group/data", FACTORS, comm, placement=placement)
    for mode in (0, 1, 3, 2):
        got = operator.gathered(mode, operator.mttkrp(mode))
        assert_rounding_only(got, dense_mttkrp(array.astype(np.float64), FACTORS, mode), "fp64")


@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_double_precision_of_single_numbers(comm: Comm, device: str, placement: str) -> None:
    """Sums that cancel: only products in double precision of the very same numbers are right."""
    rng = np.random.default_rng(3)
    array = rng.standard_normal((30, 20, 10)).astype(np.float32)
    factors = [rng.standard_normal((n, 4)).astype(np.float32) for n in array.shape]
    operator = dense_operator(array, factors, comm, precision="fp32", placement=placement, device=device)
    exact = [f.astype(np.float64) for f in factors]
    for mode in range(3):
        want = dense_mttkrp(array.astype(np.float64), exact, mode)
        got = operator.machine.device.to_host(operator.mttkrp(mode, double=True))
        assert np.linalg.norm(got - want) <= 1e-14 * np.linalg.norm(want)
        assert_rounding_only(operator.machine.device.to_host(operator.mttkrp(mode)), want, "fp32")


@pytest.mark.parametrize("kind", ["f2", "i1", "u2", "?", ">f8", "i8"])
@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_elements_of_other_types_are_converted(
    comm: Comm, device: str, tmp_path: Path, kind: str, placement: str
) -> None:
    array = (10 * ARRAY).astype(kind)
    np.save(tmp_path / "x.npy", array)
    for tensor in (array, tmp_path / "x.npy"):
        operator = dense_operator(tensor, FACTORS, comm, placement=placement, device=device)
        assert operator.norm == pytest.approx(np.linalg.norm(array.astype(np.float64)), rel=1e-14)
        want = dense_mttkrp(array.astype(np.float64), FACTORS, 1)
        assert_rounding_only(operator.gathered(1, operator.mttkrp(1)), want, "fp64")


def test_an_array_that_fits_is_not_copied(comm: Comm) -> None:
    array = np.ones((300, 20, 100))
    operator = dense_operator(array, random_factors(0, array.shape, 2), comm)
    assert operator.plan.device_bytes["resident elements"] == 0
    assert np.shares_memory(operator._slabs._block, array)


def test_a_tensor_that_does_not_fit_is_streamed(comm: Comm, device: str, tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((64, 30, 20))
    np.save(tmp_path / "x.npy", array)
    factors = random_factors(0, array.shape, 3)
    memory, plans = None, []
    for _ in range(3):  # resident, with rows that are aligned or as they are, then streamed
        operator = dense_operator(tmp_path / "x.npy", factors, comm, device_memory=memory, device=device)
        plans.append(operator.plan)
        if operator.plan.streamed:
            break
        memory = sum(n for use, n in operator.plan.device_bytes.items() if use != "factor matrices before") - 1
    assert [plan.streamed for plan in plans] == [False] * (len(plans) - 1) + [True]
    assert len(plans) == 2 + any(plan.rows is not None for plan in plans)
    assert memory is not None
    assert sum(operator.plan.device_bytes.values()) <= memory
    for mode in (2, 0, 1):
        got = operator.gathered(mode, operator.mttkrp(mode))
        assert_rounding_only(got, dense_mttkrp(array, factors, mode), "fp64")
    with pytest.raises(InputError, match=r"the resident tensor need .* bytes, but .* are available"):
        dense_operator(tmp_path / "x.npy", factors, comm, device_memory=memory, placement="resident", device=device)
    with pytest.raises(InputError, match="two slabs of one index need"):
        dense_operator(tmp_path / "x.npy", factors, comm, device_memory=30_000, device=device)


def test_a_small_workspace_gives_the_same_result(comm: Comm, device: str) -> None:
    array = np.random.default_rng(0).random((12, 11, 10, 9))
    factors = random_factors(0, array.shape, 8)
    for workspace in (1, 10_000, 100_000):
        operator = dense_operator(array, factors, comm, workspace=workspace, device=device)
        for mode in range(4):
            got = operator.gathered(mode, operator.mttkrp(mode))
            assert_rounding_only(got, dense_mttkrp(array, factors, mode), "fp64")


def test_more_scratch_memory_is_taken_where_it_saves_a_pass(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(0).random((30, 31, 32))
    factors = random_factors(0, array.shape, 20)
    monkeypatch.setattr(dense_plan, "WORKSPACE", 1 << 14)
    how: dict[str, Any] = {"deterministic": True, "threads": 2}  # each takes memory
    plan = dense_operator(array, factors, comm, **how).plan
    assert plan.form.workspace > 1 << 14
    assert plan.kernel.passes(plan.form) == 2
    assert sum(dense_operator(array, factors, comm, workspace=1 << 14, **how).plan.device_bytes.values()) < 1 << 18
    little = sum(plan.device_bytes.values()) - 1
    less = dense_operator(array, factors, comm, device_memory=little, **how).plan
    assert less.form.workspace < plan.form.workspace
    operator, reads = dense_operator(array, factors, comm, **how), 0
    for mode in range(3):
        reads += operator.reads(mode)
        got = operator.gathered(mode, operator.mttkrp(mode))
        assert_rounding_only(got, dense_mttkrp(array, factors, mode), "fp64")
        operator.changed(mode)
    assert reads == 2


@pytest.mark.parametrize("kind", ["whole", "blocks", "stream"])
@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_cp_als_whose_products_serve_pairs_of_modes(
    comm: Comm, device: str, kind: str, fortran: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iterations are those of two products each, up to rounding; three passes serve two of them."""
    use_dimension_trees(monkeypatch)
    array = low_rank((60, 62, 64), 3, noise=0.05)
    array = np.asfortranarray(array) if fortran else array
    factors = random_factors(1, array.shape, 40)
    options: dict[str, Any] = {"precision": precision, "device": device}
    options |= {"placement": "stream"} if kind == "stream" else {}
    options |= {"workspace": 2_000_000 if device == "cuda" else 600_000} if kind == "blocks" else {}
    found = []
    for deterministic in (False, True):
        operator = dense_operator(array, factors, comm, deterministic=deterministic, **options)
        if not deterministic and (device == "cpu" or precision == "fp64"):
            assert isinstance(operator._sweep, DimensionTreeSweep)
            assert operator._sweep.in_blocks == (kind == "blocks")
        method = CpAls(operator)
        for _ in iterate(method, StopRule(5, 0)):
            pass
        found.append((method.state.series["fit"], [method.factor(mode) for mode in range(3)]))
    (fits, got), (others, want) = found
    most = 1e-13 if precision == "fp64" else 1e-6
    assert np.abs(np.subtract(fits, others)).max() <= most
    for mode in range(3):
        assert np.linalg.norm(got[mode] - want[mode]) <= 1e4 * most * np.linalg.norm(want[mode])


@pytest.mark.parametrize("workspace", [None, 600_000])
def test_three_passes_serve_two_iterations(comm: Comm, workspace: int | None) -> None:
    array = low_rank((60, 62, 64), 3, noise=0.05)
    operator = dense_operator(array, random_factors(1, array.shape, 40), comm, workspace=workspace)
    update, reads = LeastSquares.of_run(operator), list[list[bool]]()
    update.load(EquationsStatus(0, 0, np.nan, np.ones((3, 40)), np.ones((3, 40))), 0.0, None)
    for _ in range(3):
        reads.append([])
        for mode in range(3):
            reads[-1].append(operator.reads(mode))
            run_passes(operator, update.checked(mode))
    assert reads == [[True, False, True], [False, True, False], [True, False, True]]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_pass_in_double_precision_serves_the_next_iteration(comm: Comm, device: str, deterministic: bool) -> None:
    array = np.random.default_rng(0).random((31, 22, 13, 24)).astype(np.float32)
    factors = [factor.astype(np.float32) for factor in random_factors(1, array.shape, 20)]
    operator = dense_operator(
        array, factors, comm, device=device, precision="fp32", kernel="split", deterministic=deterministic
    )
    slabs, passes = operator._slabs.slabs, list[int]()

    def counted(mode: int) -> Any:
        passes.append(mode)
        return slabs(mode)

    operator._slabs.slabs = counted  # type: ignore[method-assign]

    def check(mode: int, double: bool, precision: Any) -> None:
        got = operator.machine.device.to_host(operator.mttkrp(mode, double=double))
        exact = [factor.astype(np.float64) for factor in factors]
        assert_rounding_only(got, dense_mttkrp(array.astype(np.float64), exact, mode), precision)

    first = operator._modes[0]
    check(first, True, "fp64")
    check(first, True, "fp64")
    assert passes == [first]
    kept = operator.kept()
    assert (kept is None) == deterministic
    assert operator.reads(first) == deterministic
    check(first, False, "fp32" if deterministic else "fp64")
    assert passes == [first] * (1 + deterministic)
    check(operator._modes[-1], False, "fp32")  # of the other group: what was kept is lost
    check(first, True, "fp64")
    kept = operator.kept()
    operator.resume(None)
    assert operator.kept() is None
    operator.resume(kept)
    before = len(passes)
    check(first, False, "fp32" if deterministic else "fp64")
    assert len(passes) == before + deterministic
    check(first, True, "fp64")
    factors[first][...] = 0.5
    operator.owned(first)[...] = 0.5
    operator.publish(first)  # a matrix that it was not made of
    before = len(passes)
    check(first, True, "fp64")
    assert len(passes) == before
    last = operator._modes[-1]
    factors[last][...] = 0.25
    operator.owned(last)[...] = 0.25
    operator.publish(last)
    check(first, False, "fp32")
    assert len(passes) == before + 1


def test_a_pair_is_dropped_where_rows_are_solved_anew(comm: Comm, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were passed on and then changed, or a mode that is computed again."""
    use_dimension_trees(monkeypatch)
    array = np.random.default_rng(0).random((60, 62, 64))
    factors = random_factors(1, array.shape, 40)
    options = {"workspace": 2_000_000 if device == "cuda" else 600_000, "device": device}
    operator = dense_operator(array, factors, comm, **options)

    def solve(source: Any, target: Any) -> None:
        target[...] = 0.5

    operator.mttkrp(0, solve, [1, 2, 0])
    assert not operator.reads(1)
    now = [np.full_like(factors[0], 0.5), *factors[1:]]
    assert_rounding_only(operator.gathered(1, operator.mttkrp(1)), dense_mttkrp(array, now, 1), "fp64")
    operator.owned(0)[...] = 0.25
    operator.publish(0)
    assert operator.reads(1)
    now[0][...] = 0.25
    assert_rounding_only(operator.gathered(1, operator.mttkrp(1, then=[2])), dense_mttkrp(array, now, 1), "fp64")
    kept = operator.kept()
    assert not operator.reads(2)
    operator.resume(None)
    assert operator.reads(2)
    operator.resume(kept)
    assert_rounding_only(operator.gathered(2, operator.mttkrp(2)), dense_mttkrp(array, now, 2), "fp64")


def test_memory_is_given_back_when_an_operator_is_dropped(comm: Comm, device: str) -> None:
    gc.collect()
    gc.disable()
    try:
        operator = dense_operator(ARRAY, FACTORS, comm, placement="stream", device=device)
        next(iterate(method := CpAls(operator), StopRule(2, 0)))
        held = [weakref.ref(each) for each in (operator.work, operator._slabs, operator)]
        del operator, method
        assert [ref() for ref in held] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("lengths", "ranks", "parts"),
    [
        ((100, 50), 4, (4, 1)), ((3, 50), 4, (1, 4)), ((2, 50), 3, (1, 3)), ((2, 2), 7, (2, 2)), ((1, 1), 3, (1, 1)),
        ((9, 9), 4, (4, 1)), ((5, 5), 4, (2, 2)), ((40, 3), 4, (4, 1)), ((1, 8), 4, (1, 4)),
    ],
)  # fmt: skip
def test_blocks_are_even_and_cover_the_tensor(lengths: tuple[int, int], ranks: int, parts: tuple[int, int]) -> None:
    grid = Grid.of(lengths, ranks)
    assert grid.parts == parts
    seen = np.zeros(lengths, int)
    for rank in range(ranks):
        seen[grid.block(rank)] += 1
        assert grid.shape(rank) == seen[grid.block(rank)].shape
    assert (seen == 1).all()
    for place, length in enumerate(lengths):
        rows = grid.rows(place)
        assert (rows[0], rows[-1], len(rows)) == (0, length, ranks + 1)
        if grid.one_owner(place):
            assert all(grid.block(r)[place] == slice(rows[r], rows[r + 1]) for r in range(min(ranks, parts[0])))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "tiled"}, "kernel 'tiled': for dense tensors, cpu has auto, split, gemm, elem, slice, tile"),
        ({"kernel": "elem", "deterministic": True}, "kernel 'elem' is not deterministic: split"),
        ({"workspace": 0}, "workspace 0: expected an integer"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dense_operator(ARRAY, FACTORS, SingleComm(), **options)


def test_zeros_of_dense_counts_are_absent_counts(tmp_path: Path) -> None:
    counts = np.random.default_rng(0).poisson(0.8, (5, 4, 3))
    sparse = amped.SparseTensor(np.argwhere(counts), counts[counts > 0], counts.shape)
    np.save(tmp_path / "c.npy", np.asfortranarray(counts))
    want = amped.cp_apr(sparse, 2, max_iters=3, device="cpu", precision="fp64")
    for given in (counts, np.asfortranarray(counts), tmp_path / "c.npy"):
        found = amped.cp_apr(given, 2, max_iters=3, device="cpu", precision="fp64")
        assert found.series == want.series
        for factor, other in zip(found.factors, want.factors, strict=True):
            assert np.array_equal(factor, other)
    with pytest.raises(InputError, match="a value is -1: counts"):
        amped.cp_apr(counts - 1, 2)
    np.save(tmp_path / "c.npy", counts - 3)
    with pytest.raises(InputError, match=r"c\.npy: a value is -3"):
        amped.cp_apr(tmp_path / "c.npy", 2)


def test_a_kernel_of_dense_tensors_is_refused_for_sparse_ones() -> None:
    tensor = amped.SparseTensor(np.argwhere(ARRAY), ARRAY[ARRAY != 0], SHAPE)
    with pytest.raises(InputError, match="kernel 'split': cpu has auto, segmented"):
        amped.cp_als(tensor, 2, kernel="split", device="cpu")


def test_an_unknown_kernel_is_refused_with_those_of_all_kinds() -> None:
    message = "kernel 'none': cpu has auto, segmented, .*; of dense tensors split, .*; of products fibres"
    with pytest.raises(InputError, match=message):
        amped.cp_als(ARRAY, 2, kernel="none", device="cpu")


def test_memory_is_planned(tmp_path: Path) -> None:
    """What is allocated on the device is what was planned."""
    array = low_rank((40, 30, 20), 3)
    np.save(tmp_path / "x.npy", array)
    for placement in ("resident", "stream"):
        operator = dense_operator(
            tmp_path / "x.npy", random_factors(0, array.shape, 4), SingleComm(), placement=placement
        )
        plan, used = operator.plan, operator.plan.device_bytes
        assert operator.work.matrices.nbytes >= used["factor matrices"]
        assert max(out.nbytes for out in operator.work.outs) == used["MTTKRP output"]
        assert operator._scratch.nbytes <= used["working memory"]
        if placement == "stream":
            assert sum(slot._memory.nbytes for slot in operator._slabs._slots) == used["stream slots"]
        else:
            assert operator._slabs._block.nbytes == used["resident elements"]
        assert plan.host_bytes >= sum(used.values())
    assert dense_plan.SHARDS > 1


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["f2", "i2", "f4", "f8"])
def test_an_array_on_a_gpu_stays_there(comm: Comm, kind: str) -> None:
    if missing := probe():
        pytest.skip(missing)
    cupy = pytest.importorskip("cupy")
    array = (10 * ARRAY).astype(kind)
    for host in (array, np.asfortranarray(array), array.transpose(2, 0, 3, 1)[:, ::-1, ::2]):
        tensor = DenseTensor(given := cupy.asarray(host))
        facts, want = tensor.facts(), DenseTensor(host).facts()
        assert facts._replace(squares=0, single=0) == want._replace(squares=0, single=0)
        assert np.allclose(facts[2:4], want[2:4], rtol=1e-13)
        assert tensor.digest() == DenseTensor(host).digest()
        factors = random_factors(0, host.shape, 5)
        for where, placement in (("cuda", "resident"), ("cuda", "stream"), ("cpu", "resident")):
            operator = dense_operator(tensor, factors, comm, placement=placement, device=where)
            for mode in range(host.ndim):
                got = operator.gathered(mode, operator.mttkrp(mode))
                assert_rounding_only(got, dense_mttkrp(host.astype(np.float64), factors, mode), "fp64")
            if kind == "f8" and given.flags.c_contiguous and placement == "resident" and where == "cuda":
                assert operator._slabs._block.data.ptr == given.data.ptr
    bad = cupy.ones((5, 4, 3), np.float32)
    bad[3, 1, 2] = np.nan
    with pytest.raises(InputError, match=r"element \[3, 1, 2\] is nan"):
        amped.cp_als(bad, 2)


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_gaps_between_rows_are_zero(comm: Comm, device: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_load, "PIECE", 200)
    target, rows = bring_up(Options(device=device), comm).device, RowLayout(2, 80)
    array = np.random.default_rng(0).random((4, 5, 7, 11)).astype(kind)
    found = dense_load.on_device(array, np.dtype("f8"), array.dtype, target, 1, rows)
    assert found.strides == (5 * 80 * 8, 80 * 8, 11 * 8, 8)
    assert (target.to_host(found) == array).all()
    whole = target.xp.lib.stride_tricks.as_strided(found, (20, 80), (80 * 8, 8))
    assert not target.to_host(whole)[:, 77:].any()


def test_gaps_are_planned(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements that are copied get gaps where their kernel needs gaps and they fit; those in place get none."""
    monkeypatch.setattr(CpuSplit, "rows", lambda _, form: RowLayout(2, 80) if form.gaps else None)
    array = np.random.default_rng(0).standard_normal((4, 5, 7, 11)).astype(np.float32)
    factors = random_factors(0, array.shape, 3)
    operator = dense_operator(array, factors, comm)
    plan = operator.plan
    assert (plan.rows, plan.form.gaps) == (RowLayout(2, 80), True)
    assert plan.device_bytes["resident elements"] == 20 * 80 * 8
    assert plan.device_bytes["working memory"] >= array.size * 8
    assert operator.norm == pytest.approx(np.linalg.norm(array), rel=1e-6)
    for mode in range(4):
        got = operator.gathered(mode, operator.mttkrp(mode))
        assert_rounding_only(got, dense_mttkrp(array.astype(np.float64), factors, mode), "fp64")
    memory = sum(plan.device_bytes.values()) - plan.device_bytes.get("factor matrices before", 0)
    assert dense_operator(array, factors, comm, device_memory=memory).plan.rows is not None
    little = dense_operator(array, factors, comm, device_memory=memory - 1).plan
    assert (little.rows, little.form.gaps, little.streamed) == (None, False, False)
    for given, options in ((array.astype(np.float64), {}), (array, {"placement": "stream"})):
        plan = dense_operator(given, factors, comm, **options).plan
        assert (plan.rows, plan.form.gaps) == (None, False)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_a_gpu_has_elements_with_gaps(comm: Comm, tmp_path: Path, kind: str, precision: str) -> None:
    """Wherever they come from, but for those that are used where they are; in memory that is planned."""
    if missing := probe():
        pytest.skip(missing)
    cupy = pytest.importorskip("cupy")
    array = np.random.default_rng(0).standard_normal((31, 5, 7, 57, 11)).astype(kind)
    factors, options = random_factors(0, array.shape, 40), {"precision": precision, "device": "cuda"}
    given = [*kinds(tmp_path, array[..., 0]), DenseTensor(cupy.asarray(array[..., 0])), array]
    for tensor in given:
        host = array if tensor is array else array[..., 0]
        operator = dense_operator(tensor, factors[: host.ndim], comm, **options)
        plan, lent = operator.plan, tensor is given[-2] and array.dtype == DTYPES[precision]
        assert (plan.rows is None) == lent
        assert operator.norm == pytest.approx(np.linalg.norm(host.astype(np.float64)), rel=1e-7)
        if not lent:
            item = DTYPES[precision].itemsize
            assert plan.device_bytes["resident elements"] == plan.rows.numbers(plan.form) * item
        for mode in (*range(host.ndim), 1):
            for double in (False, True):
                got = operator.gathered(mode, operator.mttkrp(mode, double=double))
                assert_rounding_only(got, dense_mttkrp(host.astype(np.float64), factors[: host.ndim], mode), precision)
    little = sum(plan.device_bytes.values()) - plan.rows.numbers(plan.form) * item + array.size * item
    assert dense_operator(array, factors, comm, device_memory=little, **options).plan.rows is None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "placement"),
    [
        ((150, 300, 200), "resident"),
        ((150, 300, 200), "stream"),
        ((61, 59, 57, 45), "resident"),  # with gaps between rows, as this one
        ((150, 299, 201), "resident"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_a_gpu_takes_what_is_planned(
    comm: Comm, shape: tuple[int, ...], placement: str, kind: str, precision: str
) -> None:
    if missing := probe():
        pytest.skip(missing)
    array = np.random.default_rng(0).random(shape).astype(kind)
    gc.collect()  # what other tests have left on the device
    options = {"placement": placement, "precision": precision, "device": "cuda"}
    operator = dense_operator(array, random_factors(0, array.shape, 40), comm, **options)
    method = CpAls(operator)
    for _ in iterate(method, StopRule(6, 0)):
        pass
    planned, used = sum(operator.plan.device_bytes.values()), operator.machine.device.peak_bytes()
    assert used is not None
    assert 0.5 * planned <= used <= 1.02 * planned  # double precision was not needed


def test_a_kernel_that_the_device_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuSplit, "suits", lambda _self, _form: False)
    with pytest.raises(InputError, match="kernel 'split' does not run on this device"):
        amped.cp_als(np.ones((3, 3, 3)), 2, device="cpu", kernel="split")


def test_the_copy_of_a_mapped_array_is_planned(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ARRAY)
    arrays = np.load(tmp_path / "x.npy"), np.load(tmp_path / "x.npy", mmap_mode="r")
    held = [dense_operator(array, FACTORS, SingleComm()).plan.device_bytes for array in arrays]
    assert [each["resident elements"] for each in held] == [0, ARRAY.size * 8]
