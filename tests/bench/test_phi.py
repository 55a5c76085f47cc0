"""The studies of Phi, all very small: what they compute, what they write, and the CUDA code that they compile."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forms import exhaustive
from oracle import BACKENDS, coo_mttkrp, coo_phi

from amped.backend.cuda.layout import Limits, kernel_names, make_layout
from amped.backend.cuda.source import compile_options
from amped.backend.device import Device
from amped.backend.ops.mttkrp import Share
from amped.errors import InputError
from bench import coordinates, phi_code, phi_intensity, phi_others, phi_policy, phi_pressure, stored
from bench.__main__ import main
from bench.phi_problem import FLOOR, Nonzeros, kernels_of, modes_of, source_of
from bench.synthetic import recipe
from partitioner.tensors.value_range import ValueRange

SMALL = "--device cpu --shapes uber --nonzeros 3000 --rank 5 --precision fp64 --repeats 2 --output".split()
H200 = Limits(132, 232448, 60 << 20)
every_device = pytest.mark.parametrize("backend", BACKENDS[:1] + BACKENDS[-1:], indirect=True)


def measured(part: str, folder: Path, *more: str) -> dict[str, Any]:
    main([f"phi-{part}", *SMALL, str(folder), *more])
    found: dict[str, Any] = json.loads((folder / f"phi-{part}-cpu.json").read_text())
    assert {"date", "machine", "versions"} <= set(found)
    return found


def problems(device: Device, shape: str = "uber", nonzeros: int = 3000, rank: int = 7) -> list[Nonzeros]:
    source = source_of(Namespace(nonzeros=nonzeros), shape, device)
    return list(modes_of(source, device, rank, "fp64"))


def expected(nonzeros: Nonzeros) -> tuple[np.ndarray, np.ndarray]:
    """Return Phi and MTTKRP in double precision."""
    to_host = nonzeros.device.to_host
    *columns, values = map(to_host, nonzeros.columns)
    factors = [to_host(f)[:, : nonzeros.rank] for f in (nonzeros.own, *nonzeros.factors)]
    return coo_phi(columns, values, factors, 0, FLOOR), coo_mttkrp(columns, values, factors, 0)


def test_intensity(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(phi_intensity.MATRIX, "cpu", 64)
    monkeypatch.setattr(phi_intensity.ceilings, "gather", lambda device: {"1": 10.0, "100": 5.0})
    monkeypatch.setattr(phi_intensity.ceilings, "copied", lambda device: 20.0)
    found = measured("intensity", folder)
    assert found["roofs"]["copy"] == 20
    assert found["roofs"]["flops"].keys() == {"fp32", "fp64"}
    assert [case["mode"] for case in found["cases"]] == [0, 1, 2, 3]
    for case, kind, model in product(found["cases"], ("phi", "mttkrp"), ("paper", "amped")):
        facts = case[kind][model]
        assert facts["gigaflops_a_second"] == pytest.approx(facts["flops"] / case["seconds"][kind]["median"] / 1e9)
    assert found["cases"][0]["phi"]["paper"]["flops"] == 3000 * (4 * 5 + 2), "equation 3 of the paper"


def test_models_of_intensity() -> None:
    """Flops counted by hand, of 5 nonzeros of 3 modes in 2 rows with 2 columns, packed in 50 bytes."""
    found = phi_intensity.counts(5, 3, 2, 8, 50, 2)
    # Two columns: rows 2, times b 2, added up 2 (the first to 0), maximum and division 2, quotients 2, added 2.
    assert found["phi"]["amped"] == (5 * 12, 50 + 5 * 2 * 2 * 8 + 8 * 2 * 2 + 2 * 2 * 8)
    assert found["mttkrp"]["amped"] == (5 * 6, 50 + 5 * 2 * 2 * 8 + 8 * 2 * 2)
    assert found["phi"]["paper"] == (5 * 10, 5 * 12 * 8)
    assert found["mttkrp"]["paper"] == (5 * 6, 5 * (9 * 8 + 12))


@pytest.mark.exhaustive
def test_pressure(folder: Path) -> None:
    found = measured("pressure", folder)
    wanted = {"MTTKRP", "row 0", "consecutive rows", "few rows", "few rows, all modes"}
    assert found["gains"]["seconds"].keys() == wanted
    assert wanted <= found["resources"].keys()
    for name, gain in found["gains"]["seconds"].items():
        each = [c["seconds"]["Phi"]["median"] / c["seconds"][name]["median"] for c in found["cases"]]
        assert (gain["least"], gain["most"]) == pytest.approx((min(each), max(each)), rel=1e-6)


@every_device
def test_indices_of_variants(backend: Device) -> None:
    """Each variant has the nonzeros that it is named for, in order of output rows, and kernels compute its Phi."""
    for nonzeros in problems(backend):
        for name, columns in phi_pressure.indices(nonzeros).items():
            other = nonzeros.changed(columns)
            rows, *inputs, values = map(backend.to_host, other.columns)
            assert np.all(np.diff(rows) >= 0)
            assert np.sort(values).tolist() == np.sort(backend.to_host(nonzeros.columns[-1])).tolist()
            for column, length in zip(inputs, nonzeros.share.lengths, strict=True):
                most = {"row 0": 1, "consecutive rows": length}.get(name, min(length, phi_pressure.FEW))
                assert 0 <= column.min() <= column.max() < most
            if name == "few rows, all modes":
                assert rows.max() < phi_pressure.FEW
            check(other)


def check(nonzeros: Nonzeros) -> None:
    want = dict(zip(("phi", "mttkrp"), expected(nonzeros), strict=True))
    for kernel in kernels_of(nonzeros.device, nonzeros.share):
        out = nonzeros.output()
        for name, action in nonzeros.actions(kernel, out=out).items():
            out[:] = np.nan
            action()
            nonzeros.device.synchronize()
            got = nonzeros.device.to_host(out)[:, : nonzeros.rank]
            np.testing.assert_allclose(got, want[name], rtol=1e-10, atol=1e-12)


@every_device
def test_plain_kernels(backend: Device) -> None:
    """They compute what amped's do, unless they store."""
    for nonzeros in problems(backend):
        want = dict(zip(("phi", "mttkrp"), expected(nonzeros), strict=True))
        out = nonzeros.output()
        for name, action in coordinates.actions(nonzeros, out=out).items():
            out[:] = np.nan
            action()
            backend.synchronize()
            np.testing.assert_allclose(backend.to_host(out)[:, :7], want[name], rtol=1e-10)
        if not backend.on_host:
            coordinates.actions(nonzeros, stores=True, out=out)["phi"]()
            assert not np.allclose(backend.to_host(out)[:, :7], want["phi"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("most", [1, exhaustive(None)])
def test_policy(folder: Path, monkeypatch: pytest.MonkeyPatch, most: int | None) -> None:
    """Of some choices: each number of nonzeros ahead has kernels compiled."""
    monkeypatch.setattr(phi_policy, "AHEAD", phi_policy.AHEAD[:most])
    found = measured("policy", folder)
    for case in found["cases"]:
        assert case["gains"][case["default"]] == 1
        assert case["best"] in case["gains"]
        assert case["seconds"].keys() == {"default", "best"}


def test_the_name_of_a_policy() -> None:
    assert phi_policy.Policy("fibre", (("BATCH", 2), ("BLOCKS", 3))).name == "fibre, batch 2, blocks 3"


@pytest.mark.exhaustive
def test_pasta(folder: Path) -> None:
    found = measured("pasta", folder)
    assert [set(case["seconds"]) for case in found["cases"]] == [
        {"amped: mttkrp", "amped: phi", "coordinates: mttkrp"}
    ] * 4


ALTO = """#!{python}
import sys
if "APR" in sys.argv:
    print("  Total inner iterations = 40\\nCP-APR main iteration time  = 0.500000 (s)")
    print("CP-APR Phi accumulated time = 0.400000 (s)")
else:
    print("ALTO runtime:   2.000000")
lines = open(sys.argv[sys.argv.index("-i") + 1]).read().splitlines()
assert all(len(line.split()) == 5 and int(line.split()[0]) > 0 for line in lines), lines[:3]
sys.exit(3)
"""


@pytest.mark.exhaustive
def test_cp_apr_beside_others(folder: Path) -> None:
    program = folder / "cpd64"
    program.write_text(ALTO.format(python=sys.executable))
    program.chmod(0o755)
    pyttb = bool(find_spec("pyttb"))
    more = ["--precision", "fp32", "fp64", "--alto", str(folder), *(["--pyttb", "1"] if pyttb else [])]
    single, double = measured("apr", folder, *more)["cases"]
    assert [case["precision"] for case in (single, double)] == ["fp32", "fp64"]
    for case in (single, double):
        times = {name: s["median"] for name, s in case["seconds"].items()}
        assert times["amped: update of all modes"] > 0
        assert 0 < times["amped: Phi of mode 3"] < times["amped: Phi sweep"]
        assert all(s["runs"] == 2 for name, s in case["seconds"].items())
    alto = {name: s["median"] for name, s in single["seconds"].items() if "alto" in name}
    assert alto == {"alto: update of all modes": 0.05, "alto: Phi sweep": 0.04, "alto: MTTKRP sweep": 0.1}
    assert single["ratios"]["update over alto's"]["median"] == pytest.approx(
        single["seconds"]["amped: update of all modes"]["median"] / 0.05, rel=1e-6
    )
    assert ("pyttb: update of all modes" in double["seconds"]) == pyttb


def test_programs_of_alto_that_are_not_there(folder: Path) -> None:
    tensor = stored.tensor(recipe("uber", 100, integers=True))
    with pytest.raises(InputError, match="no such program"):
        phi_others.alto(folder, tensor, 4, 1, folder, 10)


def _sources() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return code and options by name: plain kernels, and Phi without a resource in every layout."""
    found = {}
    some = [(2, "f4", 32, False), (3, "f8", 16, True), (4, "f4", 40, True), (1, "f8", 2, False)]
    for inputs, dtype, columns, stores in some:
        macros = coordinates.macros(inputs, np.dtype(dtype), columns, stores)
        found[f"coordinates {inputs} {dtype} {columns}"] = coordinates.text(), compile_options(macros)
    for dtype, name in product(("f4", "f8"), kernel_names(3)):
        kind = np.dtype(dtype)
        share = Share((9184, 28818), slice(0, 12092), 76_879_419, 32, kind, ValueRange(1, 200, 1))
        layout = make_layout(name, share, H200)
        edits = [phi_code.NO_DIVISION, phi_code.NO_ATOMICS]
        source = phi_code.compiled(layout, {"BATCH": 1}, edits)
        found[f"phi {dtype} {name}"] = source.text, source.options
    return found


SOURCES = _sources()


@pytest.mark.parametrize("name", SOURCES)
def test_every_kernel_compiles(name: str) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed (extra: nvrtc)")
    text, macros = SOURCES[name]
    options = [option.encode() for option in (*macros, "-arch=sm_90")]
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"phi", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = bytes(2 + nvrtc.nvrtcGetProgramLogSize(program)[1])
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()


def test_code_that_has_changed_is_not_edited() -> None:
    layout = make_layout("segmented", Share((9, 8), slice(0, 7), 60, 4, np.dtype("f4"), ValueRange(0, 1, 0)), H200)
    with pytest.raises(ValueError, match="the kernel has changed: 0 times"):
        phi_code.compiled(layout, {}, [("nothing like it", "")])
