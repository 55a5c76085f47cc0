"""The choice between compiled code and NumPy for a run on a CPU: small runs end sooner than the compiler would."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple, Protocol

from partitioner.host.worth import Compilable

from ..backend.cpu.device import CpuDevice
from ..backend.exchange import Machine
from ..backend.plain.device import PlainDevice
from ..options import Options

BACKEND = Path(__file__).parents[1] / "backend"
FOLDERS = BACKEND / "cpu", BACKEND / "normal_equations"
DENSE, ROWS, SYSTEMS, SAMPLES = "dense", "row problems", "row systems", "samples"
MATRICES = "matrices of rows"  # row systems with second derivatives
COMPILING = {
    "mttkrp": 5.0,
    DENSE: 2.5,
    "phi": 5.0,
    "ttmc": 4.0,
    "ttm": 1.0,
    "rows": 10.0,
    ROWS: 5.0,
    SYSTEMS: 7.0,
    MATRICES: 7.0,
    SAMPLES: 4.0,
}  # seconds, about
CODE = {name: Compilable(name, seconds, FOLDERS) for name, seconds in COMPILING.items()}
FEW = {"phi": 5}  # components whose time an update of one mode takes besides that of its components, by product
SWEPT, MULTIPLIED, UPDATES = 3e-9, 5e-10, {"phi": 2e-9, "rows": 8e-9, SYSTEMS: 2e-9, SAMPLES: 1e-8}
"""Seconds without compiled code, per nonzero and component: of an iteration; of an iteration of a dense tensor; of an
update of one mode, by product. `SWEPT` assumes `TREE_ROWS` to be unknown; hypersparse tensors take twenty times as
long."""
ADDED, TREE_ROWS = 2e-9, 1e-8
"""Seconds of an iteration without compiled code, per component: for each nonzero, and for each row of trees."""
TREES = ("mttkrp", "phi", SYSTEMS)  # products that are computed with trees
SUMMED, COMPILED = 5e-9, 1e-9
"""Seconds per iteration of row problems, nonzero and number in the equations of its row: the additional time without
compiled code, and the time of compiled code."""
SPARED = 3e-4  # seconds by which an iteration of the smallest tensor is shorter without compiled code
MOST = 1 << 23  # rows of trees times components: more would take more memory than compiled code
NARROW = 1 << 16  # indices of the longest mode: beyond, other code is compiled


class TensorSize(Protocol):
    """The size of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The mode lengths."""

    @property
    def nnz(self) -> int:
        """The number of nonzeros, or of elements of a dense tensor."""


class Work(NamedTuple):
    """Upper bounds of the work of a run."""

    columns: int  # of factor matrices
    repeats: int | None  # of each mode, at most; None if unknown
    product: str = "mttkrp"  # what is computed: MTTKRPs, Phi, rows of CP-APR, TTMc, SpTTM, row systems, ...
    elements: int = 0  # of the dense array that code for row problems would use if it is not compiled
    tree_rows: int | None = None  # see `backend.plain.splits.tree_rows`; None if unknown


def chosen(machine: Machine, source: TensorSize, options: Options, work: Work) -> Machine:
    """Return the machine of a run: with a device that compiles nothing if that is estimated to take less time.

    Code that earlier runs have compiled only has to be loaded. A run uses one path throughout: all ranks use compiled
    code if one of them would. Deterministic runs, runs that stream, and runs with options that name a kernel, a format
    or a memory limit always use it. Collective.
    """
    if (device := _compiled(machine)) is None:
        return machine
    # The nonzeros of a row are contiguous for rows of CP-APR; those of several ranks are on the row's rank.
    one_copy = work.product != "rows" and (
        machine.comm.size == 1 or work.product not in ("phi", ROWS, SYSTEMS, MATRICES)
    )
    repeated = work.repeats != 1  # a single product may take less time than counting
    if one_copy and repeated and work.product in TREES and _usual(options):
        work = work._replace(tree_rows=_tree_rows(source))
    plain = _seconds(source, work) if _suits(source, options, work) else math.inf
    compiles = _code_of(source, work).compiles(plain, _form(machine, source, options, work))
    if any(machine.comm.allgather(compiles)):  # caches of the ranks' hosts may differ
        return machine
    return machine._replace(device=PlainDevice(device, machine.comm.size, one_copy, work.tree_rows))


def uncompiled(machine: Machine) -> Machine:
    """Return the machine for work that never calls compiled code of a CPU."""
    if (device := _compiled(machine)) is None:
        return machine
    return machine._replace(device=PlainDevice(device, machine.comm.size))


def _compiled(machine: Machine) -> CpuDevice | None:
    """Return the device if it is a CPU for which code is compiled."""
    device = machine.device
    return device if isinstance(device, CpuDevice) and device.folder == "cpu" else None


def _usual(options: Options) -> bool:
    """Return whether no option requires compiled code."""
    usual = options.kernel == "auto" and options.gather == "full" and options.placement != "stream"
    return usual and not options.deterministic and not options.device_memory


def _suits(source: TensorSize, options: Options, work: Work) -> bool:
    """Return whether the run is possible without compiled code."""
    if not _usual(options):
        return False
    if _is_dense(source):
        return work.product not in (ROWS, MATRICES)
    numbers = source.nnz if work.tree_rows is None else work.tree_rows
    numbers *= _pairs(work.columns) if work.product in (ROWS, MATRICES) else work.columns
    return work.elements > 0 or numbers <= MOST


def _tree_rows(source: TensorSize) -> int | None:
    """Return the rows of the trees of a sparse tensor, if they can be counted. Collective."""
    count = getattr(source, "tree_rows", None)
    return None if count is None else count()


def _pairs(columns: int) -> int:
    """Return the elements of a symmetric matrix and a right-hand side."""
    return columns * (columns + 3) // 2


def _code_of(source: TensorSize, work: Work) -> Compilable:
    return CODE[DENSE if _is_dense(source) else work.product]


def _form(machine: Machine, source: TensorSize, options: Options, work: Work) -> str:
    """Return the variant of the compiled code."""
    if _is_dense(source):
        return options.precision
    stride = machine.device.stride(work.columns, options.dtype.itemsize)
    return f"{len(source.shape)} {stride} {options.precision} {max(source.shape) > NARROW}"


def _seconds(source: TensorSize, work: Work) -> float:
    """Return the estimated seconds that a run takes longer without compiled code."""
    if _is_dense(source) and work.product == "ttmc":
        return 0.0  # BLAS on both paths
    if work.repeats is None:
        return math.inf
    numbers = source.nnz * work.columns
    if _is_dense(source):
        each = MULTIPLIED * numbers
    else:
        order, of_rows = len(source.shape), TREE_ROWS * (work.tree_rows or 0) * work.columns
        updated = source.nnz * (work.columns + FEW.get(work.product, 0)) * order
        if work.product in UPDATES:
            each = UPDATES[work.product] * updated + of_rows * order
        else:
            each = SWEPT * numbers if work.tree_rows is None else ADDED * numbers + of_rows
        if work.product in (ROWS, MATRICES):
            time = MULTIPLIED * work.elements - COMPILED * source.nnz if work.elements else SUMMED * source.nnz
            each = time * _pairs(work.columns)
    return work.repeats * max(0.0, each - SPARED)


def _is_dense(source: TensorSize) -> bool:
    return getattr(source, "kind", None) == DENSE
