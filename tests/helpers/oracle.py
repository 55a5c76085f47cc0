"""Oracles in double precision, dense and by coordinates, and independent reference results."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import forms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import amped
from amped.backend.cpu.kernels import sums
from amped.backend.cpu.ops import mttkrp as cpu_mttkrp
from amped.backend.device import Device
from amped.backend.exchange import Machine
from amped.backend.ops.mttkrp import MTTKRP, Kernel
from amped.operators import memory, placement
from amped.operators.sources.protocols import SparseSource
from amped.operators.sparse.operator import SparseOperator
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs.assembly import bring_up, open_tensor, place, solving_bytes

T = TypeVar("T")
TESTS = Path(__file__).parents[1]
BUNDLED = {
    "uber393k_4d": Path(amped.__file__).parent / "data",
    "nycflights_5d": TESTS / "data",
    "matmul_2-2-2": TESTS / "data",
}
SHARED = Path(os.environ.get("AMPED_SHARED", TESTS.parents[1] / "shared"))
SMALL = ("aminoacid_3d", "kdd99_6d", "kinships_3d", "nations_3d", "sparten_cpapr100_3d")  # in the shared folder
LARGE = ("babynames_state_4d", "flights3m_5d")
FIT_RUNS = (
    ("matmul_2-2-2", 7), ("nations_3d", 5), ("nations_3d", 16), ("kinships_3d", 10), ("aminoacid_3d", 3),
    ("sparten_cpapr100_3d", 5), ("kdd99_6d", 6), ("uber393k_4d", 16), ("nycflights_5d", 8),
)  # fmt: skip
LARGE_FIT_RUNS = (("flights3m_5d", 16), ("babynames_state_4d", 16))

PRECISIONS = ("fp32", "fp64")
BACKENDS = [("cpu", 1), ("cpu", 2), ("cpu", 3), pytest.param(("cuda", None), marks=pytest.mark.gpu)]  # and host threads
ROUNDING = {"fp32": (1e-6, 1e-5), "fp64": (1e-12, 1e-12)}  # of an MTTKRP: norm-wise, row-wise
REFERENCE_MTTKRP = {"fp32": 1e-6, "fp64": 1e-11}
REFERENCE_FIT = {"fp32": 1e-4, "fp64": 1e-9}
CANCELLING = {("kdd99_6d", "fp32"): 1e-3}
"""Components cancel: rounding the factors, or factors divided by 1.1, changes fits by 4e-4 even with double sums."""


# Oracles


def dense_mttkrp(dense: np.ndarray, factors: Sequence[np.ndarray], mode: int) -> np.ndarray:
    """MTTKRP by its definition: the sum over all elements of a dense tensor."""
    letters = "abcdefgh"[: dense.ndim]
    others = [m for m in range(dense.ndim) if m != mode]
    inputs = ",".join([letters, *(f"{letters[m]}z" for m in others)])
    return np.einsum(f"{inputs}->{letters[mode]}z", dense, *(factors[m] for m in others), optimize=True)


def coo_mttkrp(columns: Any, values: np.ndarray, factors: Sequence[np.ndarray], mode: int) -> np.ndarray:
    """MTTKRP of nonzeros in any order, one after the other, in double precision."""
    product = np.repeat(values[:, None].astype(np.float64), factors[0].shape[1], axis=1)
    for m, factor in enumerate(factors):
        if m != mode:
            product *= factor[columns[m]].astype(np.float64)
    length, rows = len(factors[mode]), np.asarray(columns[mode])
    return np.stack([np.bincount(rows, each, length) for each in product.T], axis=1)


def model_values(columns: Any, factors: Sequence[np.ndarray]) -> np.ndarray:
    """Return the model's values at nonzeros, in double precision."""
    product = np.ones((len(columns[0]), factors[0].shape[1]))
    for column, factor in zip(columns, factors, strict=True):
        product *= factor[column].astype(np.float64)
    return product.sum(axis=1)


def coo_phi(
    columns: Any, values: np.ndarray, factors: Sequence[np.ndarray], mode: int, floor: float = 1e-10
) -> np.ndarray:
    """Phi of CP-APR (Chi and Kolda 2012): the MTTKRP of values over ``max(m, floor)``, m being the model's value."""
    return coo_mttkrp(columns, values / np.maximum(model_values(columns, factors), floor), factors, mode)


