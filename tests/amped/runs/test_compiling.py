"""Small runs compile nothing, and agree with those of compiled code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import amped
from amped.backend.exchange import Machine
from amped.operators.sources.sparse import TensorSource
from amped.options import Options
from amped.parallel.mpi import SingleComm
from amped.runs import assembly, compiling
from partitioner.build import partition
from partitioner.host.worth import LOADING, SETTING

DATA = Path(amped.__file__).parent / "data"
COUNTS = amped.SparseTensor(
    np.stack(np.unravel_index(np.random.default_rng(0).choice(480, 200, replace=False), (8, 10, 6)), 1),
    np.random.default_rng(1).integers(1, 6, 200).astype(float),
    (8, 10, 6),
)
GRID = np.random.default_rng(2).random((5, 6, 7))
GRID_OF_COUNTS = np.random.default_rng(3).random(COUNTS.shape)
START = [np.random.default_rng(3 + m).random((n, 2)) for m, n in enumerate(COUNTS.shape)]
MASK = np.random.default_rng(4).random(COUNTS.shape) < 0.5
WEIGHTS = np.random.default_rng(5).integers(0, 3, GRID.shape)
RUNS: dict[str, Callable[..., Any]] = {
    "sparse": lambda **how: amped.cp_als(COUNTS, 2, max_iters=8, tol=0, **how),
    "nonnegative": lambda **how: amped.cp_als(COUNTS, 2, max_iters=8, tol=0, nonnegative=True, **how),
    "ridge": lambda **how: amped.cp_als(COUNTS, 2, max_iters=8, tol=0, ridge=0.5, **how),
    "starts": lambda **how: amped.cp_als(COUNTS, 2, max_iters=8, tol=0, starts=2, **how),
    "fixed": lambda **how: amped.cp_als(COUNTS, 2, max_iters=8, tol=0, fixed_modes=[2], init=START, **how),
    "dense": lambda **how: amped.cp_als(GRID, 2, max_iters=8, tol=0, **how),
    "dense nonnegative": lambda **how: amped.cp_als(GRID, 2, max_iters=8, tol=0, nonnegative=[0, 2], **how),
    "observed": lambda **how: amped.cp_als(COUNTS, 2, max_iters=8, tol=0, mask="stored", ridge=0.1, **how),
    "observed nonnegative": lambda **how: amped.cp_als(
        COUNTS, 2, max_iters=8, tol=0, mask=MASK, nonnegative=[1], **how
    ),
    "weighted": lambda **how: amped.cp_als(GRID, 2, max_iters=8, tol=0, weights=WEIGHTS, **how),
    "counts": lambda **how: amped.cp_apr(COUNTS, 2, max_iters=4, tol=0, **how),
    "tucker": lambda **how: amped.tucker(COUNTS, rank=(2, 3, 2), max_iters=4, tol=0, **how),
    "tucker of an error": lambda **how: amped.tucker(COUNTS, error=0.7, method="sthosvd", **how),
    "dense tucker": lambda **how: amped.tucker(GRID, rank=(2, 3, 2), max_iters=4, tol=0, **how),
}


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("name", RUNS)
def test_both_paths_agree(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = []
    for wish in ("always", "never"):
        monkeypatch.setenv(SETTING, wish)
        models.append(RUNS[name](precision=precision, device="cpu"))
    compiled, plain = models
    assert "without compiled code" in plain.run["device_description"]
    assert "without compiled code" not in compiled.run["device_description"]
    bound = 1e-12 if precision == "fp64" else 1e-6
    for series, numbers in compiled.series.items():
        if series != "kkt":  # which is a difference of numbers near 1
            np.testing.assert_allclose(plain.series[series], numbers, rtol=bound, atol=bound)
    for one, other in zip(compiled.factors, plain.factors, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e3 * bound, atol=1e3 * bound)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_products_on_both_paths_agree(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    factors, products = [np.random.default_rng(m).random((n, 3)) for m, n in enumerate(COUNTS.shape)], []
    how: dict[str, Any] = {"precision": precision, "device": "cpu"}
    for wish in ("always", "never"):
        monkeypatch.setenv(SETTING, wish)
        first = amped.ttm(COUNTS, factors[1], 1, **how)
        second = amped.ttm(first, factors[2], 2, **how)
        third = amped.ttm(second, factors[1].T.copy(), 1, **how)
        mttkrps = [amped.mttkrp(X, factors, mode, **how) for X in (COUNTS, GRID_OF_COUNTS) for mode in (0, 2)]
        products.append([first.indices, first.values, second.values, third.values, *mttkrps])
    bound = 1e-12 if precision == "fp64" else 1e-6
    for compiled, plain in zip(*products, strict=True):
        assert compiled.dtype == plain.dtype
        np.testing.assert_allclose(plain, compiled, rtol=bound)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_a_store_on_both_paths(precision: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", indices=COUNTS.indices, values=COUNTS.values, shape=COUNTS.shape)
    partition(tmp_path / "t.npz", tmp_path / "store")
    models = []
    for wish in ("always", "never"):
        monkeypatch.setenv(SETTING, wish)
        models.append(amped.cp_als(tmp_path / "store", 2, max_iters=4, tol=0, precision=precision, device="cpu"))
    assert "without compiled code" in models[1].run["device_description"]
    np.testing.assert_allclose(models[0].fits, models[1].fits, rtol=1e-12 if precision == "fp64" else 1e-6)


@pytest.mark.parametrize(("tol", "compiles"), [(1e-5, False), (0.0, True)])
def test_a_run_that_a_tolerance_may_end_does_not_wait_for_the_compiler(
    tol: float, compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = list[compiling.Work]()

    def chosen(machine: Machine, source: Any, options: Options, work: compiling.Work) -> Machine:
        works.append(work)
        return compiling.uncompiled(machine)

    monkeypatch.setattr(assembly, "chosen", chosen)
    amped.cp_als(COUNTS, 2, max_iters=1000, tol=tol, device="cpu", callback=lambda *_: True)
    large = SimpleNamespace(shape=(183, 24, 874, 1247), nnz=353_486)
    seconds = compiling._seconds(large, works[0]._replace(columns=23))
    assert (seconds > compiling.COMPILING["mttkrp"] + LOADING) == compiles


@pytest.mark.parametrize(("lengths", "compiles"), [((90, 80, 70), False), ((40_000, 50_000, 60_000), True)])
def test_tensors_with_repeated_indices_need_no_compiler(lengths: tuple[int, ...], compiles: bool) -> None:
    """Of two tensors of the same size, that of short modes is decomposed sooner than the compiler ends."""
    rng = np.random.default_rng(0)
    indices = np.stack([rng.integers(0, length, 200_000) for length in lengths], 1)
    source = TensorSource(amped.SparseTensor(indices, np.ones(200_000), lengths), SingleComm())
    work = compiling.Work(32, 25, tree_rows=source.tree_rows())
    seconds = compiling._seconds(source, work) if compiling._suits(source, Options(), work) else np.inf
    assert (seconds > compiling.COMPILING["mttkrp"]) == compiles


def test_an_update_of_few_components_takes_time_for_each_nonzero() -> None:
    tensor = SimpleNamespace(shape=(7, 24, 3036), nnz=37_997)
    one, two = (compiling._seconds(tensor, compiling.Work(rank, 1000, "phi")) for rank in (1, 2))
    assert one < two < 1.5 * one


def test_more_components_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equations are singular: the pseudo-inverse is for the usual steps, between which short ones go on."""
    exact = np.einsum("ir,jr,kr->ijk", *(np.random.default_rng(m).random((n, 1)) for m, n in enumerate((5, 6, 7))))
    fits = []
    for wish in ("always", "never"):
        monkeypatch.setenv(SETTING, wish)
        fits.append(amped.cp_als(exact, 3, precision="fp64", max_iters=12, tol=0, device="cpu").fits)
    assert len(fits[0]) == len(fits[1]) == 12
    np.testing.assert_allclose(fits[0], fits[1], atol=1e-6)


