"""The plan of a decomposition, in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from partitioner.readers import PLAIN
from partitioner.validate import whole

from ..backend.losses import Loss
from ..errors import InputError
from ..methods.constraints import ConstraintParams
from ..methods.tucker_params import Compression
from ..operators.placement import MAX_DENSE_RANK
from ..options import OptionNames, Options, with_options
from ..parallel.calls import Argument, collective
from ..parallel.mpi import on_root, world
from ..runs.assembly import Tensor
from ..runs.candidates import GPUS, AbsentMachine
from ..runs.gcp import LossTraits, check_method, default_method
from ..runs.observed_runs import observe
from ..runs.observing import Mask, ObservedParams
from ..runs.planned import PlanParams, RunPlan, cp_params, plan_elsewhere, plan_of, planned, planned_elsewhere
from ..runs.session import opened
from .arguments import argument_options, integer, one_of, optional, positive
from .gcp import LOSS_ARGUMENTS, MethodName


def _rank(name: str, value: object) -> int | tuple[int | None, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(None if each is None else whole(name, each, 1, MAX_DENSE_RANK) for each in value)
    return whole(name, value, 1, MAX_DENSE_RANK)


PLAN_ARGUMENTS = LOSS_ARGUMENTS | {
    "rank": Argument(_rank),
    "ranks": optional(integer(1)),
    "ranks_per_node": optional(integer(1)),
    "network": optional(positive("bytes per second above 0")),
    "gpu": optional(one_of(*GPUS)),
}


@collective(PLAN_ARGUMENTS, argument_options)
@with_options
def plan(
    X: Tensor,
    rank: int | Sequence[int | None],
    *,
    loss: str | Loss = "gaussian",
    method: MethodName | None = None,
    nonnegative: bool | Sequence[int] = False,
    mask: Mask | None = None,
    ranks: int | None = None,
    ranks_per_node: int | None = None,
    network: float | None = None,
    gpu: str | None = None,
    deadline: float | None = None,
    **options: Unpack[OptionNames],
) -> RunPlan | None:
    """Plan a decomposition: its memory and expected time, before anything is allocated. Collective.

    Parameters
    ----------
    X : SparseTensor, DenseTensor, array or path
        See `cp_als`.
    rank : int or sequence of int
        Number of components of a CP decomposition; or the columns of each mode's factor matrix of a Tucker
        decomposition, as in `tucker`.
    loss : str or Loss
        See `cp`.
    method : str, optional
        See `cp`; not for a Tucker decomposition.
    nonnegative : bool or sequence of int
        See `cp_als`.
    mask : optional
        See `cp_als`.
    ranks : int, optional
        Number of processes; by default those of this run. With another number there is no expected time.
    ranks_per_node : int, optional
        Plan CP-ALS of a sparse tensor on a machine that is not at hand, which has this number of GPUs per node (8), one
        per rank.
    network : float, optional
        The same: bytes per second of each GPU's network card (50e9).
    gpu : {"h100", "h200"}, optional
        The same: the kind of the GPUs ("h100").
    deadline : float, optional
        See `cp_als`.
    device, precision, placement, kernel, deterministic, device_memory, threads, gather, grid, workspace : optional
        See `cp_als`.

    Returns
    -------
    RunPlan or None
        ``print`` shows it as ``amped plan`` does. None on ranks other than 0.

    Raises
    ------
    InputError
        If an argument or the file is invalid, or factor matrices do not fit into memory.

    Examples
    --------
    >>> import numpy as np
    >>> found = plan(np.ones((40, 30, 20)), 8, device="cpu", precision="fp64")
    >>> len(found.host_bytes), found.device_bytes[0]["factor matrices"] >= (40 + 30 + 20) * 8 * 8
    (1, True)
    >>> coordinates = np.random.default_rng(0).integers(0, 500, (3, 9000))
    >>> tensor = SparseTensor.from_columns(coordinates.astype(np.int32), np.ones(9000), (500, 500, 500))
    >>> elsewhere = plan(tensor, 8, ranks=64, ranks_per_node=8)
    >>> str(elsewhere.candidates[0].distribution)
    'replicated'
    """
    comm, chosen, observed = world(), Options(**options), ObservedParams(mask)  # type: ignore[arg-type]
    described = AbsentMachine(ranks_per_node, network, gpu)
    with opened(X, comm, chosen, deadline, observed.form(PLAIN, comm)) as (machine, source):
        elements = observe(source, observed, machine, chosen)
        if elements is not None and not isinstance(rank, int):
            raise InputError("mask: only CP decompositions accept missing elements")
        source = source if elements is None else elements.placed
        if isinstance(rank, int):
            constraints = ConstraintParams(nonnegative, 0.0, ()).of(len(source.shape))  # type: ignore[arg-type]
            assert isinstance(loss, Loss)
            traits = LossTraits(masked=elements is not None)
            check_method(loss.name, chosen_method := method or default_method(loss.name, traits), traits)
            params = cp_params(PlanParams(rank, constraints=constraints, observed=elements), loss, chosen_method)
        else:
            params = PlanParams(compression=Compression("hooi", tuple(rank), nonnegative=bool(nonnegative)))
        if described.described:
            elsewhere = planned_elsewhere(source, comm, chosen, params, ranks or comm.size, described)
            return on_root(comm, lambda: plan_elsewhere(elsewhere))
        result = planned(source, machine, chosen, params, ranks or comm.size)
        return on_root(comm, lambda: plan_of(result))