def sum_of_logs(columns: Any, values: np.ndarray, factors: Sequence[np.ndarray], floor: float = 1e-10) -> float:
    """Return the sum of ``x log(max(m, floor))`` over nonzeros."""
    return float(np.sum(values * np.log(np.maximum(model_values(columns, factors), floor))))


def loglikelihood(columns: Any, values: np.ndarray, factors: Sequence[np.ndarray], floor: float = 1e-10) -> float:
    """Return a model's Poisson log-likelihood without the term that depends only on the data, over all elements."""
    mass = np.prod([f.astype(np.float64).sum(axis=0) for f in factors], axis=0).sum()
    return sum_of_logs(columns, values, factors, floor) - float(mass)


def dense_als(dense: np.ndarray, factors: Sequence[np.ndarray], iterations: int) -> tuple[np.ndarray, list[float]]:
    """CP-ALS as Kolda and Bader write it, on a dense tensor; return the model and the fits."""
    factors, letters, fits = [f.copy() for f in factors], "abcdefgh"[: dense.ndim], []
    for iteration in range(iterations):
        for mode in range(dense.ndim):
            grams = [f.T @ f for m, f in enumerate(factors) if m != mode]
            solved = dense_mttkrp(dense, factors, mode) @ np.linalg.pinv(np.prod(grams, axis=0))
            weights = np.maximum(abs(solved).max(axis=0), 1) if iteration else np.linalg.norm(solved, axis=0)
            factors[mode] = solved / weights
        model = np.einsum(f"z,{','.join(c + 'z' for c in letters)}->{letters}", weights, *factors, optimize=True)
        fits.append(1 - np.linalg.norm(dense - model) / np.linalg.norm(dense))
    return model, fits


def assert_rounding_only(got: np.ndarray, want: np.ndarray, precision: str) -> None:
    """Check the promised norm-wise and row-wise error of an MTTKRP of data without cancellation."""
    norm_wise, row_wise = ROUNDING[precision]
    assert got.shape == want.shape
    error = got.astype(np.float64) - want
    assert np.linalg.norm(error) <= norm_wise * np.linalg.norm(want)
    assert np.all(np.linalg.norm(error, axis=1) <= row_wise * np.linalg.norm(want, axis=1))


# Random tensors


@dataclass(frozen=True)
class Case:
    """A tensor with repeated and unsorted nonzeros, and factors.

    All are small integers, so that sums in any order are bitwise the same in both precisions.
    """

    shape: tuple[int, ...]
    columns: np.ndarray
    values: np.ndarray
    factors: list[np.ndarray]

    @property
    def tensor(self) -> amped.SparseTensor:
        return amped.SparseTensor(self.columns.T, self.values, self.shape)

    @property
    def rank(self) -> int:
        return self.factors[0].shape[1]

    def mttkrp(self, mode: int) -> np.ndarray:
        dense = np.zeros(self.shape)
        np.add.at(dense, tuple(self.columns), self.values)
        return dense_mttkrp(dense, self.factors, mode)


@st.composite
def cases(draw: st.DrawFn, max_order: int = 0, max_nonzeros: int = 80) -> Case:
    """Orders 2 to `max_order`; one-row modes, empty rows, a heavy row, a single nonzero.

    Without `max_order`, the order is 3 unless the run is exhaustive.
    """
    orders = (2, max_order or forms.most_modes) if max_order or forms.most_modes else (3, 3)
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=orders[0], max_size=orders[1])))
    rank, count = draw(st.sampled_from([1, 3, 4, *([7] * (orders[1] > 3))])), draw(st.integers(1, max_nonzeros))
    heavy = draw(st.sampled_from([0.0, 0.6, 1.0]))  # fraction of nonzeros in one row of each mode
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    columns = rng.integers(0, np.array(shape)[:, None], (len(shape), count), np.int32)
    columns = np.where(rng.random(columns.shape) < heavy, columns[:, :1], columns)
    factors = [rng.integers(-2, 3, (length, rank)).astype(np.float64) for length in shape]
    return Case(shape, columns, rng.integers(1, 5, count).astype(np.float64), factors)


