"""The plan of a decomposition: memory and expected time, computed without running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from ..backend.exchange import Machine
from ..backend.losses import Loss
from ..errors import InputError
from ..methods import apr
from ..methods.constraints import NONE, Constraints
from ..methods.gcp import GENERAL, MAX_ITERS
from ..methods.initial import Init, start_bytes
from ..methods.poisson import Poisson, PoissonMethod
from ..methods.stochastic import Stochastic
from ..methods.tucker_params import Compression
from ..models.dataframe import dataframe
from ..operators.distributions.forecast import Candidate
from ..operators.kept_rows import Compaction
from ..operators.placement import Setting
from ..operators.sources.lengths import check_lengths
from ..operators.sources.protocols import DescribedSource, SparseSource
from ..options import Options
from ..parallel.mpi import Comm, together
from ..report.candidates import candidate_columns
from ..report.notebook import plan_html
from ..report.text import forecast_line
from .assembly import als_bytes, als_compaction, as_counts, setting_for
from .candidates import MOST_RANKS, AbsentMachine, Candidates, SharedTensor, candidates_absent, candidates_here
from .compression import core_setting, of_source
from .gcp import planned_loss
from .kinds import kind_of
from .loss_elements import LossRun, LossWork
from .observed_runs import ObservedRun, planned_observed
from .observing import ObservedSource
from .planning import PlannedRun, PlannedSparseRun, TimeEstimate

if TYPE_CHECKING:
    from pandas import DataFrame


class PlanParams(NamedTuple):
    """What is planned: CP with `rank`, or Tucker with `compression`."""

    rank: int | None = None
    compression: Compression | None = None
    poisson: Poisson | None = None
    constraints: Constraints = NONE
    init: Init | None = None
    observed: ObservedSource | None = None  # the observed elements, if some are missing
    work: LossWork | None = None  # of any loss


class RunPlan(NamedTuple):
    """The plan of a decomposition. `print` shows it as ``amped plan`` does.

    Attributes
    ----------
    device_bytes : tuple of dict
        For each rank the bytes of device memory, by use.
    host_bytes : tuple of int
        For each rank the peak bytes of host memory.
    seconds : float or None
        Expected time of an iteration; None if it cannot be predicted.
    expectation : str
        The expected time as text, or why it cannot be predicted.
    text : str
        All of this, and the shares of the ranks.
    candidates : tuple of Candidate
        For CP-ALS of a sparse tensor on several ranks: how these may share it, the fastest way first. Each has a
        ``distribution``, ``bytes`` (that each rank sends and receives per iteration), and ``seconds``, by part and in
        ``total``. Seconds are measured or estimated; see "Many GPUs" in the documentation. For a machine that is not
        at hand, a plan has candidates only.

    Examples
    --------
    >>> found = amped.plan(numpy.ones((40, 30, 20)), 8, device="cpu")
    >>> found.to_frame()["host"].tolist() == list(found.host_bytes)
    True
    """

    device_bytes: tuple[dict[str, int], ...]
    host_bytes: tuple[int, ...]
    seconds: float | None
    expectation: str
    text: str
    candidates: tuple[Candidate, ...] = ()

    def to_frame(self, candidates: bool = False) -> DataFrame:
        """Return the bytes, or the candidates, as a pandas DataFrame.

        Parameters
        ----------
        candidates : bool
            Whether to return the candidates, as for a machine that is not at hand.

        Returns
        -------
        pandas.DataFrame
            One row per rank, one column per use of device memory, their sum ``device``, and ``host``. Or one row per
            candidate: ``distribution``, ``nodes`` (ranges over which the nodes are distributed, by mode),
            ``exchange_bytes`` (of the busiest rank per iteration), ``mean_bytes``, ``factor_bytes``, ``fullest``
            (nonzeros of the fullest rank relative to the mean), and the seconds of the parts of an iteration, with
            their sum ``seconds``.

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        return dataframe(candidate_columns(self.candidates) if candidates else self._columns())

    def _columns(self) -> dict[str, Sequence[object]]:
        if not self.device_bytes:
            return candidate_columns(self.candidates)
        uses = {use: [each[use] for each in self.device_bytes] for use in self.device_bytes[0]}
        sums = [sum(each.values()) for each in self.device_bytes]
        return {"rank": range(len(sums)), **uses, "device": sums, "host": self.host_bytes}

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return plan_html(self._columns(), self.expectation)


def cp_params(
    params: PlanParams,
    loss: Loss,
    method: str,
    poisson: Poisson | None = None,
    stochastic: Stochastic | None = None,
) -> PlanParams:
    """Return what is planned for a CP decomposition with a loss and a method.

    `params` has the rank, the constraints, the start and the observed elements; `poisson` and `stochastic` the
    parameters of these methods, if they are not the defaults.
    """
    assert params.rank is not None
    if method in GENERAL:
        work = LossWork(loss, params.rank, MAX_ITERS, params.init, method, stochastic=stochastic)
        return params._replace(work=work)
    if method == "als":
        return params
    poisson = poisson or Poisson(method=cast(PoissonMethod, method))
    if params.observed is None:
        return params._replace(poisson=poisson)
    return params._replace(work=LossWork.of_counts(poisson, params.rank, MAX_ITERS, params.init))


