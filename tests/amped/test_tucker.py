"""The verb ``tucker``: what it writes, how it goes on, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import on_ranks, refused, run_amped, small_tns, succeeded, write_factors
from oracle import tensor_path
from tuckers import assert_orthonormal

import amped

COMMON = ["--precision", "fp64", "--device", "cpu"]


@pytest.fixture
def tns(folder: Path) -> Path:
    return small_tns(folder)


def record_in(output: str) -> dict[str, Any]:
    return dict(json.loads((Path(output) / "run.json").read_text()))


@pytest.mark.parametrize("method", ["hooi", "hosvd", "sthosvd"])
def test_model_and_record(tns: Path, method: str) -> None:
    result = succeeded(run_amped("tucker", tns, "--rank", "3,2,4", "--method", method, *COMMON, "--output", "out"))
    model, record = amped.load("out"), record_in("out")
    assert isinstance(model, amped.TuckerTensor)
    assert model.ranks == (3, 2, 4)
    assert_orthonormal(model, 1e-12)
    assert (record["method"], record["rank"], record["norm"]) == (method, [3, 2, 4], 2)
    assert len(record["fits"]) == record["iterations"]
    assert (record["iterations"] == 1) == (method != "hooi")
    tensor = amped.read(tns)
    dense = np.zeros(tensor.shape)
    dense[tuple(tensor.columns)] = tensor.values
    assert 1 - np.linalg.norm(dense - model.full()) / np.linalg.norm(dense) == pytest.approx(record["fits"][-1])
    assert "model in out/model.npz" in result.out


def test_ranks_by_an_error(tns: Path) -> None:
    succeeded(run_amped("tucker", tns, "--error", "0.4", "--method", "sthosvd", *COMMON, "--output", "out"))
    record = record_in("out")
    assert record["fits"][-1] >= 0.6
    assert record["error"] == 0.4


def test_a_run_goes_on_from_its_checkpoint(tns: Path) -> None:
    flags = ["tucker", tns, "--rank", "3,2,4", "--tol", 0, *COMMON]
    succeeded(run_amped(*flags, "--max-iters", 6, "--output", "whole"))
    part = [*flags, "--output", "part", "--checkpoint", "kept"]
    succeeded(run_amped(*part, "--max-iters", 2))
    result = succeeded(run_amped(*part, "--max-iters", 6, "--resume"))
    assert "resumed after" in result.out
    np.testing.assert_allclose(record_in("part")["fits"], record_in("whole")["fits"], atol=1e-13)
    refused(run_amped("tucker", tns, "--rank", "3,2,3", *COMMON, "--checkpoint", "kept", "--resume"), "rank")


def test_a_non_negative_model(tns: Path) -> None:
    flags = ["tucker", tns, "--rank", "3,2,4", "--nonnegative", "--tol", 0, "--accelerate", "off", *COMMON]
    result = succeeded(run_amped(*flags, "--max-iters", 6, "--output", "whole", "--metrics", "m.jsonl"))
    record, model = record_in("whole"), amped.load("whole")
    assert (record["method"], record["nonnegative"], record["norm"]) == ("hals", [0, 1, 2], 1)
    assert min(model.core.min(), *(factor.min() for factor in model.factors)) >= 0
    assert "model in whole/model.npz" in result.out
    events = [json.loads(line) for line in Path("m.jsonl").read_text().splitlines()]
    assert [each["fit"] for each in events if each["event"] == "iteration"] == record["fits"]
    part = [*flags, "--output", "part", "--checkpoint", "kept"]
    succeeded(run_amped(*part, "--max-iters", 2))
    succeeded(run_amped(*part, "--max-iters", 6, "--resume"))
    np.testing.assert_allclose(record_in("part")["fits"], record["fits"], atol=1e-13)
    others = [flag for flag in part if flag != "--nonnegative"]
    refused(run_amped(*others, "--max-iters", 7, "--resume"), "method")


def test_uncompressed_and_fixed_modes(tns: Path) -> None:
    shape = amped.read(tns).shape
    flags = ["tucker", tns, "--max-iters", 2, "--tol", 0, *COMMON]
    for rank in ("3,all,4", "3,-,4"):
        succeeded(run_amped(*flags, "--rank", rank, "--output", "whole", "--force"))
        assert amped.load("whole").ranks == (3, shape[1], 4)
        assert record_in("whole")["uncompressed_modes"] == [1]
    kept = [*flags, "--rank", "3,all,4", "--output", "whole", "--checkpoint", "kept"]
    succeeded(run_amped(*kept, "--force"))
    succeeded(run_amped(*kept, "--max-iters", 3, "--resume", "--metrics", "m.jsonl"))
    write_factors(Path("start.npz"), shape, 3)
    fixed = [*flags, "--rank", "3,3,3", "--init", "start.npz", "--fixed-modes", "2", "--output", "fixed"]
    succeeded(run_amped(*fixed))
    with np.load("start.npz") as start:
        np.testing.assert_array_equal(amped.load("fixed").factors[2], start["factor_2"])
    assert record_in("fixed")["fixed_modes"] == [2]
    assert "TTMc output" in succeeded(run_amped("plan", tns, "--rank", "3,all,4", "--device", "cpu")).out
    assert "TTMc output" in succeeded(run_amped("plan", tns, "--rank", "3,2,4", "--nonnegative", "--device", "cpu")).out


def test_starts(tns: Path) -> None:
    flags = ["tucker", tns, "--rank", "3,3,3", "--max-iters", 1, *COMMON]
    write_factors(Path("start.npz"), amped.read(tns).shape, 3)
    for start in ("start.npz", "nvecs", "random"):
        succeeded(run_amped(*flags, "--init", start, "--output", start.partition(".")[0]))
    assert record_in("nvecs")["fits"][0] > record_in("random")["fits"][0]


def test_a_dense_tensor(folder: Path) -> None:
    np.save("x.npy", np.random.default_rng(0).random((6, 7, 8)))
    succeeded(run_amped("tucker", "x.npy", "--error", "0.2", "--method", "sthosvd", *COMMON, "--output", "out"))
    assert record_in("out")["fits"][-1] >= 0.8


def test_labels_are_kept(folder: Path) -> None:
    Path("gaps.tns").write_text("5 7 900\n".replace("900", "9 1.5") + "5 70 9 2\n50 7 90 3\n")
    succeeded(run_amped("tucker", "gaps.tns", "--compact", "--rank", "2,2,2", *COMMON, "--output", "out"))
    labels = amped.load("out").labels
    assert labels is not None
    assert [each.size for each in labels] == [2, 2, 2]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rank", "3,2"], "2 numbers for a tensor of 3 modes"),
        (["--rank", "30,2,2"], "mode 0 has length"),
        (["--rank", "5,2,2"], "at most 4 columns, the product"),
        (["--rank", "0,1,1"], "expected numbers from 1 to 1024"),
        (["--rank", "2,2,2", "--error", "0.1"], "not allowed with"),
        ([], "is required"),
        (["--error", "1"], "between 0 and 1"),
        (["--rank", "2,2,2", "--method", "hosvd", "--init", "nvecs"], "requires method 'hooi'"),
        (["--rank", "2,2,2", "--max-iters", "0"], "--max-iters 0"),
        (["--rank", "all,all,all"], "no mode is left to solve"),
        (["--rank", "2,x,2"], "not a whole number"),
        (["--rank", "2,2,2", "--fixed-modes", "0"], "the start is random"),
        (["--rank", "2,2,2", "--nonnegative", "--accelerate", "yes"], "expected on or off"),
        (["--error", "0.1", "--nonnegative"], "nonnegative requires rank"),
        (["--rank", "2,2,2", "--gather", "fp16"], "gather 'fp16'"),
        (["--rank", "2,2,2", "--kernel", "fibre"], "computes no Tucker decomposition: segmented do"),
    ],
)
def test_wrong_flags(tns: Path, flags: list[str], message: str) -> None:
    refused(run_amped("tucker", tns, *flags, "--device", "cpu"), message)


def test_a_tensor_without_nonzeros(folder: Path) -> None:
    Path("zero.tns").write_text("1 1 1 0\n2 2 2 0\n")
    refused(run_amped("tucker", "zero.tns", "--rank", "1,1,1", *COMMON))


def test_plans(tns: Path) -> None:
    result = succeeded(run_amped("plan", tns, "--rank", "3,2,4", "--ranks", 2, "--device", "cpu"))
    assert "TTMc output" in result.out
    refused(run_amped("plan", tns, "--rank", "3,2,40", "--device", "cpu"), "mode 2 has length")
    refused(run_amped("plan", tns, "--rank", "3,2,4", "--method", "als", "--device", "cpu"), "takes one --rank")
    np.save("x.npy", np.random.default_rng(0).random((6, 7, 8)))
    assert "TTMc output" in succeeded(run_amped("plan", "x.npy", "--rank", "2,2,2", "--device", "cpu")).out


def test_two_processes(folder: Path) -> None:
    path = tensor_path("uber393k_4d")
    flags = ["tucker", path, "--rank", "2,2,2,2", "--max-iters", 2, "--tol", 0, *COMMON]
    succeeded(on_ranks(2, *flags, "--output", "two"))
    succeeded(run_amped(*flags, "--output", "one"))
    np.testing.assert_allclose(record_in("two")["fits"], record_in("one")["fits"], atol=1e-12)


def test_cpd_from_a_compressed_start(tns: Path) -> None:
    flags = ["cpd", tns, "--rank", 3, *COMMON, "--init", "tucker"]
    succeeded(run_amped(*flags, "--output", "out", "--checkpoint", "kept", "--max-iters", 2))
    assert record_in("out")["init"] == "tucker"
    succeeded(run_amped(*flags, "--output", "out", "--checkpoint", "kept", "--max-iters", 3, "--resume"))
    refused(run_amped(*flags, "--nonnegative"), "negative entries")
    refused(run_amped(*flags, "--loss", "poisson"), "negative entries")


@pytest.mark.parametrize("flags", [["--rank", "2,2,2"], ["--error", "0.5"]])
@pytest.mark.parametrize("method", ["hooi", "hosvd", "sthosvd"])
def test_a_mode_of_two_billion_rows(folder: Path, method: str, flags: list[str]) -> None:
    """It is refused before spectra are looked for: matrices are as long."""
    (folder / "t.tns").write_text("2147483647 1 1 1.5\n1 2 3 2\n5 3 1 1\n")
    message = "mode 0 has length 2,147,483,647, of which 3 indices are used"
    refused(run_amped("tucker", "t.tns", "--method", method, *flags, *COMMON, "--device-memory", "8G"), message)


LONG_MODE, FEW_BYTES = "1000000 1 1 1.5\n1 2 3 2\n5 3 1 1\n", [*COMMON, "--threads", 16, "--device-memory", "70M"]
TUCKER, CPD = ["tucker", "--rank", "2,2,2"], ["cpd", "--rank", 2]


@pytest.mark.parametrize("verb", [TUCKER, CPD])
def test_a_long_mode_of_which_few_indices_are_used(folder: Path, verb: list[object]) -> None:
    """Methods that hold only rows of used indices have room."""
    (folder / "t.tns").write_text(LONG_MODE)
    succeeded(run_amped(*verb, "t.tns", *FEW_BYTES, "--output", "out"))
    factor = amped.load("out").factors[0]
    assert factor.shape == (1_000_000, 2)
    assert set(np.flatnonzero(factor.any(axis=1))) <= {0, 4, 999_999}


@pytest.mark.parametrize("verb", [[*TUCKER, "--method", "hosvd"], [*CPD, "--constraint", "0:smooth:0.1"]])
def test_a_long_mode_that_has_room_but_not_for_each_thread(folder: Path, verb: list[object]) -> None:
    """Methods that hold all rows are refused."""
    (folder / "t.tns").write_text(LONG_MODE)
    message = "mode 0 has length 1,000,000, of which 3 indices are used: device memory: "
    refused(run_amped(*verb, "t.tns", *FEW_BYTES), message, "--compact")