def block_sizes(blocks: int, largest: int) -> st.SearchStrategy[list[int]]:
    """Unequal sizes of blocks, one for each rank, many of them empty."""
    return st.lists(st.sampled_from([0, 0, 1, 2, largest]), min_size=blocks, max_size=blocks)


def random_nonzeros(seed: int, shape: Sequence[int], nonzeros: int) -> tuple[np.ndarray, np.ndarray]:
    """Return columns and positive values; about two thirds of the nonzeros in the last row of each mode."""
    rng = np.random.default_rng(seed)
    columns = rng.integers(0, np.array(shape)[:, None], (len(shape), nonzeros), np.int32)
    heavy = rng.random(columns.shape) < 2 / 3
    return np.where(heavy, np.array(shape, np.int32)[:, None] - 1, columns), rng.random(nonzeros) + 0.5


def random_factors(seed: int, shape: Sequence[int], rank: int) -> list[np.ndarray]:
    """Return positive factor matrices."""
    rng = np.random.default_rng(seed)
    return [rng.random((length, rank)) for length in shape]


def on_examples(comm: Comm, strategy: st.SearchStrategy[T], check: Callable[[T], None]) -> None:
    """Run a collective `check` on examples that Hypothesis draws on rank 0; if any rank fails, all do.

    Hypothesis runs on one rank, because the examples it draws depend on the loaded modules.
    """

    def fault(example: T) -> str:
        mine = ""
        try:
            check(example)
        except Exception as error:
            mine = f"rank {comm.rank}: {error!r}"
        return "; ".join(filter(None, comm.allgather(mine)))

    @settings(max_examples=40)
    @given(strategy)
    def lead(example: T) -> None:
        comm.bcast((example,))
        assert not (found := fault(example)), found

    if comm.rank == 0:
        try:
            lead()
        finally:
            comm.bcast(None)
    else:
        found = ""
        while (example := comm.bcast(None)) is not None:
            found = fault(example[0])
        assert not found, "the last example, which has failed on rank 0, failed on all"


# Operators


def make_operator(
    source: SparseSource | amped.SparseTensor | None, factors: Sequence[np.ndarray], on: Comm | Machine, **options: Any
) -> SparseOperator:
    """Return an operator with these factors, on the ranks of a communicator or machine; rank 0's tensor is used."""
    chosen = Options(**options)
    machine = on if isinstance(on, Machine) else bring_up(chosen, on)
    if source is None or isinstance(source, amped.SparseTensor):
        source = open_tensor(source, machine, chosen)
    rank, solving = factors[0].shape[1], solving_bytes(machine, chosen, len(factors))
    operator = place(source, rank, machine, chosen, solving)
    for mode, factor in enumerate(factors):
        operator.set_factor(mode, factor)
    return operator


def machine_of(device: str, comm: Comm) -> Machine:
    """Return the machine of these ranks, shared by tests because connecting GPUs takes long."""
    return bring_up(Options(device=device), comm)  # type: ignore[arg-type]


def kernel_of(device: Device, name: str) -> Kernel:
    """Return an MTTKRP kernel by its name."""
    return next(kernel for kernel in MTTKRP.providers(device) if kernel.name == name)


def mttkrp_all(operator: SparseOperator, modes: Sequence[int]) -> list[np.ndarray]:
    """Return the whole MTTKRP of each of `modes`, on every rank."""
    return [operator.gathered(mode, operator.mttkrp(mode)) for mode in modes]


@contextmanager
def small_pieces(slot: int) -> Iterator[None]:
    """Limit streamed shards to `slot` nonzeros, and have CPU threads share even few nonzeros."""
    with (
        mock.patch.multiple(memory, SMALLEST_SLOT=slot, SHARDS=1 << 30),
        mock.patch.multiple(cpu_mttkrp, SMALLEST=3),
        mock.patch.multiple(sums, START_SECONDS=1e-15),
    ):
        yield


def memory_for(streaming: placement.Plan, nonzeros: int) -> int:
    """Return the device memory for a streaming plan and about `nonzeros` nonzeros per mode."""
    more = nonzeros * placement.nonzero_bytes(len(streaming.modes), streaming.dtype) * len(streaming.modes)
    return sum(streaming.device_bytes.values()) + streaming.slot + more


