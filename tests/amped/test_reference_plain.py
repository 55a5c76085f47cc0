"""Independent reference results, without compiled code."""

from __future__ import annotations

from typing import Any

import counts
import numpy as np
import pytest
import tuckers
from forms import exhaustive
from oracle import (
    BUNDLED,
    FIT_RUNS,
    PRECISIONS,
    REFERENCE_MTTKRP,
    SMALL,
    fit_error,
    fit_tolerance,
    load,
    reference,
    tensor_path,
)
from oracle import splitmix_factors as start

import amped
from amped.backend.plain.device import PlainDevice

pytestmark = pytest.mark.in_turn

SPARSE = sorted({*BUNDLED, *SMALL} - {"matmul_2-2-2", "aminoacid_3d"})
LONG = "nycflights_5d", "uber393k_4d"  # runs of 10 s


@pytest.fixture(autouse=True)
def _runs_use_no_compiled_code(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, without_compiled_code: None
) -> Any:
    """Assert that runs use NumPy."""
    if "name" in request.fixturenames:
        tensor_path(request.getfixturevalue("name"))  # skips the test without the tensor
    devices, begin = list[PlainDevice](), PlainDevice.__init__

    def noted(self: PlainDevice, *args: Any) -> None:
        devices.append(self)
        begin(self, *args)

    monkeypatch.setattr(PlainDevice, "__init__", noted)
    yield
    assert devices, "the run used compiled code"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("name", "rank"), FIT_RUNS)
def test_cp_als(name: str, rank: int, precision: Any) -> None:
    tensor = load(name)
    error = fit_error(name, rank, tensor, tensor.shape, device="cpu", precision=precision)
    assert error <= fit_tolerance(name, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("name", "rank"), [exhaustive(*run) if run[0] in LONG else run for run in counts.REFERENCES])
def test_cp_apr(name: str, rank: int, precision: str) -> None:
    counts.assert_the_reference(name, rank, precision, device="cpu")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("name", "ranks"), tuckers.RUNS)
def test_tucker(name: str, ranks: tuple[int, ...], precision: str) -> None:
    tensor = load(name)
    tuckers.assert_the_reference(name, ranks, tensor, tensor.shape, device="cpu", precision=precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SPARSE)
def test_mttkrp(name: str, precision: Any) -> None:
    tensor, tolerance = load(name), REFERENCE_MTTKRP[precision]
    for mode, want in enumerate(reference("mttkrp_rank16.json", name)):
        rows = amped.mttkrp(tensor, start(tensor.shape, 16), mode, device="cpu", precision=precision)
        rows = rows.astype(np.float64)
        assert np.linalg.norm(rows) == pytest.approx(want["fro"], rel=tolerance)
        assert rows.sum() == pytest.approx(want["sum"], rel=tolerance)
        assert rows[-1, -1] == pytest.approx(want["last"], abs=tolerance * want["maxabs"])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SPARSE)
def test_ttm(name: str, precision: Any) -> None:
    tensor, tolerance = load(name), {"fp32": 1e-6, "fp64": 1e-12}[precision]
    for mode, (want, matrix) in enumerate(
        zip(reference("ttm.json", f"{name}|R16"), start(tensor.shape, 16), strict=True)
    ):
        product = amped.ttm(tensor, matrix, mode, device="cpu", precision=precision)
        values = product.values.astype(np.float64)
        assert product.fibres == want["fibres"]
        assert np.linalg.norm(values) == pytest.approx(want["fro"], rel=tolerance)
        assert values.sum() == pytest.approx(want["sum"], rel=tolerance)
