"""``output="device"``: models whose matrices stay on the GPU equal those in host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_stub import OnDevice, StubColumns, StubDevice, StubOperation
from tensors import random_nonzeros

import amped
from amped.backend.cpu.device import CpuDevice
from amped.errors import InputError
from amped.methods import arranged
from amped.methods.tucker import TuckerMethod
from amped.runs.session import Session

COLUMNS, VALUES = random_nonzeros((9, 7, 6), 90, 1)
X = amped.SparseTensor(COLUMNS.T, np.ceil(np.abs(VALUES)), (9, 7, 6))
DENSE = np.random.default_rng(2).random((9, 7, 6))
GAPS = np.where(np.random.default_rng(3).random(DENSE.shape) < 0.2, np.nan, DENSE)

Run = Callable[..., Any]
RUNS: dict[str, Run] = {
    "als": lambda **how: amped.cp_als(X, 2, max_iters=3, **how),
    "nonnegative": lambda **how: amped.cp_als(X, 2, max_iters=3, nonnegative=True, **how),
    "constraints": lambda **how: amped.cp_als(X, 2, max_iters=3, constraints={0: "simplex"}, **how),
    "gaps": lambda **how: amped.cp_als(GAPS, 2, max_iters=3, mask="nan", **how),
    "holdout": lambda **how: amped.cp_als(GAPS, 2, max_iters=3, mask="nan", holdout=0.1, **how),
    "counts": lambda **how: amped.cp_apr(X, 2, max_iters=3, **how),
    "observed counts": lambda **how: amped.cp_apr(X, 2, max_iters=3, mask="stored", **how),
    "loss": lambda **how: amped.cp(X, 2, loss="gamma", mask="stored", max_iters=3, **how),
    "stochastic": lambda **how: amped.cp(X, 2, loss="poisson", method="adam", max_iters=1, steps=5, **how),
}
ON_A_CPU = ("observed counts",)  # a GPU does not compute them, and gets the result
CORES: dict[str, Run] = {
    "hooi": lambda **how: amped.tucker(DENSE, (2, 3, 2), max_iters=3, **how),
    "hosvd": lambda **how: amped.tucker(DENSE, (2, 3, 2), method="hosvd", **how),
}


def equal(found: Any, wanted: Any) -> None:
    for name in ("weights", "core"):
        if hasattr(wanted, name):
            np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-6, atol=1e-12)
    assert (found.fits, found.converged, found.series) == (wanted.fits, wanted.converged, wanted.series)
    for one, other in zip(found.host_factors, wanted.factors, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*RUNS, *CORES])
def test_on_a_cpu_they_are_numpy_arrays(name: str) -> None:
    run = (RUNS | CORES)[name]
    found = run(output="device", device="cpu")
    assert all(type(factor) is np.ndarray and factor.flags.c_contiguous for factor in found.factors)
    equal(found, run(device="cpu"))


@pytest.mark.parametrize("name", ["als", "nonnegative", "gaps", "counts", "stochastic"])
def test_matrices_that_a_device_arranges_stay_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    wanted = RUNS[name](device="cpu")
    monkeypatch.setattr(arranged, "COLUMNS", StubOperation())
    found = RUNS[name](output="device", device="cpu")
    assert all(isinstance(factor, OnDevice) for factor in found.factors)
    equal(found, wanted)


def test_work_on_matrices_is_complete_when_they_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller may use another stream."""
    events = list[str]()
    monkeypatch.setattr(arranged, "COLUMNS", StubOperation())
    arrange = StubColumns.arranged
    monkeypatch.setattr(StubColumns, "arranged", lambda *each: events.append("arrange") or arrange(*each))
    monkeypatch.setattr(CpuDevice, "synchronize", lambda device: events.append("synchronize"))
    RUNS["counts"](output="device", device="cpu")
    assert events[-4:] == ["arrange", "arrange", "arrange", "synchronize"]


def test_a_core_of_matrices_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for run in CORES.values():
        wanted = run(device="cpu")
        with monkeypatch.context() as patched:
            patched.setattr(TuckerMethod, "model", TuckerMethod._model_on_device)
            equal(run(device="cpu"), wanted)