def test_a_run_without_compiled_code_resumes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(SETTING, "never")
    how: dict[str, Any] = {"tol": 0, "precision": "fp64", "device": "cpu"}
    whole = amped.cp_als(COUNTS, 2, max_iters=9, **how)
    amped.cp_als(COUNTS, 2, max_iters=5, checkpoint=tmp_path / "c", **how)
    resumed = amped.cp_als(COUNTS, 2, max_iters=9, checkpoint=tmp_path / "c", resume=True, **how)
    np.testing.assert_allclose(resumed.fits, whole.fits, rtol=1e-11)
    for one, other in zip(resumed.factors, whole.factors, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("tensor", [COUNTS, GRID, GRID * 3e7, GRID * 1e-6], ids=["sparse", "dense", "large", "small"])
def test_a_scan_on_both_paths(tensor: Any, nonnegative: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for wish in ("always", "never"):
        monkeypatch.setenv(SETTING, wish)
        how: dict[str, Any] = {"precision": "fp64", "max_iters": 12, "tol": 1e-4, "device": "cpu"}
        scan = amped.scan(tensor, [1, 2, 3], starts=2, halves=False, nonnegative=nonnegative, **how)
        found.append([(each.rank, *each.explained, each.iterations, each.consistency) for each in scan.tried])
    np.testing.assert_allclose(np.array(found[0], float), np.array(found[1], float), rtol=1e-7)


def test_a_singular_run_leaves_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """More components than a tensor has: equations are singular, and decided one by one."""
    exact = np.einsum("ir,jr,kr->ijk", *(np.random.default_rng(m).random((n, 2)) for m, n in enumerate((5, 6, 7))))
    found = []
    for wish in ("always", "never"):
        monkeypatch.setenv(SETTING, wish)
        scan = amped.scan(exact, [2, 4], starts=2, halves=False, precision="fp64", max_iters=30, tol=0, device="cpu")
        found.append([max(each.explained) for each in scan.tried])
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


@pytest.mark.parametrize(
    "how", [{"deterministic": True}, {"kernel": "segmented"}, {"placement": "stream"}, {"device_memory": 1 << 30}]
)
def test_what_names_a_path_is_compiled(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING)
    model = amped.cp_als(COUNTS, 2, max_iters=2, device="cpu", **how)
    assert "without compiled code" not in model.run["device_description"]


PROGRAM = """
import sys
import amped
{call}
assert "numba" not in sys.modules, "Numba was loaded"
"""


@pytest.mark.parametrize(
    "call",
    [
        "amped.tucker(amped.read(sys.argv[1] + '/uber_pickups.npz'), rank=(2, 2, 2), device='cpu')",
        "amped.cp_als(amped.read(sys.argv[1] + '/uber_pickups.npz'), 2, device='cpu')",
        "amped.cp_als(amped.read(sys.argv[1] + '/uber393k_4d.tns.gz'), 2, max_iters=2, device='cpu')",
        "amped.cp_als(__import__('numpy').random.default_rng(0).random((5, 6, 7)), 2, device='cpu', nonnegative=True)",
        "amped.cp_apr(amped.read(sys.argv[1] + '/uber_pickups.npz'), 2, max_iters=2, device='cpu')",
        "X = amped.read(sys.argv[1] + '/uber_pickups.npz')[:4, :, :50].todense(); X[X == 0] = float('nan'); "
        "amped.scan(X, [2, 3], starts=2, mask='nan', device='cpu').models[0].transform(X, 0, mask='nan', device='cpu')",
    ],
)
def test_a_first_run_loads_no_compiler(call: str, tmp_path: Path) -> None:
    environment = {name: each for name, each in os.environ.items() if name != SETTING}
    environment |= {"NUMBA_CACHE_DIR": str(tmp_path), "HOME": str(tmp_path)}
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM.format(call=call), str(DATA)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("wish", ["always", "never"])
def test_a_product_beyond_single_precision_is_refused(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, wish)
    with pytest.raises(amped.errors.InputError, match="not finite"):
        amped.ttm(COUNTS, np.full((COUNTS.shape[1], 2), 3e38), 1, precision="fp32", device="cpu")
