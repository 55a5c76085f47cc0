"""The verb ``plan``: the memory, balance and expected time of a run, without running it."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass
from typing import Any, ClassVar

from partitioner.flags import flag, real_number, whole_number
from partitioner.tensors.labels import Labels

from ..errors import InputError
from ..methods import gcp
from ..methods.tucker_params import METHODS as COMPRESSIONS
from ..methods.tucker_params import Compression
from ..operators.placement import Loading
from ..operators.sources.protocols import DescribedSource, ProductSource
from ..operators.ttm.plan import TtmPlan, TtmSetting, make_ttm_plan, most_fibres
from ..parallel.mpi import on_root, together
from ..report import dense as dense_text
from ..report.plans import ttm_plans
from ..report.progress import say
from ..runs.candidates import GPUS, AbsentMachine
from ..runs.gcp import LossTraits
from ..runs.observing import ObservedSource
from ..runs.planned import PlanParams, cp_params, planned, planned_elsewhere
from ..runs.products import product_setting
from .job import Job, VerbSession
from .requests import TOLERANCES, Masked, Modelled, Request, any_rank
from .ttm import multiplied


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PlanRequest(Masked, Modelled):
    """The flags of ``plan``."""

    PRINTS: ClassVar[bool] = True
    rank: Any = flag(MISSING, "number of components; for tucker one per mode: R1,R2,...", type=any_rank, metavar="R")
    method: str | None = flag(None, "method of cpd or tucker", choices=(*TOLERANCES, *COMPRESSIONS))
    init: str | None = flag(None, "include the memory of this start", choices=("nvecs",), group="start")
    ranks: int | None = flag(None, "number of processes to plan for (those started)", type=whole_number, metavar="P")
    ranks_per_node: int | None = flag(
        None, "plan for an absent machine with N GPUs per node (8)", type=whole_number, metavar="N"
    )
    network: float | None = flag(
        None, "absent machine: bytes per second of each GPU's network card (50e9)", type=real_number, metavar="B"
    )
    gpu: str | None = flag(None, "absent machine: kind of GPU (h100)", choices=GPUS)
    mode: int | None = flag(None, "plan the product in this mode (ttm)", type=whole_number, metavar="N")

    @property
    def core(self) -> tuple[int | None, ...] | None:
        """The ranks of a planned Tucker decomposition, or None."""
        return self.rank if isinstance(self.rank, tuple) else None

    @property
    def compression(self) -> Compression:
        """The parameters of a planned Tucker decomposition."""
        return Compression(self.method or "hooi", self.core, init=self.init, nonnegative=self.nonnegative)

    @property
    def absent(self) -> AbsentMachine:
        """The description of a machine that is not at hand."""
        return AbsentMachine(self.ranks_per_node, self.network, self.gpu)

    @property
    def traits(self) -> LossTraits:
        return super().traits._replace(masked=self.mask is not None)

    def check(self) -> None:
        constrained = any(
            (self.nonnegative, self.nonnegative_modes, self.ridge, self.fixed_modes, self.constraint, self.fixed)
        )
        if self.mode is not None and (self.counts or self.method or constrained or self.core or self.init):
            raise InputError("--mode plans a product (ttm), which has no method, loss, start or constraint")
        if self.core is None:
            super().check()
        elif self.method not in (None, *COMPRESSIONS):
            raise InputError(f"--method {self.method} takes one --rank; several are for {', '.join(COMPRESSIONS)}")
        else:
            self.compression  # noqa: B018 - raises for invalid parameters
            Request.check(self)
        if self.mask is not None and (self.core or self.mode is not None):
            raise InputError("--mask requires cpd")
        if self.ranks is not None and self.ranks < 1:
            raise InputError(f"--ranks {self.ranks}: at least 1")
        self.absent.check()
        if self.absent.described and self.mode is not None:
            raise InputError("--mode plans a product (ttm) on this machine only")


def plan(request: PlanRequest, session: VerbSession) -> int:
    """Print the memory, balance and expected time of a run, without running it."""
    if request.mode is not None:
        return _plan_product(request, session)
    ranks = session.comm.size if request.ranks is None else request.ranks
    with Job(request, session) as job:
        source = job.open()
        observed = job.observe(request.observed)
        source = source if observed is None else observed.placed
        params = _params(request, len(source.shape), job.source.labels, observed)
        if request.absent.described:
            candidates = planned_elsewhere(source, session.comm, request.options, params, ranks, request.absent)
            if session.comm.rank == 0:
                _record(job, request, source, ranks, candidates=candidates.facts)
                say(candidates.text)
            return job.exit_code()
        result = planned(source, job.machine, request.options, params, ranks)
        if (plans := result.run.plans) is not None:
            memory = [plan.planned_bytes for plan in plans]
            facts = {} if result.candidates is None else {"candidates": result.candidates.facts}
            _record(job, request, source, ranks, planned_bytes=memory, seconds=result.estimate.seconds, **facts)
            say("\n".join(filter(None, [result.text, _advice(source, request)])))
        return job.exit_code()


def _advice(source: DescribedSource, request: PlanRequest) -> str | None:
    """Return the advice to store a sparse tensor as a dense one, if that is faster."""
    if request.counts or request.core:
        return None
    return dense_text.advice(source, request.rank, request.options.dtype.itemsize)


def _params(request: PlanRequest, order: int, labels: Labels | None, observed: ObservedSource | None) -> PlanParams:
    """Return what is planned for a tensor of this order."""
    if request.core is not None:
        return PlanParams(compression=request.compression)
    constraints = request.constraint_params.of(order, labels)
    poisson = request.poisson() if request.counts else None
    params = PlanParams(request.rank, constraints=constraints, init=request.init, observed=observed)
    stochastic = request.stochastic(0, gcp.MAX_ITERS)
    return cp_params(params, request.loss_function, request.chosen_method, poisson, stochastic)


def _memory_on_one_host(job: Job, ranks: int) -> int:
    """Return the device memory in bytes of each of `ranks` ranks, if all are on this host."""
    return job.options.device_memory or job.machine.device.memory(ranks)


def _record(
    job: Job,
    request: PlanRequest,
    source: DescribedSource | ProductSource,
    ranks: int,
    **facts: object,
) -> None:
    """Write facts about a plan to the metrics."""
    job.metrics.event(
        "plan", tensor=str(request.tensor), shape=source.shape, nonzeros=source.nnz, rank=request.rank,
        ranks=ranks, options=asdict(request.options), **facts,
    )  # fmt: skip


def _plan_product(request: PlanRequest, session: VerbSession) -> int:
    """Print the memory and balance of a product of the tensor and a matrix."""
    comm, ranks = session.comm, session.comm.size if request.ranks is None else request.ranks
    with Job(request, session) as job:
        source, _ = multiplied(job, request)
        options, machine, mode = request.options, job.machine, request.mode
        assert mode is not None
        setting = together(comm, lambda: product_setting(source, mode, request.rank, machine, options))
        if ranks != comm.size:
            setting = setting._replace(memory=_memory_on_one_host(job, ranks))
        loading = source.loading(ranks, options.dtype, machine.device.on_host)
        plans = on_root(comm, lambda: _product_plans(source, setting, ranks, loading))
        if plans is not None:
            memory = [plan.planned_bytes for plan in plans]
            _record(job, request, source, ranks, planned_bytes=memory, mode=mode, fibres=sum(p.fibres for p in plans))
            say(ttm_plans(plans, machine.device))
        return job.exit_code()


def _product_plans(source: ProductSource, setting: TtmSetting, ranks: int, loading: Loading) -> list[TtmPlan]:
    """Return the plan of each rank for the maximum number of fibres: the exact one is known only after sorting."""
    if setting.mode in source.dense:
        raise InputError(f"mode {setting.mode} is dense already: its product fits in any memory")
    others = tuple(source.shape[m] for m in source.sparse if m != setting.mode)
    shares = (source.nnz * (part + 1) // ranks - source.nnz * part // ranks for part in range(ranks))
    return [make_ttm_plan(setting, nnz, most_fibres(nnz, others), loading) for nnz in shares]
