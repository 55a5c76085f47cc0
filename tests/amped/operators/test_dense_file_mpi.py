"""A dense tensor that is streamed from a file: read once until the first MTTKRP is done, each rank its own part."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from densecases import dense_operator, low_rank
from oracle import assert_rounding_only, dense_mttkrp, random_factors

import amped
from amped.backend.cuda import probe
from amped.errors import InputError
from amped.operators.sources.grid import Grid
from amped.parallel.mpi import Comm
from partitioner.tensors.npy_file import FileElements

SHAPES = [(24, 6, 9), (2, 30, 9), (1, 4, 50), (30, 5)]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu), pytest.param("cuda by threads", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each device in turn; threads stage elements for a GPU once there are many."""
    name, _, staged = request.param.partition(" ")
    if name == "cuda" and (missing := probe()):
        pytest.skip(missing)
    if staged:
        monkeypatch.setattr("amped.backend.cuda.device.LARGE", 0)
    return str(name)


@pytest.fixture
def saved(comm: Comm, tmp_path: Path) -> Callable[[np.ndarray], Path]:
    """What saves an array in a file that all ranks see."""
    folder = comm.bcast(tmp_path)

    def save(array: np.ndarray) -> Path:
        if comm.rank == 0:
            np.save(folder / "x.npy", array)
        comm.allgather(None)
        return folder / "x.npy"

    return save


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each reading of a file."""
    found, fill = list[int](), FileElements._fill

    def counting(self: FileElements, out: np.ndarray, at: int) -> None:
        found.append(out.nbytes)
        fill(self, out, at)

    monkeypatch.setattr(FileElements, "_fill", counting)
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_the_first_mttkrp_finds_the_norm(
    comm: Comm, device: str, saved: Any, counted: list[int], shape: tuple[int, ...], order: Any, precision: str
) -> None:
    array, factors = np.array(np.random.default_rng(1).random(shape), order=order), random_factors(2, shape, 5)
    path, how = saved(array), {"placement": "stream", "precision": precision, "device": device}
    operator = dense_operator(path, factors, comm, late=True, **how)
    assert sum(counted) == 0
    assert math.isnan(operator.norm)
    assert_rounding_only(operator.gathered(0, operator.mttkrp(0)), dense_mttkrp(array, factors, 0), precision)
    held = array.astype(operator.options.dtype).astype(np.float64)
    assert operator.norm == pytest.approx(np.linalg.norm(held), rel=1e-14)
    assert dense_operator(path, factors, comm, **how).norm == pytest.approx(operator.norm, rel=1e-15)


def test_a_rank_reads_its_part_once(comm: Comm, saved: Any, counted: list[int]) -> None:
    """Until CP-ALS begins its second pass; slabs of that one are read ahead, or mapped."""
    array = low_rank((48, 16, 8), 2, noise=0.1)
    operator = dense_operator(saved(array), random_factors(0, array.shape, 2), comm, placement="stream", late=True)
    form = operator.plan.form
    operator.mttkrp(0)
    slabs = operator._slabs
    [slot.shard() for slot in slabs._slots]
    mine = math.prod(Grid.of(array.shape, comm.size).shape(comm.rank)) * array.itemsize
    ahead = len(slabs._slots) * form.slab * form.elements // form.lengths[0] * array.itemsize
    assert mine <= sum(counted) <= mine + ahead


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("place", [(0, 0, 0), (11, 2, 3), (23, 5, 8)], ids=str)
def test_all_ranks_say_where_an_element_is_not_finite(
    comm: Comm, device: str, saved: Any, bad: float, order: Any, place: tuple[int, ...]
) -> None:
    """Before an MTTKRP is returned, and in the first iteration."""
    array = np.ones((24, 6, 9), order=order)
    array[place] = bad
    path, factors = saved(array), random_factors(0, array.shape, 2)
    calls: list[Callable[[], object]] = [
        lambda: amped.mttkrp(path, factors, 1, placement="stream", device=device),
        lambda: amped.cp_als(path, 2, placement="stream", device=device),
        lambda: amped.cp_als(path, 2, placement="stream", device=device, nonnegative=True),
        lambda: amped.cp_als(path, 2, placement="stream", device=device, init="nvecs"),
    ]
    for call in calls:
        with pytest.raises(InputError, match=rf"x\.npy: element \[{', '.join(map(str, place))}\] is {bad}"):
            call()


def test_all_ranks_refuse_values_that_the_first_pass_finds(comm: Comm, saved: Any) -> None:
    path = saved(np.full((12, 5, 4), 1e200))
    with pytest.raises(InputError, match=r"x\.npy: values up to .* beyond"):
        amped.cp_als(path, 2, placement="stream", device="cpu")


def test_zeros_from_a_file(comm: Comm, saved: Any) -> None:
    model = amped.cp_als(saved(np.zeros((12, 5, 4))), 2, placement="stream", device="cpu")
    assert model.converged
    assert model.fits == (1.0,)
    assert not model.full().any()


@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_all_ranks_say_that_a_file_was_cut_short(comm: Comm, device: str, saved: Any, placement: str) -> None:
    array = np.ones((24, 6, 9))
    path = saved(array)

    def cut() -> None:
        comm.allgather(None)
        if comm.rank == 0:
            os.truncate(path, path.stat().st_size - 8 * 6 * 9)
        comm.allgather(None)

    factors = random_factors(0, array.shape, 2)
    if placement == "stream":
        operator = dense_operator(path, factors, comm, placement=placement, device=device, late=True)
        cut()
        with pytest.raises(
            InputError, match=r"x\.npy: truncated while it was read: it had at least .* bytes, and has .* now"
        ):
            [operator.mttkrp(mode) for mode in range(3)]
        return
    from amped.options import Options
    from amped.runs.assembly import bring_up, open_tensor, place

    options = Options(device=device, placement="resident")  # type: ignore[arg-type]
    machine = bring_up(options, comm)
    source = open_tensor(path, machine, options)
    cut()
    with pytest.raises(InputError, match="truncated while it was read"):
        place(source, 2, machine, options)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("how", [{}, {"nonnegative": True}, {"starts": 2}, {"init": "nvecs"}], ids=str)
def test_models_are_those_of_resident_elements(
    comm: Comm, device: str, saved: Any, shape: tuple[int, ...], how: Any
) -> None:
    path = saved(abs(low_rank(shape, 2, noise=0.1)))
    given = {"max_iters": 5, "tol": 0, "precision": "fp64", "device": device, **how}
    streamed, resident = (amped.cp_als(path, 2, placement=each, **given) for each in ("stream", "resident"))
    assert np.abs(np.subtract(streamed.fits, resident.fits)).max() <= 1e-11
