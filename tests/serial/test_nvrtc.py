"""Every CUDA kernel compiles for every order, type and architecture without spills. No GPU needed."""

from __future__ import annotations

import re

import numpy as np
import pytest

from amped.backend.cuda.source import compile_options, text

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed (extra: test)")

KERNELS = {"segmented", "combine"}
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def compiled(order: int, dtype: type, architecture: str) -> tuple[int, str]:
    """Return the size of the machine code and what the compiler says of it."""

    def checked(result: tuple[object, ...]) -> object:
        assert result[0] == nvrtc.nvrtcResult.NVRTC_SUCCESS, result[0]
        return result[1] if len(result) > 1 else None

    options = [*compile_options(order, dtype), f"-arch={architecture}", "--ptxas-options=-v"]
    program = checked(nvrtc.nvrtcCreateProgram(text().encode(), b"kernels.cu", 0, [], []))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))  # type: ignore[operator]
    checked(nvrtc.nvrtcGetProgramLog(program, log))
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()
    size = checked(nvrtc.nvrtcGetCUBINSize(program))
    checked(nvrtc.nvrtcDestroyProgram(program))
    return int(size), log.decode()  # type: ignore[call-overload]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", range(2, 9))
def test_kernels_compile_without_spills(order: int, dtype: type, architecture: str) -> None:
    size, log = compiled(order, dtype, architecture)
    assert size > 0
    assert set(re.findall(r"Compiling entry function '(\w+)'", log)) == KERNELS
    spills = SPILLS.findall(log)
    assert len(spills) >= len(KERNELS)
    assert all(numbers == ("0", "0", "0") for numbers in spills), log
    assert "warning" not in log


def test_a_spill_would_be_seen() -> None:
    assert SPILLS.findall("    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads") == [("16", "8", "12")]


def test_an_error_would_be_seen() -> None:
    with pytest.raises(AssertionError, match="error"):
        compiled(1, np.float32, "sm_90")
