"""How a run computes: one object that travels from the command line, or a Python call, to whoever needs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, TypeVar, get_args

import numpy as np

from partitioner.flags import byte_count, flag, whole_number
from partitioner.shards.sorters import DEVICES, DeviceName
from partitioner.validate import whole

from .errors import InputError

PrecisionName = Literal["fp32", "fp64"]
PlacementName = Literal["auto", "resident", "stream"]
GatherName = Literal["full", "fp16", "bf16"]

DTYPES: dict[str, np.dtype[Any]] = {"fp32": np.dtype(np.float32), "fp64": np.dtype(np.float64)}
MOST = {"threads": 1 << 12, "device_memory": 1 << 62, "workspace": 1 << 62}
PLACEMENTS, GATHERS = get_args(PlacementName), get_args(GatherName)

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Options:
    """How a run computes. Every choice gives the same result up to rounding.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"}
        "auto" takes a GPU if there is one.
    precision : {"fp32", "fp64"}
        Of values and factor matrices. Long sums and small matrices are in double precision always.
    placement : {"auto", "resident", "stream"}
        Whether nonzeros stay in device memory, or are streamed from the host; "auto" keeps what fits.
    kernel : str
        "auto" times the device's kernels on the real nonzeros. Otherwise the name of one. "permuted" keeps one copy of
        the nonzeros, not one for each mode, and is slower.
    deterministic : bool
        Bitwise equal results from run to run on the same ranks: nothing is chosen by timing.
    device_memory : int, optional
        Bytes of device memory to use; by default what is free.
    threads : int, optional
        Host threads of a rank; by default its fair share of the cores.
    gather : {"full", "fp16", "bf16"}
        How a GPU reads factor matrices of precision fp32: as they are, or from copies in 16 bits. Each number then has
        a relative error of up to 5e-4 (fp16, to 65504) or 4e-3 (bf16). Sums are as precise as ever.
    workspace : int, optional
        Bytes of scratch memory for partial results of dense tensors. With less, elements are read more often. By
        default 350 MB; more, if there is room, where elements are read less often then.

    Raises
    ------
    InputError
        If a choice is none of those above.
    """

    device: DeviceName = flag("auto", "(auto: a GPU if there is one)", choices=DEVICES)
    precision: PrecisionName = flag("fp32", "(fp32)", choices=tuple(DTYPES))
    placement: PlacementName = flag("auto", "of nonzeros (auto)", choices=PLACEMENTS)
    kernel: str = flag("auto", "(auto: the fastest; permuted: the smallest)", metavar="NAME")
    deterministic: bool = flag(False, "bitwise equal results on equal ranks")
    device_memory: int | None = flag(None, "use no more of the device, e.g. 16G", type=byte_count, metavar="BYTES")
    threads: int | None = flag(None, "host threads of a rank (its share of the cores)", type=whole_number, metavar="T")
    gather: GatherName = flag("full", "16-bit factor rows: faster, 1e-3 (full)", choices=GATHERS)
    workspace: int | None = flag(
        None, "partial results of dense tensors (350M, or what saves a pass)", type=byte_count, metavar="BYTES"
    )

    def __post_init__(self) -> None:
        choices = {"device": DEVICES, "precision": tuple(DTYPES), "placement": PLACEMENTS, "gather": GATHERS}
        for name, known in choices.items():
            if not isinstance(getattr(self, name), str) or getattr(self, name) not in known:
                raise InputError(f"{name} {getattr(self, name)!r}: expected {' or '.join(known)}")
        if not isinstance(self.kernel, str):
            raise InputError(f"kernel {self.kernel!r}: expected a name")
        object.__setattr__(self, "deterministic", bool(self.deterministic))
        if self.gather != "full" and self.precision != "fp32":
            raise InputError(f"gather {self.gather!r} is for precision 'fp32'")
        for name in MOST:
            if (count := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole(name.replace("_", " "), count, 1, MOST[name]))

    @property
    def dtype(self) -> np.dtype[Any]:
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
    workspace: int | None


def with_options(function: Function) -> Function:
    """Show the fields of `Options` in a function's signature instead of ``**options``.

    So ``help``, a REPL's completion and the message about a misspelt name know them, from one definition.
    """
    own = inspect.signature(function)
    shown = [p for p in own.parameters.values() if p.kind != p.VAR_KEYWORD]
    shown += [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
        for f in fields(Options)
    ]
    function.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
    return function