@pytest.mark.parametrize("name", ["als", "holdout", "observed counts", "loss"])
def test_models_of_a_cpu_are_copied_to_the_gpu(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As where the GPU lacks the method, or the best iteration is kept in host memory."""
    wanted, begin = RUNS[name](device="cpu"), Session.begin

    def begun(session: Session, *arguments: Any) -> Any:
        run = begin(session, *arguments)
        run._device = StubDevice()  # type: ignore[assignment]
        return run

    monkeypatch.setattr(Session, "begin", begun)
    seen = list[Any]()
    found = RUNS[name](output="device", callback=lambda number, fit, view: seen.append(view.model()))
    for model in (found, seen[-1]):
        assert all(isinstance(factor, OnDevice) for factor in model.factors)
    assert all(factor.get().flags.c_contiguous for factor in found.factors)
    equal(found, wanted)
    assert not any(isinstance(factor, OnDevice) for factor in RUNS[name]().factors)


def test_without_memory_for_a_copy_they_are_in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise MemoryError

    wanted = RUNS["als"](device="cpu")
    monkeypatch.setattr(arranged, "COLUMNS", StubOperation())
    monkeypatch.setattr("device_stub.StubColumns.arranged", full)
    with pytest.warns(amped.InputWarning, match="output 'device': memory for a copy of the factor matrices is missing"):
        found = RUNS["als"](output="device", device="cpu")
    assert all(isinstance(factor, np.ndarray) for factor in found.factors)
    equal(found, wanted)


def test_the_callback_sees_the_same_kind_of_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arranged, "COLUMNS", StubOperation())
    seen = list[Any]()
    RUNS["als"](output="device", device="cpu", callback=lambda number, fit, view: seen.append(view.model()))
    assert isinstance(seen[0].factors[0], OnDevice)


@pytest.mark.parametrize("output", ["gpu", None, 1, ["device"]])
def test_other_values_are_refused(output: object) -> None:
    model = amped.KruskalTensor(np.ones(1), [np.ones((length, 1)) for length in DENSE.shape])
    calls: list[Run] = [*RUNS.values(), *CORES.values(), lambda **how: model.transform(DENSE, 0, **how)]
    for call in calls if output else calls[:-1]:  # to `transform` None is the default
        with pytest.raises(InputError, match=r"output is .*: expected 'host' or 'device'"):
            call(output=output)


def test_transform_on_a_cpu() -> None:
    for model in (RUNS["als"](device="cpu"), CORES["hooi"](device="cpu")):
        rows = model.transform(DENSE, 1, output="device", device="cpu")
        assert np.array_equal(rows, model.transform(DENSE, 1, device="cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*RUNS, *CORES])
def test_on_a_gpu(name: str) -> None:
    cupy = pytest.importorskip("cupy")
    run, device = (RUNS | CORES)[name], "auto" if name in ON_A_CPU else "cuda"
    found = run(output="device", device=device, deterministic=True)
    assert all(isinstance(factor, cupy.ndarray) and factor.flags.c_contiguous for factor in found.factors)
    equal(found, run(device=device, deterministic=True))
    assert all(type(factor) is np.ndarray for factor in run(device=device).factors)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_A_CPU)
def test_a_gpu_refuses_what_only_a_cpu_computes(name: str) -> None:
    pytest.importorskip("cupy")
    with pytest.raises(InputError, match="only supported on a CPU so far; use device 'cpu' or 'auto'"):
        RUNS[name](output="device", device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["als", "holdout", "observed counts"])
def test_the_callback_sees_arrays_of_a_gpu(name: str) -> None:
    cupy, seen = pytest.importorskip("cupy"), list[Any]()
    RUNS[name](output="device", callback=lambda number, fit, view: seen.append(view.model()))
    assert all(isinstance(factor, cupy.ndarray) for model in seen for factor in model.factors)


@pytest.mark.gpu
def test_a_pipeline_without_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large matrices, so that a copy to the host would take the device's path for large arrays."""
    cupy = pytest.importorskip("cupy")
    from amped.backend.cuda.device import CudaDevice

    elements = cupy.random.default_rng(1).random((600_000, 5, 4), dtype=cupy.float32)

    def refuse(*arguments: object) -> None:
        raise AssertionError("a large array was copied to the host")

    monkeypatch.setattr(CudaDevice, "fetch", refuse)
    model = amped.cp_als(elements, 8, max_iters=2, output="device", device="cuda")
    rows = cupy.linalg.norm(model.factors[0], axis=0)
    np.testing.assert_allclose(rows.get(), np.ones(8), rtol=1e-4)
    scores = model.transform(elements[:10], 0, output="device", device="cuda")
    assert isinstance(scores, cupy.ndarray)


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_arrays_of_other_libraries(library: str) -> None:
    """They are views of the same memory in both directions."""
    cupy, other = pytest.importorskip("cupy"), pytest.importorskip(library)
    elements: Any
    if library == "torch":
        stream = other.cuda.Stream()
        with other.cuda.stream(stream):  # the array is complete only when this stream is done
            elements = other.as_tensor(DENSE, device="cuda").requires_grad_()
    else:
        elements = other.device_put(DENSE.astype(np.float32), other.devices("gpu")[0])
    tensor = amped.DenseTensor(elements)
    assert tensor.on_gpu is not None
    np.testing.assert_allclose(tensor.array(), DENSE, rtol=1e-6)
    model = amped.cp_als(elements, 2, max_iters=2, output="device", device="cuda")
    again = (other if library == "torch" else other.dlpack).from_dlpack(model.factors[0])
    assert again.shape == (9, 2)
    back = cupy.from_dlpack(again)
    assert back.data.ptr == model.factors[0].data.ptr, "no copy"