class PlanResult(NamedTuple):
    """A planned run, its expected time, and the ways in which ranks may share its tensor, if there are several."""

    run: PlannedRun
    estimate: TimeEstimate
    candidates: Candidates | None = None

    @property
    def text(self) -> str:
        """All of this as text. Called on rank 0."""
        text = self.run.text(self.estimate)
        return text if self.candidates is None else f"{text}\n{self.candidates.text}"


def planned(source: DescribedSource, machine: Machine, options: Options, params: PlanParams, ranks: int) -> PlanResult:
    """Plan a decomposition on `ranks` ranks. Collective."""
    if params.poisson is not None:
        source = as_counts(source, machine, options)
    memory = None
    if ranks != machine.comm.size:  # all ranks are on this host
        memory = options.device_memory or machine.device.memory(ranks)
    if params.work is not None:
        elements = planned_loss(LossRun(source, params.observed, machine, options, params.work, params.constraints))
        run = elements.with_memory(memory).plan(ranks)
        return PlanResult(run, run.forecast(params.constraints))
    if params.observed is not None:
        assert params.rank is not None
        observed = ObservedRun(params.observed, params.rank, machine, options, params.init)
        run = planned_observed(observed._replace(constraints=params.constraints), ranks, memory)
        return PlanResult(run, run.forecast(params.constraints))
    setting = _setting(source, machine, options, params)
    setting = setting if memory is None else setting._replace(memory=memory)
    check_lengths(source, setting, machine.comm, elsewhere=True)
    run = kind_of(source).plan(source, machine, setting, ranks)
    estimate = run.forecast(params.constraints)
    if not 1 < ranks <= MOST_RANKS or not _is_shared(source, params) or not isinstance(run, PlannedSparseRun):
        return PlanResult(run, estimate)
    assert params.rank is not None
    one_copy = machine.comm.bcast(run.plans is not None and any(mode.any_row for mode in run.plans[0].modes))
    shared = SharedTensor(cast(SparseSource, source), machine.comm, params.rank, options, run.copies, one_copy)
    forecast = None if estimate.doubt or ranks != machine.comm.size else estimate.forecast
    kernels = None if forecast is None else forecast.compute * ranks
    return PlanResult(run, estimate, candidates_here(shared, machine, ranks, kernels))


def _is_shared(source: DescribedSource, params: PlanParams) -> bool:
    """Return whether ranks may share the tensor in several ways: sparse tensors in CP-ALS."""
    others = params.compression, params.poisson, params.work, params.observed
    return source.kind == "sparse" and not params.constraints.terms and all(each is None for each in others)


def planned_elsewhere(
    source: DescribedSource, comm: Comm, options: Options, params: PlanParams, ranks: int, described: AbsentMachine
) -> Candidates:
    """Plan a decomposition on a machine that is not at hand. Collective."""
    if not _is_shared(source, params):
        raise InputError("machines that are not at hand are planned for CP-ALS of sparse tensors only")
    assert params.rank is not None
    shared = SharedTensor(cast(SparseSource, source), comm, params.rank, options)
    return candidates_absent(shared, ranks, described)


def _setting(source: DescribedSource, machine: Machine, options: Options, params: PlanParams) -> Setting:
    """Return the setting that the plans of all ranks share."""
    order, compression = len(source.shape), params.compression
    compaction: Compaction | None
    if compression is not None:
        wanted = compression
        wanted = together(machine.comm, lambda: of_source(wanted, source))
        assert wanted.columns is not None
        return core_setting(source, wanted.columns, machine, options, wanted)
    assert params.rank is not None
    if params.poisson is not None:
        solving, compaction = apr.solving_bytes(machine, params.poisson, order), apr.COMPACTION
    else:
        params.constraints.check_sizes(source.shape, params.rank)
        solving = als_bytes(source, params.rank, machine, options, params.constraints)
        compaction = als_compaction(params.constraints)
    setting = setting_for(source, params.rank, machine, options, solving, params.poisson)
    memory = start_bytes(source, params.rank, machine.comm, params.init)
    return setting._replace(root_bytes=memory, compaction=compaction)


def plan_of(result: PlanResult) -> RunPlan:
    """Return a plan as an object for Python. Called on rank 0."""
    run, estimate, candidates = result
    assert run.plans is not None
    device = tuple(dict(plan.device_bytes) for plan in run.plans)
    host = tuple(plan.host_bytes for plan in run.plans)
    expectation = "" if estimate == (None, None) else forecast_line(*estimate)
    found = () if candidates is None else candidates.found
    return RunPlan(device, host, estimate.seconds, expectation, result.text, found)


def plan_elsewhere(candidates: Candidates) -> RunPlan:
    """Return a plan for a machine that is not at hand as an object for Python."""
    best = candidates.found[0].seconds.total
    return RunPlan((), (), best, candidates.head, candidates.text, candidates.found)
