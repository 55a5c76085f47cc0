"""Assembly of runs: from options to the ranks, device, exchange, tensor and operator."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from partitioner.array_types import FloatDType, Floats
from partitioner.host.jit import load_compiler
from partitioner.readers import PLAIN, ReadOptions, is_dense, read_sparse, with_zeros
from partitioner.shards.sorters import wake
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor

from ..backend.blas import callers_blas
from ..backend.choose import choose
from ..backend.device import Device
from ..backend.exchange import Machine, connect
from ..backend.ops.dense import DENSE
from ..backend.ops.equations import EquationsProvider, batch_equations
from ..backend.ops.phi import interleaved
from ..backend.ops.solve import SolverBytes
from ..backend.ops.ttm import TTM
from ..errors import InputError
from ..methods import als, apr, constrained_als
from ..methods.arranged import draw, draws_there
from ..methods.constrained_als import ConstrainedAls
from ..methods.constraints import NONE, Constraints
from ..methods.driver import Method
from ..methods.extrapolation import suits
from ..methods.initial import Init, initial_factors, start_bytes
from ..methods.multi_run import apr as apr_runs
from ..methods.multi_run.als import AlsRuns
from ..methods.multi_run.apr import AprRuns
from ..methods.multi_run.equations import BatchedAlsRuns, places_of
from ..methods.poisson import Poisson
from ..operators.base import Operator, Placed
from ..operators.columns import Columns
from ..operators.dense.direct import DirectDense
from ..operators.kept_rows import Compaction
from ..operators.placement import MAX_RANK, Setting, Solving, check_options, nothing
from ..operators.products import Mttkrp, Phi, SeveralPhi
from ..operators.sources.compact import used_indices
from ..operators.sources.dense import DenseSource, of_array, open_dense_source
from ..operators.sources.distributed import Progress
from ..operators.sources.protocols import DescribedSource, DeviceMemory, SparseSource
from ..operators.sources.sparse import open_source
from ..operators.sparse.tuning import Budget
from ..options import Options
from ..parallel.mpi import Comm, on_root, together
from ..parallel.progress import CURRENT, LOADING_SECONDS
from ..parallel.watchdog import Watchdog
from .compiling import Work, chosen
from .distributing import check_gathers, placed
from .kinds import SPARSE, TENSOR_KINDS, kind_of

Tensor = SparseTensor | DenseTensor | Floats | str | os.PathLike[str] | None


def bring_up(options: Options, comm: Comm) -> Machine:
    """Connect the device and the exchange between ranks; check the options against the device. Collective."""
    wake(options.device, comm.local_rank)
    device = together(comm, lambda: choose(options.device, comm, options.threads))
    together(comm, lambda: _check_options(options, device))
    return connect(device, comm)


def _check_options(options: Options, device: Device) -> None:
    """Raise `InputError` if the device supports the options for no kind of tensor."""
    if options.kernel == "auto":
        check_options(options, device)
        return
    dense, products = [k.name for k in DENSE.providers(device)], [k.name for k in TTM.providers(device)]
    if options.kernel not in (*dense, *products):
        others = f"; of dense tensors {', '.join(dense)}; of products {', '.join(products)}"
        check_options(options, device, others)


def on_host(machine: Machine, options: Options, what: str) -> Machine:
    """Return the CPU as machine of a run whose device lacks a method; raise `InputError` if a GPU is required.

    `what` the device lacks is named in the error. Collective.
    """
    if options.device == "cuda":
        raise InputError(f"{what}: only supported on a CPU so far; use device 'cpu' or 'auto'")
    if machine.device.folder == "cpu":
        return machine
    return connect(choose("cpu", machine.comm, options.threads), machine.comm)


def open_tensor(
    tensor: Tensor,
    machine: Machine,
    options: Options,
    progress: Progress | None = None,
    verify: bool = True,
    form: ReadOptions = PLAIN,
) -> DescribedSource:
    """Return the source of a tensor's elements: rank 0's memory, or a file or store. Collective."""
    comm, memory = machine.comm, device_memory(machine, options)
    path, kind = comm.bcast(on_root(comm, lambda: _path_or_kind(tensor))) or (None, "sparse")
    if path is not None:
        return open_path(path, comm, progress, verify, form, memory)
    return TENSOR_KINDS[kind].of_memory(tensor if comm.rank == 0 else None, comm, memory)


def _path_or_kind(tensor: Tensor) -> tuple[str | None, str]:
    """Return a path and "", or None and the kind of a tensor in memory."""
    kind = "sparse" if tensor is None else getattr(tensor, "kind", None)
    return (os.fspath(tensor), "") if kind is None else (None, kind)  # type: ignore[arg-type]


def open_path(
    path: str | os.PathLike[str],
    comm: Comm,
    progress: Progress | None = None,
    verify: bool = True,
    form: ReadOptions = PLAIN,
    memory: DeviceMemory | None = None,
) -> DescribedSource:
    """Open the tensor of any kind in a file or store. Collective."""
    if comm.bcast(comm.rank == 0 and is_dense(path)):
        return open_dense_source(path, comm, form)
    if not form.dense:
        return open_source(path, comm, progress, verify, form, memory)

    def read_dense() -> DenseTensor:
        return with_zeros(read_sparse(path, form, progress=progress), path)

    return of_array(on_root(comm, read_dense), comm, path)


def device_memory(machine: Machine, options: Options) -> DeviceMemory:
    """Return the device memory that a tensor may use while it is loaded."""
    if options.placement == "stream":  # shards are built on the host
        return DeviceMemory(machine, 0)
    return DeviceMemory(machine, options.device_memory or machine.device.memory(machine.comm.local_size))


def setting_for(
    source: DescribedSource,
    rank: int | Sequence[int],
    machine: Machine,
    options: Options,
    solving: Solving = nothing,
    poisson: Poisson | None = None,
) -> Setting:
    """Return the setting that the plans of all ranks share, for factor matrices of `rank` columns.

    The memory limit is that of the options, or else the free device memory. With `poisson` the product is Phi.
    """
    if machine.device.code_bytes:
        load_compiler()  # before memory is measured
    memory = options.device_memory or machine.device.memory(machine.comm.local_size)
    ranks = (rank,) * len(source.shape) if isinstance(rank, int) else tuple(rank)
    pipelined = solving is not nothing and machine.device.queues and poisson is None
    overlaps = machine.exchange.overlaps
    return Setting(
        ranks,
        options,
        machine.device,
        source.planned_values,
        memory,
        overlaps,
        solving,
        pipelined,
        Phi() if poisson else Mttkrp(),
        (poisson.rows,) if poisson and poisson.rows else (),
    )


def solving_bytes(machine: Machine, options: Options, order: int) -> Solving:
    """Return the device memory that CP-ALS of a tensor of this order needs in addition to the MTTKRP."""
    return als.solving_bytes(machine, options.dtype, order)


def place(
    source: DescribedSource,
    rank: int,
    machine: Machine,
    options: Options,
    solving: Solving = nothing,
    budget: Budget | None = None,
    late: bool = False,
) -> Operator:
    """Place a tensor for factor matrices of `rank` columns, with kernels chosen within a budget. Collective.

    `late`: see `Setting`.
    """
    setting = setting_for(source, rank, machine, options, solving)
    memory = device_memory(machine, options)
    return placed(source, machine, setting._replace(late=late), memory, budget, iterates=False)


def decomposition(
    source: DescribedSource,
    rank: int,
    machine: Machine,
    options: Options,
    budget: Budget | None = None,
    constraints: Constraints = NONE,
    init: Init | None = None,
    accelerate: bool = False,
) -> als.CpAls | ConstrainedAls:
    """Place a tensor and return its CP-ALS; `begin` sets the start. `init` only reserves memory. Collective.

    `accelerate`: see `CpAls`.
    """
    if constraints.terms:
        constraints.check_sizes(source.shape, rank)
        check_gathers(options, "constraints")
    machine = chosen(machine, source, options, Work(rank, budget.likely if budget else None))

    def setting() -> Setting:
        solving = als_bytes(source, rank, machine, options, constraints)
        memory = start_bytes(source, rank, machine.comm, init)
        result = setting_for(source, rank, machine, options, solving)._replace(late=not constraints, root_bytes=memory)
        return result._replace(compaction=als_compaction(constraints))

    operator: Operator
    if isinstance(source, DenseSource) and DirectDense.suits(source, machine, rank):
        operator = DirectDense(source, rank, machine, options, setting)
    else:
        operator = placed(source, machine, setting(), device_memory(machine, options), budget)
    if constraints.terms:
        method = ConstrainedAls(operator, constraints)
        method.used = used_indices(source, als_compaction(constraints))
        return method
    accelerate = accelerate and suits(operator.machine.device, operator.shape, rank)
    return als.CpAls(operator, constraints, accelerate)


def als_bytes(
    source: DescribedSource, rank: int, machine: Machine, options: Options, constraints: Constraints
) -> Solving:
    """Return the memory that CP-ALS needs in addition to the MTTKRP."""
    if constraints.terms:
        return constrained_als.solving_bytes(source.shape, rank, constraints, machine.device)
    return als.solving_bytes(machine, options.dtype, len(source.shape), constraints)


def als_compaction(constraints: Constraints) -> Compaction:
    """Return how CP-ALS compacts hypersparse modes."""
    return constrained_als.compaction(constraints) if constraints.terms else als.compaction(constraints)


Key = TypeVar("Key")


def multi_run_als(
    source: DescribedSource,
    ranks: Mapping[Key, int],
    columns: int,
    machine: Machine,
    options: Options,
    budget: Budget,
    constraints: Constraints,
    seed: Callable[[Key], int],
) -> AlsRuns[Key]:
    """Place a tensor for several runs of CP-ALS at once, which share products of up to `columns` columns. Collective.

    `ranks` has the number of components of each run, by key; `seed` returns the seed of a run.
    """
    machine = chosen(machine, source, options, Work(columns, budget.repeats))
    most, order = max(ranks.values()), len(source.shape)
    provider = _batches(machine.device, most)
    prepare_runs(machine.device, most, options.dtype, bool(constraints.nonnegative))
    single = als.solving_bytes(machine, options.dtype, order, constraints)

    def solving(rows: int, width: int) -> SolverBytes:
        permanent, temporary = (-(-width // most) * size for size in single(rows, most))
        if provider:
            permanent += provider.bytes(order, most, machine.comm.size, places_of(len(ranks), width), rows)
        return SolverBytes(permanent, temporary)

    setting = setting_for(source, columns, machine, options, solving)._replace(compaction=als.compaction(constraints))

    def start(place: Columns, key: Key) -> als.CpAls:
        method = als.CpAls(place, constraints)
        begin(method, source, seed(key))
        return method

    operator = kind_of(source).place(source, machine, setting, budget)
    if provider:
        return BatchedAlsRuns(operator, start, provider, most, len(ranks), constraints)
    return AlsRuns(operator, start)


def prepare_runs(device: Device, most: int, dtype: FloatDType, nonnegative: bool) -> None:
    """Start compiling the code that several runs of at most `most` components need in addition to MTTKRPs."""
    if provider := _batches(device, most):
        provider.prepare(most, dtype, several=True, nonnegative=nonnegative)


def _batches(device: Device, most: int) -> EquationsProvider | None:
    """Return what solves several runs of at most `most` components by one launch; None if the device does not."""
    provider = batch_equations(device)
    return provider if provider and most <= provider.batch_columns else None


def max_shared_rank(device: Device) -> int:
    """Return the largest number of components for which runs gain from shared products."""
    provider = batch_equations(device)
    return min(device.together, provider.batch_columns) if provider else device.together


def multi_run_apr(
    source: DescribedSource,
    ranks: Mapping[Key, int],
    machine: Machine,
    options: Options,
    poisson: Poisson,
    seed: Callable[[Key], int],
) -> AprRuns[Key]:
    """Place a tensor of counts for several runs of CP-APR at once; see `multi_run_als` and `counts`. Collective."""
    source = as_counts(source, machine, options)
    kernel = interleaved(machine.device)
    assert kernel is not None
    groups = Counter(kernel.models(rank, options.dtype) for rank in ranks.values())
    width = kernel.width(options.dtype)
    # The number of groups is odd; otherwise the rows of a group would map to only a few sets of a cache.
    columns = min(sum(-(-runs // models) for models, runs in groups.items()) | 1, MAX_RANK // width - 1) * width
    solving = apr_runs.solving_bytes(machine, poisson, len(source.shape))
    setting = setting_for(source, columns, machine, options, solving, poisson)

    def start(place: Columns, key: Key) -> apr.CpApr:
        operator: Any = place  # its Phi is computed together with those of other runs
        method = apr.CpApr(operator, poisson)
        begin(method, source, seed(key))
        return method

    operator = SPARSE.place(source, machine, setting._replace(product=SeveralPhi()), Budget())
    return AprRuns(operator, start, poisson, kernel)


def as_counts(source: DescribedSource, machine: Machine, options: Options) -> SparseSource:
    """Return a tensor of counts as a sparse tensor; raise `InputError` if a value is negative. Collective."""
    if source.value_range.low < 0:
        on_root(machine.comm, lambda: _refuse_negative(source))
    return source.sparse(device_memory(machine, options))


def _refuse_negative(source: DescribedSource) -> None:
    cause = f"a value is {source.value_range.low:g}: counts (loss 'poisson') must not be negative"
    raise InputError(cause, path=source.path, line=source.line_where(lambda value: value < 0))


def counts(
    source: DescribedSource,
    rank: int,
    machine: Machine,
    options: Options,
    poisson: Poisson,
    budget: Budget | None = None,
    init: Init | None = None,
) -> apr.CpApr:
    """Place a tensor of counts and return its CP-APR; `begin` sets the start. `init` only reserves memory. Collective.

    Raises
    ------
    InputError
        If a value is negative, or the device does not support the method.
    """
    source = as_counts(source, machine, options)
    repeats, product = budget.repeats if budget else None, "rows" if poisson.rows else "phi"
    machine = chosen(machine, source, options, Work(rank, repeats, product))
    solving = apr.solving_bytes(machine, poisson, len(source.shape))
    setting = setting_for(source, rank, machine, options, solving, poisson)
    memory = start_bytes(source, rank, machine.comm, init)
    setting = setting._replace(root_bytes=memory, compaction=apr.COMPACTION)
    return apr.CpApr(SPARSE.place(source, machine, setting, budget), poisson)


def begin(method: Method, source: DescribedSource, seed: int = 0, init: Init | None = None) -> None:
    """Set the starting factor matrices of a method, normalised as the method requires. Collective."""
    operator = method.operator
    comm, dtype = operator.machine.everyone, operator.options.dtype
    method.draw_by(seed)
    if comm.bcast(init is None) and method.own_start is None and method.draws and draws_there(operator):
        together(comm, lambda: draw(operator, seed))
        method.drawn()
        return
    if method.own_start is not None:
        factors = list(method.own_start)
    else:
        rank = method.rank if isinstance(method.rank, int) else operator.ranks[: method.order]
        factors = initial_factors(source, rank, comm, dtype, seed, init, unread=method.unread_start)
    init_name = comm.bcast(init if init is None or isinstance(init, str) else "matrices")
    for mode, factor in enumerate(together(comm, lambda: method.started(factors, init_name))):
        if mode not in method.unread_start:
            operator.set_factor(mode, factor)


def start(operator: Placed, source: DescribedSource, seed: int = 0, init: Init | None = None) -> None:
    """Set the factor matrices of an operator, without normalisation: random ones or those of `init`. Collective."""
    rank, comm, dtype = operator.ranks[0], operator.machine.everyone, operator.options.dtype
    for mode, factor in enumerate(initial_factors(source, rank, comm, dtype, seed, init, as_is=True)):
        operator.set_factor(mode, factor)


@contextmanager
def watched(comm: Comm, deadline: float | None) -> Iterator[list[Callable[[], object]]]:
    """Within the block, end the job if a step exceeds its time limit; yield the list of functions to call then.

    The number of BLAS threads of the caller is restored afterwards. Collective.
    """
    with callers_blas(), ExitStack() as stack:
        if comm.size == 1 and deadline is None:  # a single process, perhaps a notebook, is not ended by default
            yield []
            return
        stack.enter_context(CURRENT.limited(deadline or LOADING_SECONDS))
        yield stack.enter_context(Watchdog(comm, deadline)).aborts
