"""One MTTKRP over all ranks: place the nonzeros, stream what is not resident, compute, exchange.

Algorithm 1 of AMPED: each rank computes the output rows of its own shards for one mode after the other, from its
own copy of all factor matrices, and the ranks all-gather the new rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from partitioner.shards import Cut, even_offsets

from ..backend import ATOMIC, PERMUTED, Backend, Shard, choose
from ..backend.base import DEVICES, GATHERS, NOTHING, Array, DeviceName, GatherName
from ..backend.rows import block_rows
from ..errors import InputError
from ..parallel.exchange import Block, Exchange, agree, connect
from ..parallel.mpi import Comm, Reduction, together
from ..parallel.recorder import HERE
from .placement import PLACEMENTS, ModePlan, PlacementName, Plan, make_plan
from .source import Source
from .stream import Make, Step, Stream

Precision = Literal["fp32", "fp64"]
DTYPES: dict[str, np.dtype[Any]] = {"fp32": np.dtype(np.float32), "fp64": np.dtype(np.float64)}
RANGES = {"float32": 1e30, "float64": 1e140}  # of the largest value, and one over the smallest it may be
TUNING_RUNS, MOST_TUNING_RUNS, TUNING_SECONDS = 3, 10, 0.05  # the fastest counts: more runs where they are short
RECUTS = 2
UNEVEN = 0.01  # of a sweep's seconds, that a rank may compute longer than all on average before modes are cut anew
LEAST_SWEEP = 5e-4  # seconds: of shorter ones it is not known well enough what they take
LEAST_MESSAGE = 1 << 20  # bytes of the largest block: smaller ones wait for the next shard

Solve = Callable[[Array, Array], None]


@dataclass(frozen=True)
class Options:
    """How a run computes. Every choice gives the same result up to rounding.

    Attributes
    ----------
    device : {"auto", "cpu", "cuda"}
    precision : {"fp32", "fp64"}
        Of values and factor matrices; sums of many terms and small matrices are in double precision always.
    placement : {"auto", "resident", "stream"}
        Whether nonzeros stay in device memory.
    kernel : str
        "auto" times the backend's kernels on the real nonzeros; otherwise the name of one. "permuted" keeps one copy
        of the nonzeros in device memory, not one for each mode, and is slower.
    deterministic : bool
        Bitwise equal results from run to run on the same ranks: nothing is chosen by timing.
    gather : {"full", "fp16", "bf16"}
        How a GPU reads rows of factor matrices, of precision fp32: as they are, or from copies rounded to 16 bits. A
        number then has a relative error of up to 5e-4 (fp16, to 65504) or 4e-3 (bf16); sums are as precise as ever.
    device_memory : int, optional
        Bytes of device memory to use; by default what is free.
    threads : int, optional
        Host threads of a rank; by default its fair share of the cores.
    """

    device: DeviceName = "auto"
    precision: Precision = "fp32"
    placement: PlacementName = "auto"
    kernel: str = "auto"
    deterministic: bool = False
    device_memory: int | None = None
    threads: int | None = None
    gather: GatherName = "full"

    def __post_init__(self) -> None:
        """Raise `InputError` if a choice is none of those above."""
        choices = {"device": DEVICES, "precision": tuple(DTYPES), "placement": PLACEMENTS, "gather": GATHERS}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise InputError(f"{name} {getattr(self, name)!r}: expected {' or '.join(known)}")
        if self.kernel == PERMUTED and self.placement == "stream":
            raise InputError(f"kernel {PERMUTED!r} keeps its nonzeros on the device: not with placement 'stream'")
        if self.gather != "full" and self.precision != "fp32":
            raise InputError(f"gather {self.gather!r} is for precision 'fp32'")
        if self.gather != "full" and self.kernel in (ATOMIC, PERMUTED):
            raise InputError(
                f"kernel {self.kernel!r} reads factor matrices as they are: not with gather {self.gather!r}"
            )
        for name in ("threads", "device_memory"):
            count = getattr(self, name)
            if count is not None and not count >= 1:
                raise InputError(f"{name.replace('_', ' ')} {count}: expected at least 1")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of `precision`."""
        return DTYPES[self.precision]