# Reference results


def splitmix_factors(shape: Sequence[int], rank: int) -> list[np.ndarray]:
    """Return the initial factors of the reference results, defined in their README."""
    with np.errstate(over="ignore"):
        return [_splitmix(np.uint64(mode), length, rank) for mode, length in enumerate(shape)]


def _splitmix(mode: np.uint64, length: int, rank: int) -> np.ndarray:
    u = np.uint64
    rows, columns = np.arange(length, dtype=u)[:, None], np.arange(rank, dtype=u)[None, :]
    z = (mode << u(48)) + (rows << u(8)) + columns + u(0x9E3779B97F4A7C15)
    z = (z ^ (z >> u(30))) * u(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> u(27))) * u(0x94D049BB133111EB)
    return ((z ^ (z >> u(31))) >> u(11)) * 2.0**-53


def tensor_path(name: str) -> Path:
    """Return the file of a tensor; skip the test if it cannot be redistributed and is not present."""
    path = BUNDLED.get(name, SHARED / "data") / f"{name}.tns.gz"
    if name not in BUNDLED and not path.exists():
        pytest.skip(f"{name} is not redistributed and not in {SHARED} (set AMPED_SHARED)")
    return path


@cache
def load(name: str) -> amped.SparseTensor:
    """Read a tensor, once."""
    return amped.read(tensor_path(name))


def reference(file: str, name: str) -> Any:
    """Return an entry of a file of reference results."""
    folder = TESTS / "data" if name.split("|")[0] in BUNDLED else SHARED / "reference"
    return json.loads((folder / file).read_text())[name]


def mttkrp_error(name: str, source: SparseSource, on: Comm | Machine, **options: Any) -> float:
    """Return the largest relative deviation of all modes' MTTKRPs, rank 16, from the reference."""
    operator = make_operator(source, splitmix_factors(source.shape, 16), on, **options)
    results = [result.astype(np.float64) for result in mttkrp_all(operator, range(operator.order))]
    return max(
        max(
            abs(np.linalg.norm(out) - want["fro"]) / want["fro"],
            abs(out.sum() - want["sum"]) / want["fro"],
            abs(abs(out).max() - want["maxabs"]) / want["maxabs"],
            abs(out[0, 0] - want["first_row0"]) / want["maxabs"],
            abs(out[-1, -1] - want["last"]) / want["maxabs"],
        )
        for out, want in zip(results, reference("mttkrp_rank16.json", name), strict=True)
    )


def fit_tolerance(name: str, precision: str) -> float:
    """Return the permitted deviation of fits from the reference."""
    return CANCELLING.get((name, precision), REFERENCE_FIT[precision])


def fit_error(name: str, rank: int, tensor: amped.SparseTensor | None, shape: Sequence[int], **options: Any) -> float:
    """Return the largest deviation of CP-ALS's fits from the reference; only rank 0's `tensor` is used."""
    want = reference("cp_als_fits.json", f"{name}|R{rank}")["fit_per_iteration"]
    start = splitmix_factors(shape, rank)
    model = amped.cp_als(tensor, rank, init=start, tol=0, max_iters=len(want), **options)
    return float(np.abs(np.subtract(model.fits, want)).max())


def true_fit(tensor: amped.SparseTensor, model: amped.KruskalTensor) -> float:
    """Return the fit of a model in double precision: from the distance at the nonzeros and the norm elsewhere."""
    factors, values = [f.astype(np.float64) for f in model.factors], tensor.values.astype(np.float64)
    products = np.repeat(model.weights[None], tensor.nnz, axis=0)
    for column, factor in zip(tensor.columns, factors, strict=True):
        products *= factor[column]
    at_nonzeros = products.sum(axis=1)
    squared = model.weights @ np.prod([f.T @ f for f in factors], axis=0) @ model.weights
    elsewhere = max(0.0, squared - np.square(at_nonzeros).sum())
    return float(1 - np.sqrt((np.square(values - at_nonzeros).sum() + elsewhere) / np.square(values).sum()))
