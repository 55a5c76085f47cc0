"""Assembly of Tucker decompositions: factor matrices from spectra, if needed, then the tensor placed for its ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.host.stages import STAGES
from partitioner.tensors.lowrank import full
from partitioner.tensors.sparse import SparseTensor

from ..backend.blas import SCIPY_BYTES
from ..backend.exchange import Machine
from ..methods.driver import StopRule, iterate
from ..methods.hosvd import FIRST, allowed, loads_scipy
from ..methods.nonnegative_tucker import NonnegativeTucker
from ..methods.small_cp import of_core
from ..methods.tucker import TuckerMethod, attainable, compaction, consistency, core_of, solving_bytes
from ..methods.tucker_params import Compression
from ..models.explained import values_at
from ..operators.base import CoreOperator
from ..operators.limits import check_range
from ..operators.placement import MAX_DENSE_RANK, MAX_RANK, Setting
from ..operators.products import Ttmc
from ..operators.sources.lengths import check_lengths
from ..operators.sources.protocols import DescribedSource, SparseSource
from ..operators.sources.sparse import TensorSource
from ..options import Options
from ..parallel.mpi import on_root, together
from .assembly import begin, setting_for
from .compiling import Work, chosen, uncompiled
from .kinds import CoreSource, kind_of

MAX_CORE_SIZE = 1 << 18  # elements of a core whose CP decomposition takes seconds
SMALL = 1 << 24  # bytes of a product that is multiplied faster in host memory
START_ITERATIONS, START_TOLERANCE = 10, 1e-4


def core_setting(
    source: DescribedSource,
    ranks: Sequence[int],
    machine: Machine,
    options: Options,
    compression: Compression | None = None,
) -> Setting:
    """Return the setting that the plans of a Tucker decomposition share, including the memory for spectra."""
    setting = setting_for(source, ranks, machine, options)
    setting = setting._replace(solving=solving_bytes(machine, ranks, source.shape), product=Ttmc(), overlaps=False)
    if compression is None:
        return setting
    setting = setting._replace(compaction=compaction(compression), uncompressed=compression.uncompressed)
    scipy = SCIPY_BYTES * loads_scipy(source.shape, ranks, compression, machine.device)
    if not compression.from_spectra:
        return setting._replace(root_bytes=scipy)
    return kind_of(source).with_spectra(source, machine, setting, compression, scipy)


def compressed(
    source: DescribedSource,
    machine: Machine,
    options: Options,
    compression: Compression,
    seed: int = 0,
    max_iters: int = 1,
) -> TuckerMethod:
    """Place a tensor and return its Tucker method; `begin` sets the start. Collective.

    `max_iters` is only used to choose between compiled code and NumPy.

    Raises
    ------
    InputError
        If the ranks are impossible for the tensor, or the tensor is zero.
    """
    compression = together(machine.comm, lambda: of_source(compression, source))
    ranks, error, factors = compression.columns, compression.error, None
    if error is not None:
        compression = replace(compression, error=together(machine.comm, lambda: attainable(error, options.precision)))
    given = machine
    machine = uncompiled(given) if ranks is None else _chosen(source, ranks, given, options, max_iters)
    core_source = _core_source(source, machine, options)
    norm, values = source.norm, source.value_range
    if norm:
        together(machine.comm, lambda: check_range(values, options.dtype, source.path))
    together(machine.comm, lambda: allowed(norm, compression))
    if compression.from_spectra:
        columns = [min(FIRST, length) for length in source.shape] if ranks is None else ranks
        check_lengths(source, core_setting(source, columns, machine, options), machine.comm)
        with STAGES.of("spectra"):
            factors = core_source.factors(compression, seed)
        ranks = tuple(factor.shape[1] for factor in factors)
    assert ranks is not None
    if compression.ranks is None:
        machine = _chosen(source, ranks, given, options, max_iters)
    setting = core_setting(source, ranks, machine, options, compression)
    operator = core_source.place(machine, setting)
    if compression.nonnegative:
        return NonnegativeTucker(operator, compression, factors)
    return TuckerMethod(operator, compression, factors)


def of_source(compression: Compression, source: DescribedSource) -> Compression:
    """Return the parameters for the shape of a tensor; raise `InputError` if it cannot have the ranks."""
    return compression.of_shape(source.shape, MAX_DENSE_RANK if source.kind == "dense" else MAX_RANK)


def consistent(
    source: DescribedSource,
    machine: Machine,
    options: Options,
    factors: Sequence[Floats],
) -> float:
    """Return the core consistency of a CP model whose factor matrices include the weights. Collective."""
    return _consistent(source, machine, options, _inverses(factors))


def prepare_consistency(source: DescribedSource, machine: Machine, options: Options, rank: int) -> None:
    """Start compiling the code of `consistent` on a GPU; return immediately."""
    machine = uncompiled(machine)  # on a CPU it would only load the compiler, which the run may not need
    kind_of(source).prepare_core(source, machine, options, [rank] * len(source.shape))


def _inverses(factors: Sequence[Floats]) -> list[NDArray[np.float64]]:
    return [np.linalg.pinv(factor.astype(np.float64)) for factor in factors]


def _consistent(
    source: DescribedSource,
    machine: Machine,
    options: Options,
    inverses: Sequence[NDArray[np.float64]],
    further: NDArray[np.float64] | float = 0.0,
) -> float:
    """See `consistent`: given the pseudo-inverses of the factor matrices. `further` is added to the tensor's core."""
    ranks = [len(inverse) for inverse in inverses]
    machine = _chosen(source, ranks, machine, options)
    operator = core_operator(source, ranks, machine, options)
    for mode, inverse in enumerate(inverses):
        operator.set_factor(mode, inverse.T)
    last, device = operator.order - 1, operator.machine.device
    product = operator.compute(Ttmc(), last)
    if operator.machine.comm.size == 1 and not device.on_host and product.nbytes <= SMALL:
        return consistency(_core(device.to_host(product), inverses) + further)
    core = core_of(operator, product, machine.device.empty(operator.owned(last).shape, np.float64), last)
    return consistency(core + further)


