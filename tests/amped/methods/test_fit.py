"""Reported fits against those of the models, where ``||X||**2 + ||M||**2 - 2 <X, M>`` cancels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from forms import exhaustive
from oracle import PRECISIONS, kernel_of, machine_of, make_operator, random_factors, small_pieces, true_fit

import amped
from amped.backend.exchange import connect
from amped.backend.null.device import NullDevice
from amped.backend.ops.equations import NEARBY
from amped.methods import updates
from amped.methods.als import CpAls
from amped.methods.driver import StopRule, iterate
from amped.methods.updates import LeastSquares
from amped.parallel.mpi import Comm

ACCURACY = 1e-6


def tensor_of(dense: np.ndarray) -> amped.SparseTensor:
    return amped.SparseTensor(np.argwhere(dense), dense[dense != 0], dense.shape)


def low_rank(shape: tuple[int, ...], rank: int, noise: float = 0) -> np.ndarray:
    letters = "abcdefgh"[: len(shape)]
    dense = np.einsum(f"{','.join(c + 'z' for c in letters)}->{letters}", *random_factors(len(shape), shape, rank))
    return np.asarray(dense + noise * np.random.default_rng(rank).standard_normal(shape))


ONES, TENTHS = np.ones((6, 7, 8)), np.full((6, 7, 8), 0.1)  # 0.1 is rounded in both precisions
NEAR = {
    "ones": (ONES, 5), "tenths": (TENTHS, 5), "rank 4": (low_rank((9, 10, 11), 4), 4),
    "with noise": (low_rank((9, 10, 11), 4, 0.02), 4), "order 2": (low_rank((30, 20), 5), 5),
    "order 5": (low_rank((5, 6, 7, 5, 4), 3), 4), "tiny": (1e-20 * ONES, 5), "large": (1e20 * TENTHS, 2),
}  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", exhaustive("fp64")])
@pytest.mark.parametrize("name", [exhaustive(name) if "order" in name else name for name in NEAR])
def test_a_fit_near_1_is_that_of_the_model(device: str, name: str, precision: str) -> None:
    dense, rank = NEAR[name]
    tensor = tensor_of(dense)
    for iterations in (1, 2, 5, 20):
        model = amped.cp_als(tensor, rank, tol=0, max_iters=iterations, device=device, precision=precision)
        assert model.fits[-1] == pytest.approx(true_fit(tensor, model), abs=ACCURACY)
        assert max(model.fits) <= 1


@pytest.mark.parametrize(
    "options", [{"placement": "stream"}, exhaustive({"kernel": "permuted"}), {"deterministic": True}]
)
def test_however_nonzeros_are_placed(device: str, options: dict[str, Any]) -> None:
    tensor = tensor_of(ONES)
    with small_pieces(50):
        model = amped.cp_als(tensor, 5, tol=0, max_iters=4, device=device, **options)
    assert model.fits[-1] == pytest.approx(true_fit(tensor, model), abs=ACCURACY)


def test_every_kernel(device: str, comm: Comm) -> None:
    tensor = tensor_of(TENTHS)
    for kernel in (k for k in ("segmented", "fibre", "tiled-1", "tiled-2", "blocked", "blocked-half", "atomic")):
        try:
            kernel_of(machine_of(device, comm).device, kernel)
        except StopIteration:
            continue
        model = amped.cp_als(tensor, 3, tol=0, max_iters=3, device=device, kernel=kernel)
        assert model.fits[-1] == pytest.approx(true_fit(tensor, model), abs=ACCURACY), kernel


def test_fits_that_are_far_from_1_take_no_second_pass(comm: Comm, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeastSquares, "refit", lambda _: pytest.fail("it is computed again"))
    shape = (9, 10, 11)
    noisy = tensor_of(low_rank(shape, 4, 1.0))
    assert amped.cp_als(noisy, 4, tol=0, max_iters=10, device=device).fits[-1] < 0.7
    assert amped.cp_als(tensor_of(ONES), 4, tol=0, max_iters=3, device=device, precision="fp64").fits[-1] > 0.9


def test_once_fits_are_near_1_all_are_computed_in_one_way(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    refit = LeastSquares.refit
    monkeypatch.setattr(LeastSquares, "refit", lambda self: passes.append(1) or refit(self))
    dense = low_rank((9, 10, 11), 4)
    operator = make_operator(tensor_of(dense), random_factors(7, dense.shape, 2), comm, device="cpu")
    method, since = CpAls(operator), None
    for state in iterate(method, StopRule(12, 0)):
        computed, before = bool(passes), state.series["fit"][:-1]
        passes.clear()
        if max(before, default=0) > NEARBY:
            assert computed
        since = since or (state.iterations if computed else None)
    assert since is not None


def test_a_tolerance_below_what_single_precision_rounds(device: str) -> None:
    tensor = tensor_of(low_rank((9, 10, 11), 2) + 1)
    single, double = (
        amped.cp_als(tensor, 2, tol=1e-6, max_iters=60, device=device, precision=precision) for precision in PRECISIONS
    )
    assert single.converged
    assert len(single.fits) == pytest.approx(len(double.fits), abs=1)
    # The fit of four components grows by more for long. What single precision rounds would hide it.
    assert not amped.cp_als(tensor, 4, tol=1e-6, max_iters=100, device=device).converged


@pytest.mark.parametrize("kernel", ["auto", exhaustive("permuted")])
def test_components_that_cancel_are_solved_in_double_precision(device: str, kernel: str) -> None:
    """Nearly dependent columns: with what single precision rounds, the fit was 0.7 at most, and said to be another."""
    rng = np.random.default_rng(0)
    shape = (4, 5, 6)
    tensor = tensor_of(1 + 1e-3 * rng.random(shape))
    start = [1 + 1e-4 * rng.random((n, 3)) for n in shape]
    for iterations in (2, 5, 9):
        model = amped.cp_als(tensor, 3, init=start, tol=0, max_iters=iterations, device=device, kernel=kernel)
        assert model.fits[-1] == pytest.approx(true_fit(tensor, model), abs=ACCURACY)
        assert model.fits[-1] > 0.999


@pytest.mark.parametrize("deterministic", [False, True])
def test_where_single_precision_did_not_suffice_it_is_not_tried_each_time(
    comm: Comm, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But now and then; a run that is to be repeated to the bit knows nothing of what went before."""
    monkeypatch.setattr(updates, "AT_ONCE", 3)
    shape = (4, 5, 6)
    rng = np.random.default_rng(0)
    tensor = tensor_of(1 + 1e-3 * rng.random(shape))
    start = [1 + 1e-4 * rng.random((n, 3)) for n in shape]
    operator = make_operator(tensor, start, comm, device="cpu", deterministic=deterministic)
    mttkrp, params = operator.mttkrp, list[bool]()

    def counted(mode: int, solve: Any, then: Any, double: bool, sums: Any) -> Any:
        if mode == 0 and solve is not None:  # fits solve nothing
            params.append(double)
        return mttkrp(mode, solve, then, double, sums)

    monkeypatch.setattr(operator, "mttkrp", counted)
    for _ in iterate(CpAls(operator), StopRule(5, 0)):
        pass
    assert params == ([False, True] * 5 if deterministic else [False, True, True, True, True, False, True])


@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_a_second_pass_allocates_nothing(comm: Comm, placement: str) -> None:
    device = NullDevice(comm)
    with small_pieces(50):
        operator = make_operator(
            tensor_of(ONES), random_factors(1, ONES.shape, 4), connect(device, comm), placement=placement
        )
    iterations = iterate(CpAls(operator), StopRule(4, 0))
    assert next(iterations).series["fit"][-1] > NEARBY
    del device.allocated[:]
    next(iterations)
    assert not device.allocated
