"""CP-ALS over observed elements, over all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from missing import observed_als, planted
from oracle import load, random_factors, reference, small_pieces, splitmix_factors

import amped
from amped.parallel.mpi import Comm

pytestmark = pytest.mark.mpi


def same_on_all_ranks(comm: Comm, model: amped.KruskalTensor) -> bool:
    mine = (model.weights.tobytes(), *(f.tobytes() for f in model.factors), str(model.series))
    return all(other == mine for other in comm.allgather(mine))


def test_the_reference_results(comm: Comm, device: str) -> None:
    tensor, want = load("uber393k_4d"), reference("completion.json", "uber393k_4d|R8|ridge0.1")
    model = amped.cp_als(
        tensor if comm.rank == 0 else None, 8, mask="stored", ridge=0.1, max_iters=10, tol=0,
        init=splitmix_factors(tensor.shape, 8), device=device, precision="fp64",
    )  # fmt: skip
    np.testing.assert_allclose(model.series["objective"], want["objective"], rtol=1e-9)
    np.testing.assert_allclose(model.series["rmse"], want["rmse"], rtol=1e-9)


@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize(("shape", "rank"), [((6, 2, 8), 3), ((9, 7), 3), ((2, 3, 40), 3), ((1, 5, 6), 3)])
@pytest.mark.parametrize(("weighted", "compiled"), [(False, "always"), (True, "always"), (False, "never")])
def test_the_same_path_as_an_oracle(
    comm: Comm,
    device: str,
    shape: tuple[int, ...],
    rank: int,
    placement: Any,
    weighted: bool,
    compiled: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows are shared by ranks, all ranks among them, and by shards; some have fewer elements than components."""
    monkeypatch.setenv("AMPED_COMPILE", compiled)
    values, _, seen = planted(shape, 2, 0.6)
    seen.flat[0] = True
    weights = seen * np.random.default_rng(1).integers(1, 4, shape) / 2 if weighted else seen.astype(float)
    start = random_factors(0, shape, rank)
    want = observed_als(np.argwhere(seen).T, values[seen], start, 5, 0.01, weights[seen])
    given: dict[str, Any] = {"weights": weights} if weighted else {"mask": seen}
    with small_pieces(10):
        model = amped.cp_als(
            values if comm.rank == 0 else None, rank, init=start, max_iters=5, tol=0, ridge=0.01, precision="fp64",
            device=device, placement=placement, **(given if comm.rank == 0 else {}),
        )  # fmt: skip
    np.testing.assert_allclose(model.series["objective"], want.objective, rtol=1e-9)
    np.testing.assert_allclose(model.series["rmse"], want.rmse, rtol=1e-9)
    assert same_on_all_ranks(comm, model)


def test_files_keep_their_zeros(comm: Comm, tmp_path: Any, device: str) -> None:
    path = comm.bcast(tmp_path) / "t.tns"
    values, _, seen = planted((9, 8, 7), 2, 0.6)
    values = np.where(values > 0.5, values, 0)
    if comm.rank == 0:
        path.write_text(
            "\n".join(f"{i + 1} {j + 1} {k + 1} {values[i, j, k]:.17g}" for i, j, k in np.argwhere(seen).tolist())
        )
    comm.allgather(None)
    start = random_factors(0, values.shape, 2)
    want = observed_als(np.argwhere(seen).T, values[seen], start, 4)
    model = amped.cp_als(path, 2, mask="stored", init=start, max_iters=4, tol=0, precision="fp64", device=device)
    np.testing.assert_allclose(model.series["objective"], want.objective, rtol=1e-9)
    mask = "stored" if comm.rank == 0 else None  # rank 0's mask is used
    model = amped.cp_als(path, 2, mask=mask, init=start, max_iters=4, tol=0, precision="fp64", device=device)
    np.testing.assert_allclose(model.series["objective"], want.objective, rtol=1e-9)


def test_new_data_with_gaps_are_projected(comm: Comm, device: str) -> None:
    values, _, seen = planted((9, 8, 7), 2, 0.7)
    gaps = np.where(seen, values, np.nan) if comm.rank == 0 else None
    model = amped.cp_als(gaps, 2, mask="nan" if comm.rank == 0 else None, max_iters=20, precision="fp64", device=device)
    rows = model.transform(gaps, 0, precision="fp64", device=device)
    assert all(np.array_equal(other, rows) for other in comm.allgather(rows))
    v = np.einsum("jr,kr->jkr", *model.factors[1:]).reshape(-1, 2)
    i = int(np.argmax(seen.sum(axis=(1, 2))))
    want = np.linalg.lstsq(v[seen[i].ravel()], values[i].ravel()[seen[i].ravel()])[0]
    np.testing.assert_allclose(rows[i], want, rtol=1e-8)
    with pytest.raises(amped.InputError, match="no such file"):  # on all ranks, though rank 0 reads it
        model.transform("missing.tns", 0, device=device)