def _core(product: NDArray[np.float64], inverses: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the core from the TTMc of the last mode, (rows, product of the other ranks), in host memory.

    To multiply small matrices, a GPU would load a library for a third of a second.
    """
    return (inverses[-1] @ product).T.reshape([len(inverse) for inverse in inverses])


def consistent_with_gaps(
    observed: SparseSource, machine: Machine, options: Options, factors: Sequence[Floats]
) -> float:
    """Return the core consistency of a CP model of observed elements; others are those of the model. Collective.

    The completed tensor is the model plus the residuals of the observed elements, and so is its core.
    """
    elements, inverses = observed.tensor(), _inverses(factors)
    exact = [factor.astype(np.float64) for factor in factors]

    def residual() -> SparseTensor | None:
        if elements is None:
            return None
        values = elements.values - values_at(np.ones(exact[0].shape[1]), exact, list(elements.columns))
        return SparseTensor.from_columns(elements.columns, values, elements.shape, keep_zeros=True)

    cores = [inverse @ factor for inverse, factor in zip(inverses, exact, strict=True)]
    own, rest = full(None, cores), on_root(machine.comm, residual)
    if not machine.comm.bcast(rest is not None and bool(rest.values.any())):
        return consistency(own)
    source = TensorSource(rest, machine.comm, memory=None)
    return _consistent(source, machine, options, inverses, own)


def _chosen(
    source: DescribedSource, ranks: Sequence[int], machine: Machine, options: Options, max_iters: int = 1
) -> Machine:
    """Return the machine for the products of each mode, with compiled code or without. Collective."""
    return chosen(machine, source, options, Work(math.prod(ranks) // min(ranks), max_iters, "ttmc"))


def core_operator(source: DescribedSource, ranks: Sequence[int], machine: Machine, options: Options) -> CoreOperator:
    """Place a tensor for products with factor matrices of these numbers of columns. Collective."""
    setting = core_setting(source, ranks, machine, options)
    return _core_source(source, machine, options).place(machine, setting)


def _core_source(source: DescribedSource, machine: Machine, options: Options) -> CoreSource:
    """Prepare a tensor for placement, with the free device memory as its limit. Collective."""
    return kind_of(source).for_core(source, machine, options, setting_for(source, 1, machine, options).memory)


def cp_start(source: DescribedSource, machine: Machine, options: Options, rank: int, seed: int = 0) -> list[Floats]:
    """Return starting factor matrices for CP from a Tucker decomposition by HOOI. Collective.

    The CP components of the small core, multiplied by HOOI's factor matrices, approximate those of the tensor.
    """
    most = max(1, int(MAX_CORE_SIZE ** (1 / len(source.shape))))
    ranks = _possible([min(rank, length, most) for length in source.shape])
    method = compressed(source, machine, options, Compression(ranks=ranks), seed, START_ITERATIONS)
    begin(method, source, seed)
    for _ in iterate(method, StopRule(START_ITERATIONS, START_TOLERANCE)):
        pass
    model, comm = method.model(), machine.comm
    small = comm.bcast(of_core(model.core, rank, seed) if comm.rank == 0 else None)
    assert small is not None
    return [factor @ part.astype(factor.dtype) for factor, part in zip(model.host_factors, small, strict=True)]


def _possible(ranks: list[int]) -> tuple[int, ...]:
    """Reduce ranks so that none exceeds the product of the others."""
    for mode in range(len(ranks)):
        others = math.prod(rank for m, rank in enumerate(ranks) if m != mode)
        ranks[mode] = min(ranks[mode], others)
    return tuple(ranks)
