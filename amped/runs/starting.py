"""The choice of a start and of limits for CP-ALS, where the caller has set none."""

from __future__ import annotations

from typing import NamedTuple

from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor

from ..methods.initial import Init
from ..methods.short_runs import Start, best_start, suits
from ..methods.stopping import RunLimits, limits_of
from ..models.history import AnyModel
from ..operators.sources.protocols import DescribedSource
from ..parallel.mpi import Comm, on_root
from .run import RunParams

SHORT_RUNS = "short runs"  # name of the start in records
BETTER = 1e-3  # difference of fits worth a warning


class AlsRequest(NamedTuple):
    """What the caller of CP-ALS has set; None and False: nothing."""

    max_iters: int | None
    tol: float | None
    seed: int | None
    guess: bool  # whether there is an initial guess, or a number of starts
    checkpoint: bool  # checkpoints do not contain the iterates that acceleration needs
    accelerate: bool | None = None

    @property
    def accelerates(self) -> bool:
        """Whether iterations are accelerated where possible: by default, if nothing limits them."""
        if self.accelerate is not None:
            return self.accelerate
        return self.max_iters is None and self.tol is None and not self.checkpoint


class AlsChoice(NamedTuple):
    """The limits of a run, and its start.

    Attributes
    ----------
    limits : RunLimits
    start : Start or None
        On rank 0, the best of short runs, if the tensor is small.
    chosen : bool
        Whether the run begins with `start`, on all ranks.
    """

    limits: RunLimits
    start: Start | None = None
    chosen: bool = False

    @property
    def init(self) -> Init:
        """The factor matrices of `start`: of rank 0, as that of others does not count."""
        return [] if self.start is None else self.start.factors

    def begun(self, params: RunParams) -> RunParams:
        """Return the parameters of a run with this choice."""
        max_iters, tol, forecast = self.limits
        params = params._replace(max_iters=max_iters, tol=tol, forecast=forecast)
        return params._replace(init=self.init, init_name=SHORT_RUNS) if self.chosen else params

    def exceeded(self, model: AnyModel) -> str | None:
        """Return a warning if a run converged at a lower fit than a short run; otherwise None. Called on rank 0."""
        if self.start is None or not model.converged or model.fits[-1] >= self.start.fit - BETTER:
            return None
        return (
            f"the fit, {model.fits[-1]:.3g}, is below {self.start.fit:.3g}, which a short run from another start "
            "reached: use the default start, or several starts"
        )


def choose(source: DescribedSource, rank: int, request: AlsRequest, usual: bool, comm: Comm) -> AlsChoice:
    """Return the choice for a tensor; `usual`: without constraints and missing elements. Collective."""
    work = source.nnz * rank * len(source.shape) if usual and not request.checkpoint else 0
    limits = limits_of(request.max_iters, request.tol, work)
    if not limits.forecast or not suits(source.shape, source.nnz, rank):
        return AlsChoice(limits)
    tensor = source.tensor()
    start = on_root(comm, lambda: _start(tensor, rank, request.seed or 0))
    chosen = request.seed is None and not request.guess and comm.bcast(start is not None)
    return AlsChoice(limits, start, chosen)


def _start(tensor: SparseTensor | DenseTensor | None, rank: int, seed: int) -> Start | None:
    assert tensor is not None
    dense = DenseTensor.of_sparse(tensor) if isinstance(tensor, SparseTensor) else tensor
    return best_start(dense.array(), rank, seed)