class Engine:
    """MTTKRP of one tensor, for one number of columns, on all ranks. Making one and its methods are collective.

    Attributes
    ----------
    shape : tuple of int
    rank : int
        Columns of the factor matrices.
    norm : float
        Of the tensor.
    factors : list of (I_n, stride) device arrays
        All factor matrices, on every rank; columns from `rank` on are zero.
    plan : Plan
        What this rank holds.
    kernels : list of str
        The kernel chosen for each mode.
    clock : Clock
        Seconds of `copy`, `compute`, `exchange` and `solve` for each mode.
    """

    def __init__(
        self,
        source: Source,
        rank: int,
        comm: Comm,
        options: Options | None = None,
        backend: Backend | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        """Load this rank's share of `source`; `backend` and `exchange` follow from the options unless given."""
        self.options = options = options or Options()
        self.comm = comm
        _check_range(source, options.dtype)
        self.backend = backend or together(comm, lambda: choose(options.device, comm, options.threads))
        self.exchange = exchange or connect(self.backend, comm)
        self.shape, self.norm, self.rank = source.shape, source.norm, rank
        self.clock = self.backend.clock()
        cuts = [source.cut(mode, comm.size) for mode in range(self.order)]
        self._memory = options.device_memory or self.backend.memory(comm.local_size)
        self.plan = self._planned(source, cuts)
        stride, dtype = self.plan.stride, self.plan.dtype
        self.factors = [self.backend.zeros((length, stride), dtype) for length in self.shape]
        narrow = options.gather != "full"
        self._narrow = [self.backend.zeros(factor.shape, np.uint16) for factor in self.factors] if narrow else []
        self._stale = set(range(self.order))  # factor matrices that are newer than their copies in 16 bits
        self._allocate()
        self._stream = Stream(self.plan, source, self.backend, self.clock, self._choose)
        self._even_out(source, cuts)
        self.kernels = self._stream.kernels
        self._blocks = list(map(self._agree, self.plan.modes, self._stream.steps))
        self._stale = set(range(self.order))
        self.clock.collect()

    def _planned(self, source: Source, cuts: Sequence[Cut]) -> Plan:
        comm, options = self.comm, self.options
        loading = source.loading(comm.size, options.dtype, self.backend.name == "cpu")
        return together(
            comm,
            lambda: make_plan(
                cuts, comm.rank, self.rank, options.dtype, source.value_range, self.backend, loading,
                kernel=options.kernel, deterministic=options.deterministic, gather=options.gather,
                placement=options.placement, memory=self._memory, local_ranks=comm.local_size,
                overlaps=self.exchange.overlaps,
            ),
        )  # fmt: skip

    def _allocate(self) -> None:
        """Make room for the rows that this rank computes."""
        self._outs: list[Array] = []
        self._sums: list[Array] = []  # none is left that keeps memory
        rows = max(m.rows.stop - m.rows.start for m in self.plan.modes)
        out = self.backend.empty((rows, self.plan.stride), np.float64)
        # Views are made once: a GPU waits for the host when a small tensor's mode begins.
        self._outs = [out[: m.rows.stop - m.rows.start] for m in self.plan.modes]
        self._owned = [self.factors[m.mode][m.owned, : self.rank] for m in self.plan.modes]
        first = [m.owned.start - m.rows.start for m in self.plan.modes]
        self._sums = [o[f : f + len(t), : self.rank] for o, f, t in zip(self._outs, first, self._owned, strict=True)]

    def _even_out(self, source: Source, cuts: list[Cut]) -> None:
        """Load modes anew that ranks computed for unequal times, cut where the times would have been equal."""
        for _ in range(RECUTS):
            uneven = self._uneven()
            if not uneven:
                return
            for mode, targets in uneven.items():
                cuts[mode] = source.cut(mode, self.comm.size, targets)
            self.plan = self._planned(source, cuts)
            self._allocate()
            self._stream.load(self.plan, source, uneven)

    def _uneven(self) -> dict[int, NDArray[np.int64]]:
        """Return where modes are to be cut instead, if ranks computed them for unequal times. Collective.

        A nonzero takes as long as its row is long and its factor rows are near: equal numbers are not equal times.
        """
        chosen = self.options.kernel == "auto" and not self.options.deterministic
        if self.comm.size == 1 or not self.backend.steady or not chosen:
            return {}
        if any(self.comm.allgather(bool(self.plan.slot))):  # what is streamed waits for its link
            return {}
        mine = [self._seconds([list(self._stream.shards(mode))], mode)[0] for mode in range(self.order)]
        seconds = np.array(self.comm.allgather(mine)).T
        slowest, mean = seconds.max(axis=1), seconds.mean(axis=1)
        if mean.sum() < LEAST_SWEEP or slowest.sum() <= (1 + UNEVEN) * mean.sum():
            return {}
        modes = np.flatnonzero(slowest > (1 + UNEVEN) * mean).tolist()
        return {mode: even_offsets(self.plan.modes[mode].cut.nonzeros, seconds[mode]) for mode in modes}

    def _choose(self, mode: ModePlan, make: Make) -> tuple[str, Shard | None]:
        """Choose a kernel by timing the candidates on a mode's first shard; a single one is compiled, no more."""
        names = mode.share.kernels
        if len(names) == 1:
            self._compute(make(names[0], 1), mode.mode, NOTHING)
            self.backend.synchronize()
            return names[0], None
        best, fastest, kept = float("inf"), names[0], None
        for name in names:
            shard = make(name, mode.nnz)
            if kept is None or shard.nbytes <= mode.room(self.backend, shard.nnz):
                best, cost = self._costs(best, kept, shard, mode)
                if cost < best:
                    best, fastest, kept = cost, name, shard
            del shard  # there is memory for the best and another one
        return fastest, kept

    def _costs(self, best: float, kept: Shard | None, shard: Shard, mode: ModePlan) -> tuple[float, float]:
        """Return the costs of the best shard so far, and of the next one."""
        if not mode.resident:
            return best, shard.nbytes  # what is streamed is copied for longer than it is computed
        if self.backend.steady:
            return best, self._seconds([[shard]], mode.mode)[0]
        if kept is None:
            return best, 0.0  # it is timed with the next one
        again, cost = self._seconds([[kept], [shard]], mode.mode)  # the machine may be slower than it was then
        return again, cost

    def _seconds(self, candidates: Sequence[Sequence[Shard]], mode: int) -> list[float]:
        """Return how long each candidate's shards take, the fastest of several runs, all in turn."""
        rounds, limit = list[list[float]](), TUNING_SECONDS * len(candidates)
        while len(rounds) < TUNING_RUNS or (len(rounds) < MOST_TUNING_RUNS and np.sum(rounds) < limit):
            rounds.append([self._run(shards, mode) for shards in candidates])
        return [min(runs) for runs in zip(*rounds, strict=True)]

    def _run(self, shards: Sequence[Shard], mode: int) -> float:
        self.clock.collect()
        with self.clock.span("tune", mode):
            for shard in shards:
                self._compute(shard, mode, NOTHING)
        return self.clock.collect()["tune", mode]

    @property
    def order(self) -> int:
        """The number of modes."""
        return len(self.shape)

    def set_factor(self, mode: int, factor: NDArray[Any]) -> None:
        """Give every rank the (I_n, R) factor matrix of one mode, in host memory."""
        self.exchange.join()
        step = block_rows(self.rank)  # device memory has no room for a second matrix
        for b in range(0, len(factor), step):
            rows = np.ascontiguousarray(factor[b : b + step], self.plan.dtype)
            self.factors[mode][b : b + step, : self.rank] = self.backend.to_device(rows)
        self._stale.add(mode)

    def factor(self, mode: int) -> NDArray[Any]:
        """Return the (I_n, R) factor matrix of one mode in host memory."""
        self.exchange.join()
        return np.ascontiguousarray(self.backend.to_host(self.factors[mode])[:, : self.rank])

    def owned(self, mode: int) -> Array:
        """Return the rows of a factor matrix that this rank owns, as an (owned, R) view."""
        return self._owned[mode]

    def span(self, kind: str, mode: int) -> AbstractContextManager[None]:
        """Count the work queued within under `kind`."""
        return self.clock.span(kind, mode)

    def mttkrp(self, mode: int, solve: Solve | None = None) -> Array:
        """Compute the MTTKRP of one mode from the factor matrices of the others.

        Parameters
        ----------
        mode : int
        solve : callable, optional
            Called with blocks of owned rows of the MTTKRP as they are done, (rows, R) float64, and the same rows of the
            mode's factor matrix, to be written. They are sent to all ranks while others are computed.

        Returns
        -------
        (owned, R) float64 device array
            The rows that this rank owns; valid until the next call.
        """
        HERE.mode = mode
        self.exchange.join()
        shards = zip(self._stream.shards(mode), self._stream.steps[mode], strict=True)
        if not self._stream.steps[mode]:
            self._outs[mode].fill(0)
        for block in self._blocks[mode]:
            for shard, step in shards if block.last else islice(shards, block.shards):
                with self.clock.span("compute", mode):
                    self._compute(shard, mode, step.new)
            if block.last:
                self._add_split_rows(mode)
            if solve:
                rows = block.rows(self.comm.rank, self.plan.modes[mode].owned.start)
                solve(self._sums[mode][rows], self._owned[mode][rows])
                self._send(mode, block.begin, block.end)
        return self._sums[mode]

    def _agree(self, mode: ModePlan, steps: Sequence[Step]) -> list[Block]:
        """Agree with all ranks on the blocks of rows that are sent after some of the shards of a mode."""
        done = self.comm.allgather([min(max(step.done, mode.owned.start), mode.owned.stop) for step in steps])
        row = self.plan.stride * self.plan.dtype.itemsize
        return agree(done, mode.cut.rows, -(-LEAST_MESSAGE // row) if self.exchange.overlaps else None)

    def _compute(self, shard: Shard, mode: int, new: slice) -> None:
        self.backend.mttkrp(shard, self._inputs(mode), self._outs[mode], new)

    def _inputs(self, mode: int) -> list[Array]:
        """Return the input modes' factor matrices as the kernels read them."""
        if self._narrow:
            for m in self._stale - {mode}:
                self.backend.roundings[self.options.gather](self.factors[m], self._narrow[m])
            self._stale &= {mode}
        return [factor for m, factor in enumerate(self._narrow or self.factors) if m != mode]

    def _add_split_rows(self, mode: int) -> None:
        """Give the owner of each row that several ranks computed the sum of their parts."""
        share, out = self.plan.modes[mode], self._outs[mode]
        if share.any_row:
            with self.clock.span("exchange", mode):
                self.exchange.reduce_rows(out, share.cut.rows)
        split = share.cut.split_rows
        if not split.size:
            return
        with self.clock.span("exchange", mode):
            parts = self.backend.zeros((split.size, self.plan.stride), np.float64)
            head = int(share.cut.heads[self.comm.rank])
            if head >= 0:
                parts[int(np.searchsorted(split, head))] = out[0]
            self.exchange.reduce(parts, "sum")
            for k in np.flatnonzero((split >= share.owned.start) & (split < share.owned.stop)):
                out[int(split[k]) - share.rows.start] += parts[int(k)]

    def reduce(self, array: Array, reduction: Reduction, mode: int) -> NDArray[Any]:
        """Combine a small device array over the ranks and return it in host memory."""
        with self.clock.span("exchange", mode):
            self.exchange.reduce(array, reduction)
        return self.backend.to_host(array)

    def publish(self, mode: int) -> None:
        """All-gather the owned rows of a factor matrix."""
        rows = self.plan.modes[mode].cut.rows
        self._send(mode, rows[:-1], rows[1:])

    def _send(self, mode: int, begin: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        with self.exchange.aside(), self.clock.span("exchange", mode):
            self.exchange.gather_rows(self.factors[mode], begin, end)
        self._stale.add(mode)

    def synchronize(self) -> None:
        """Wait until all queued work is done."""
        self.exchange.join()
        self.backend.synchronize()

    def gathered(self, mode: int, rows: Array) -> NDArray[Any]:
        """All-gather owned rows, as `mttkrp` returns them, into a whole (I_n, R) matrix in host memory."""
        share = self.plan.modes[mode]
        whole = np.empty((self.shape[mode], self.rank), self.plan.dtype)
        whole[share.owned] = self.backend.to_host(rows)
        self.comm.all_gather_rows(whole, share.cut.rows[:-1], share.cut.rows[1:])
        return whole


def _check_range(source: Source, dtype: np.dtype[Any]) -> None:
    """Refuse values so large or small that their products, or the squares of their norm, are no numbers."""
    largest, limit = source.value_range.largest, RANGES[dtype.name]
    if not 1 / limit <= largest <= limit:
        advice = ": use precision fp64, or scale them" if dtype == np.float32 else ": scale them"
        raise InputError(f"values up to {largest:.3g} are beyond what {dtype} computes with{advice}")
