"""How ranks may share a sparse tensor in CP-ALS: the candidates of a plan, also for machines that are not at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..backend.exchange import Machine
from ..errors import InputError
from ..operators.distributions.calibration import machine_model
from ..operators.distributions.choice import choose
from ..operators.distributions.forecast import Candidate, Measured, Workload, forecast
from ..operators.distributions.machine_model import (
    CARDS,
    NETWORK,
    NETWORK_EFFICIENCY,
    NVLINK,
    ROW_BYTES,
    MachineModel,
)
from ..operators.distributions.traffic import RankDistribution, RowFormat, node_count
from ..operators.placement import GridParts
from ..operators.sources.balance import fullest_block, sampled_blocks
from ..operators.sources.protocols import ModeCopies, SparseSource
from ..options import Options
from ..parallel.mpi import Comm
from ..report.candidates import candidate_lines

GPUS = tuple(CARDS)
MOST_RANKS = (1 << 16) - 1  # blocks have 16-bit numbers


class AbsentMachine(NamedTuple):
    """The description of another machine; None stands for the default.

    Attributes
    ----------
    ranks_per_node : int
        One rank per GPU.
    network : float
        Bytes per second of each rank's network card.
    gpu : str
        A name of `GPUS`.
    """

    ranks_per_node: int | None = None
    network: float | None = None
    gpu: str | None = None

    @property
    def described(self) -> bool:
        """Whether any value is given."""
        return any(each is not None for each in self)

    def check(self) -> None:
        """Raise `InputError` for impossible values."""
        if self.ranks_per_node is not None and self.ranks_per_node < 1:
            raise InputError(f"ranks per node {self.ranks_per_node}: at least 1")
        if self.network is not None and not 0 < self.network < float("inf"):
            raise InputError(f"network {self.network}: expected bytes per second above 0")
        if self.gpu is not None and self.gpu not in CARDS:
            raise InputError(f"gpu {self.gpu!r}: expected {' or '.join(GPUS)}")

    def model(self) -> MachineModel:
        """Return the model of the machine."""
        links = NVLINK if self.ranks_per_node is None else replace(NVLINK, ranks_per_node=self.ranks_per_node)
        if self.network is not None:
            links = replace(links, network=self.network * NETWORK_EFFICIENCY)
        return MachineModel(CARDS[self.gpu or GPUS[0]], links)


class Candidates(NamedTuple):
    """The candidates of a plan, the fastest first."""

    found: tuple[Candidate, ...]
    head: str  # what they are for
    on_one_rank: float | None  # forecast seconds of an iteration on one rank; None if times are only relative

    @property
    def facts(self) -> list[dict[str, object]]:
        """The candidates for metrics, each with the bytes of all ranks."""
        return [
            {"distribution": str(each.distribution), "nodes": each.distribution.nodes, "exchange_bytes": each.bytes,
             "factor_bytes": each.factor_bytes, "fullest": each.fullest, **each.seconds._asdict(),
             "seconds": each.seconds.total}
            for each in self.found
        ]  # fmt: skip

    @property
    def text(self) -> str:
        """A table."""
        return f"{self.head}\n{candidate_lines(self.found, self.on_one_rank)}"


class SharedTensor(NamedTuple):
    """A sparse tensor to share among ranks, and what its decomposition needs."""

    source: SparseSource
    comm: Comm
    rank: int
    options: Options
    compact: ModeCopies | None = None  # the tensor without most empty rows, unless it is on a grid
    one_copy: bool = False  # whether mode 0's nonzeros serve all modes, unless it is on a grid

    def workloads(self, columns: int, measured: Measured | None) -> tuple[Workload, Workload]:
        """Return the workloads on a grid, and otherwise; rows have `columns` numbers in memory."""
        source, rows = self.source, RowFormat(self.rank, columns, self.options.dtype.itemsize)
        work = Workload(source.shape, source.nnz, rows, source.cut, measured)
        held = self.compact or source
        return work, replace(work, shape=held.shape, cut=held.cut, one_copy=self.one_copy)

    def fullest(self, grids: Sequence[RankDistribution]) -> list[float]:
        """Return the nonzeros of the fullest blocks of grids relative to the mean, from a sample. Collective."""
        parts = [GridParts(grid.parts, grid.nodes) for grid in grids]
        return [fullest_block(each) for each in sampled_blocks(self.source, parts, self.comm, self.options.dtype)]


def candidates_here(shared: SharedTensor, machine: Machine, ranks: int, compute: float | None = None) -> Candidates:
    """Return the candidates for `ranks` ranks of the machine at hand. Collective.

    `compute` are the measured seconds per iteration of the kernels that read nonzeros, of all ranks together.
    """
    device, options = machine.device, shared.options
    columns = device.stride(shared.rank, options.dtype.itemsize)
    model = machine_model(machine, not options.deterministic)
    if ranks != machine.comm.size:  # all ranks are on this host
        model = replace(model, links=replace(model.links, ranks_per_node=ranks))
    found, on_one_rank = _found(shared, columns, model, ranks, None if compute is None else Measured(compute))
    head = f"ways to share the tensor among {ranks} ranks, by the busiest rank"
    if device.on_host:
        return Candidates(found, f"{head}; times are relative:", None)
    return Candidates(found, f"{head}:", on_one_rank)


def candidates_absent(shared: SharedTensor, ranks: int, described: AbsentMachine) -> Candidates:
    """Return the candidates for `ranks` GPUs of a machine that is not at hand. Collective."""
    if ranks > MOST_RANKS:
        raise InputError(f"{ranks} ranks: at most {MOST_RANKS:,} can be planned")
    model, unit = described.model(), ROW_BYTES // shared.options.dtype.itemsize
    found, on_one_rank = _found(shared, -(-shared.rank // unit) * unit, model, ranks)
    nodes = node_count(ranks, model.links.ranks_per_node)
    network = f" on {nodes} nodes, {(described.network or NETWORK) / 1e9:.3g} GB/s of network per GPU"
    head = f"{ranks} x {model.device.name}{network if nodes > 1 else ''}; one takes about {on_one_rank * 1e3:.3g} ms"
    return Candidates(found, f"{head} per iteration. Estimates, by the busiest rank:", on_one_rank)


def _found(
    shared: SharedTensor, columns: int, model: MachineModel, ranks: int, measured: Measured | None = None
) -> tuple[tuple[Candidate, ...], float]:
    """Return the candidates, and the forecast seconds of an iteration on one rank. Collective."""
    work, compact = shared.workloads(columns, measured)
    single = forecast(RankDistribution("all-gather", 1), compact, model).seconds.total
    return tuple(choose(work, model, ranks, compact=compact, fullest=shared.fullest)), single
