"""The options of a computation (device, precision, memory, threads), shared by the command line and Python."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, TypeVar, get_args

import numpy as np

from partitioner.array_types import FloatDType
from partitioner.flags import byte_count, flag, whole_number
from partitioner.shards.sorters import DEVICES, DeviceName
from partitioner.validate import whole

from .errors import InputError

PrecisionName = Literal["fp32", "fp64"]
PlacementName = Literal["auto", "resident", "stream"]
GatherName = Literal["full", "fp16", "bf16"]

DTYPES: dict[str, FloatDType] = {"fp32": np.dtype(np.float32), "fp64": np.dtype(np.float64)}
MOST = {"threads": 1 << 12, "device_memory": 1 << 62, "workspace": 1 << 62}
ALL_GATHER = "all-gather"
DISTRIBUTIONS = "auto", ALL_GATHER, "replicated"
GRID_NAME = re.compile(r"[1-9]\d{0,5}(x[1-9]\d{0,5})+")
PLACEMENTS, GATHERS = get_args(PlacementName), get_args(GatherName)

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Options:
    """How a computation is executed. Every choice gives the same result up to rounding.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"}
        "auto" uses a GPU if there is one.
    precision : {"fp32", "fp64"}
        Precision of values and factor matrices. Long sums and small matrices always use double precision.
    placement : {"auto", "resident", "stream"}
        Whether the nonzeros stay in device memory or are streamed from the host. "auto" keeps as many as fit.
    kernel : str
        The name of a kernel, or "auto", which times the device's kernels on the actual nonzeros. "permuted" stores one
        copy of the nonzeros instead of one per mode, and is slower.
    deterministic : bool
        Whether results are bitwise identical from run to run on the same number of ranks. Nothing is then chosen by
        timing.
    device_memory : int, optional
        Limit of device memory in bytes; by default the free memory.
    threads : int, optional
        Host threads per rank; by default a fair share of the cores.
    gather : {"full", "fp16", "bf16"}
        How a GPU reads factor matrices of precision fp32: in full precision, or from 16-bit copies. Each number then
        has a relative error of up to 5e-4 (fp16, range up to 65504) or 4e-3 (bf16). Sums keep their precision.
    grid : str
        How several ranks share a sparse tensor in CP-ALS. "all-gather": each computes some rows of every mode and gets
        all others. "2x1x4": the ranks form a grid, with this many ranges of indices in each mode, and exchange rows
        with those in the same range only. "replicated": each computes everything. "auto": what is estimated to be
        fastest. Other methods use "all-gather".
    workspace : int, optional
        Bytes of scratch memory for partial results of dense tensors. With less memory, elements are read more often.
        The default is 350 MB, or more if that fits and saves reading.

    Raises
    ------
    InputError
        If a value is invalid.

    Examples
    --------
    >>> Options(precision="fp64", threads=2).dtype
    dtype('float64')
    """

    device: DeviceName = flag("auto", "device to compute on (auto: a GPU if there is one)", choices=DEVICES)
    precision: PrecisionName = flag("fp32", "precision of values and factor matrices (fp32)", choices=tuple(DTYPES))
    placement: PlacementName = flag("auto", "where to store the nonzeros (auto)", choices=PLACEMENTS)
    kernel: str = flag("auto", "kernel to use (auto: the fastest; permuted: the least memory)", metavar="NAME")
    deterministic: bool = flag(False, "bitwise identical results on the same number of ranks")
    device_memory: int | None = flag(None, "limit of device memory, e.g. 16G", type=byte_count, metavar="BYTES")
    threads: int | None = flag(None, "host threads per rank (its share of the cores)", type=whole_number, metavar="T")
    gather: GatherName = flag(
        "full", "read factor rows as 16-bit numbers: faster, relative error 1e-3 (full)", choices=GATHERS
    )
    grid: str = flag(
        "auto",
        "ranks' shares of a sparse tensor in CP-ALS: auto, all-gather, replicated, 2x1x4, ...",
        metavar="Q1xQ2..",
    )
    workspace: int | None = flag(
        None,
        "memory for partial results of dense tensors (350M, or more if it saves a pass)",
        type=byte_count,
        metavar="BYTES",
    )

    def __post_init__(self) -> None:
        choices = {"device": DEVICES, "precision": tuple(DTYPES), "placement": PLACEMENTS, "gather": GATHERS}
        for name, known in choices.items():
            if not isinstance(getattr(self, name), str) or getattr(self, name) not in known:
                raise InputError(f"{name} {getattr(self, name)!r}: expected {' or '.join(known)}")
        object.__setattr__(self, "grid", grid_name(self.grid))
        if not isinstance(self.kernel, str):
            raise InputError(f"kernel {self.kernel!r}: expected a name")
        object.__setattr__(self, "deterministic", bool(self.deterministic))
        if self.gather != "full" and self.precision != "fp32":
            raise InputError(f"gather {self.gather!r} requires precision 'fp32'")
        for name in MOST:
            if (count := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole(name.replace("_", " "), count, 1, MOST[name]))

    @property
    def dtype(self) -> FloatDType:
        """The NumPy type of `precision`."""
        return DTYPES[self.precision]


class OptionNames(TypedDict, total=False):
    """The fields of `Options`, for type checkers and editors: keyword arguments of the Python functions."""

    device: DeviceName
    precision: PrecisionName
    placement: PlacementName
    kernel: str
    deterministic: bool
    device_memory: int | None
    threads: int | None
    gather: GatherName
    grid: str
    workspace: int | None


def grid_name(value: object) -> str:
    """Return a distribution in its usual form; raise `InputError` unless it is "auto", "all-gather" or a grid."""
    text = "x".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    if not isinstance(text, str) or not (text in DISTRIBUTIONS or GRID_NAME.fullmatch(text)):
        raise InputError(f"grid {value!r}: expected {', '.join(DISTRIBUTIONS)} or ranges per mode, such as 2x1x4")
    return text


def with_options(function: Function) -> Function:
    """Show the fields of `Options` in a function's signature instead of ``**options``, unless it has them already.

    ``help``, completion and the message about misspelt names then show them, from one definition.
    """
    own = inspect.signature(function)
    parameters = [p for p in own.parameters.values() if p.kind != p.VAR_KEYWORD]
    parameters += [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
        for f in fields(Options)
        if f.name not in own.parameters
    ]
    function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function
