"""Tucker decompositions: HOOI, and the core tensor for factor matrices from HOSVD or ST-HOSVD.

HOOI (De Lathauwer, De Moor and Vandewalle, SIMAX 21(4), 2000) replaces each factor matrix in turn by the leading left
singular vectors of the tensor times all other factor matrices. Each rank computes the rows of that product that it
owns; the ranks sum small Gram matrices and all-gather new rows. If an error is given, trailing columns are dropped as
soon as it permits (Xiao and Yang, A rank-adaptive higher-order orthogonal iteration algorithm for truncated Tucker
decomposition, arXiv:2110.12564, 2021): they become zero, and leave the model at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.wording import parameter

from ..backend.device import Array
from ..backend.exchange import Machine
from ..backend.ops.solve import SolverBytes
from ..errors import InputError
from ..models.tucker import TuckerTensor
from ..operators.base import CoreOperator, in_turn
from ..operators.kept_rows import Compaction, GramOfEmpty
from ..operators.placement import Solving
from ..operators.products import Ttmc
from .driver import BaseMethod, MethodState
from .singular_vectors import DEPENDENT, ORTHONORMAL, LeadingRows, finding_bytes
from .tucker_params import Compression
from .updates import DivergedError

MOST_ROUNDING = 1e-6  # permitted rounding error of a fit
LEAST_ERROR = {
    "fp32": 1e-6,
    "fp64": 2e-7,
}  # the smallest `error` that factor matrices or their spectra can resolve, roughly
FEW = 8  # products are in double precision if the error is below this multiple of their rounding error
SPARED = 3e-7  # part of `error` that the truncation of spectra leaves for rounding
RANDOM = "random"  # value of `init` for random factor matrices
PARTS_ROUNDED = 32  # number of terms whose sum typically has a rounding error of one unit in the last place


def compaction(wanted: Compression) -> Compaction | None:
    """Return how hypersparse modes are compacted: factor matrices that are final or fixed keep all rows."""
    return Compaction(GramOfEmpty(), (*wanted.fixed, *wanted.uncompressed)) if wanted.method == "hooi" else None


class TuckerMethod(BaseMethod[CoreOperator]):
    """HOOI, HOSVD or ST-HOSVD; see `Method`.

    The state consists of an array and a series:

    core : (R_0, R_1, ...)
        The tensor times the transposed factor matrices.
    fit
        ``1 - ||X - M|| / ||X||`` after each iteration, accurate to `MOST_ROUNDING`. If products in the factor matrices'
        precision do not suffice, the core is computed in double precision, as the best core for the rounded factor
        matrices.

    Parameters
    ----------
    operator : CoreOperator
        Holds the initial factor matrices. Their columns are orthonormalised before the first iteration.
    wanted : Compression
        After `Compression.of_shape`. With the methods "hosvd" and "sthosvd" the factor matrices are final: a single
        iteration computes the core.
    own_start : sequence of (I_n, R_n) arrays, optional
        Initial ("hooi") or final factor matrices. They satisfy the error, if one is given.
    """

    norm = 2

    def __init__(
        self,
        operator: CoreOperator,
        wanted: Compression,
        own_start: Sequence[Floats] | None = None,
    ) -> None:
        self.operator, self.name, self.own_start, self._most = operator, wanted.method, own_start, wanted.error
        self.wanted, self._modes = wanted, wanted.solved(operator.order)
        self._leading = LeadingRows(operator)
        self._noise = product_noise(operator)
        self._rounds = operator.summed > 1 and operator.options.precision == "fp32"
        self.restart()

    def restart(self, state: MethodState | None = None) -> None:
        """See `Restartable`."""
        self.state = state or MethodState({"core": np.zeros(self.operator.ranks)}, {"fit": []})
        self._whitenings: dict[int, Array] | None = None
        self._shrank = False  # whether the last iteration dropped columns

    @property
    def rank(self) -> list[int]:
        """See `Method`: the columns that are left."""
        return [len(columns) for columns in self._columns]

    @property
    def _columns(self) -> list[NDArray[np.intp]]:
        """The columns of each factor matrix that are left."""
        core = self.state.arrays["core"]
        if self._most is None or not self.state.iterations:
            return [np.arange(rank) for rank in core.shape]
        slices = (np.moveaxis(core, mode, 0).reshape(core.shape[mode], -1) for mode in range(core.ndim))
        return [np.flatnonzero(each.any(axis=1)) for each in slices]

    @property
    def facts(self) -> dict[str, object]:
        """See `Method`: the constraints."""
        return self.wanted.facts

    def started(self, factors: Sequence[Floats], how: str | None) -> Sequence[Floats]:
        """See `Method`: accepts any matrices; their columns are orthonormalised later."""
        if self.wanted.fixed and how is None:
            cause = f"the start is random; pass the fixed matrices as {parameter('init')}"
            raise InputError(f"{parameter('fixed_modes')} {', '.join(map(str, self.wanted.fixed))}: {cause}")
        whole, dtype = self.wanted.uncompressed, self.operator.options.dtype
        return [np.eye(len(each), dtype=dtype) if mode in whole else each for mode, each in enumerate(factors)]

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        operator, state, order = self.operator, self.state, self.operator.order
        first = state.mode
        self._shrank = False
        if not state.iterations and not first:
            self._begin()
        modes = [mode for mode in self._modes if mode >= first] if self.name == "hooi" else self._modes[-1:]
        for mode in modes:
            if mode > modes[0] and stop() and self.name == "hooi":
                state.mode = mode
                return False
            exact = self._in_double(mode)
            result = operator.compute(Ttmc(exact), mode, in_turn(mode, order, self._modes))
            if self.name == "hooi":
                with operator.span("solve", mode):
                    self._solve(mode, self._whitened(mode, result))
                operator.publish(mode)
        self._finish(result, exact)
        return True

    def _solve(self, mode: int, matrix: Array) -> None:
        """Replace the owned rows of a factor matrix by leading left singular vectors of `matrix`."""
        self._leading.find(mode, matrix)
        if self._most is not None:
            self._truncate(mode, matrix, self._most)

    def _truncate(self, mode: int, matrix: Array, error: float) -> None:
        """Set the trailing columns of a factor matrix to zero that the error does not require."""
        operator, rank = self.operator, self.operator.ranks[mode]
        device, rows = operator.machine.device, self._leading.buffer(mode, rank)
        rows[...] = operator.owned(mode)
        products = device.xp.ascontiguousarray(device.xp.matmul(matrix.T, rows))
        operator.reduce(products, "sum", mode)
        parts = device.to_host((products / operator.norm) ** 2).sum(axis=0)
        captured = np.cumsum(operator.machine.comm.bcast(parts))
        enough = captured >= 1 - error**2
        count = int(np.argmax(enough)) + 1 if enough.any() else rank
        self._shrank |= bool(parts[count:].any())
        operator.owned(mode)[:, count:] = 0

    def _whitened(self, mode: int, ttmc: Array) -> Array:
        """Return a TTMc as if the columns of all fixed factor matrices were orthonormal."""
        ranks, xp = [rank for m, rank in enumerate(self.operator.ranks) if m != mode], self.operator.machine.device.xp
        if self._whitenings is None:
            self._whitenings = self._make_whitenings()
        for m, change in self._whitenings.items():
            axis = 1 + m - (m > mode)
            tensor = xp.tensordot(ttmc.reshape(len(ttmc), *ranks), change, (axis, 0))
            ttmc = xp.ascontiguousarray(xp.moveaxis(tensor, -1, axis)).reshape(ttmc.shape)
        return ttmc

    def _make_whitenings(self) -> dict[int, Array]:
        """Return the inverse square roots of the Gram matrices of fixed factor matrices. Collective."""
        device, result = self.operator.machine.device, dict[int, Array]()
        for mode in self.wanted.fixed:
            values, vectors = np.linalg.eigh(self._gram(mode))
            nonzero = values > DEPENDENT * values[-1]
            roots = np.sqrt(np.where(nonzero, values, np.inf))
            result[mode] = device.to_device(np.ascontiguousarray(vectors / roots @ vectors.T))
        return result

    def _gram(self, mode: int) -> NDArray[np.float64]:
        """Return the Gram matrix of a factor matrix, the same on all ranks. Collective."""
        machine = self.operator.machine
        gram: NDArray[np.float64] = machine.comm.bcast(machine.device.to_host(self._leading.gram_of_factor(mode)))
        return gram

    def _in_double(self, mode: int) -> bool:
        """Return whether TTMc should use double precision from the start, given the fit so far.

        The last mode's TTMc yields the core. That of other modes only yields factor matrices, whose rounding errors are
        orthogonal to the error of the decomposition and so matter less.
        """
        fits = self.state.series["fit"]
        error = 1 - fits[-1] if fits else self._most
        if self.name != "hooi" or error is None:
            return self.name != "hooi"
        if mode == self._modes[-1] and self._uncertain(1 - error):
            return True
        return error < FEW * self._noise or (self._most is not None and self._noise**2 > SPARED * error)

    def _uncertain(self, fit: float) -> bool:
        """Return whether rounded products may change this fit by more than `MOST_ROUNDING`; likelier near 1."""
        error = max(0.0, 1 - fit)
        return self._noise * (1 - error**2) > MOST_ROUNDING * error

    def _begin(self) -> None:
        """Orthonormalise the columns of all factor matrices."""
        for mode in self._modes:
            rank = self.operator.ranks[mode]
            with self.operator.span("solve", mode):
                rows = self._leading.buffer(mode, rank)
                rows[...] = self.operator.owned(mode)
                self._leading.orthonormalise(mode, rows)
                self.operator.owned(mode)[...] = rows
            self.operator.publish(mode)

    def _finish(self, ttmc: Array, exact: bool) -> None:
        """Compute core and fit from the last mode's TTMc rows; `exact`: they were computed in double precision."""
        operator, state, last = self.operator, self.state, self._modes[-1]
        core, fit = self._core(ttmc, exact)
        if not exact and self._uncertain(fit):
            if self._rounds:
                ttmc = operator.compute(Ttmc(double=True), last, in_turn(last, operator.order, self._modes))
            core, fit = self._core(ttmc, True)
        state.arrays["core"] = core
        state.series["fit"].append(fit)
        state.mode = 0
        state.iterations += 1

    def _core(self, ttmc: Array, exact: bool) -> tuple[NDArray[np.float64], float]:
        """Return the core and the fit; an `exact` core is the best one for the rounded factor matrices."""
        operator, last = self.operator, self._modes[-1]
        with operator.span("solve", last):
            whole = core_of(operator, ttmc, self._leading.buffer(last, operator.ranks[last]), last)
            if not np.all(np.isfinite(whole)):
                raise DivergedError(f"iteration {self.state.iterations + 1}: the core tensor is not finite")
            core = self._best(whole) if exact or self.wanted.fixed else whole
        captured = float(np.sum(whole / operator.norm * (core / operator.norm)))  # fraction of the squared norm
        return core, 1 - float(np.sqrt(max(0.0, 1 - captured)))

    def _best(self, whole: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the core of least error: `whole` times the inverses of the factor matrices' Gram matrices."""
        core = whole
        for mode in range(whole.ndim):
            if mode in self.wanted.uncompressed:
                continue
            rows, gram = np.moveaxis(core, mode, 0), self._gram(mode)
            solved = np.linalg.pinv(gram, hermitian=True) @ rows.reshape(len(rows), -1)
            core = np.moveaxis(solved.reshape(rows.shape), 0, mode)
        return np.ascontiguousarray(core)

    def settled(self, tol: float) -> bool:
        """See `Method`: whether the fit changed by less than `tol`; for HOSVD, whether the core is computed."""
        if self.name in ("hosvd", "sthosvd"):
            return self.state.iterations > 0
        return not self._shrank and super().settled(tol)

    def merit(self) -> float:
        """See `Restartable`: the fit."""
        fits = self.state.series["fit"]
        return fits[-1] if fits else -np.inf

    def model(self) -> TuckerTensor:
        """See `Method`: each column's largest entry is positive."""
        state, operator = self.state, self.operator
        if self.on_device and not operator.machine.device.on_host:
            return self._model_on_device()
        columns, core = self._columns, state.arrays["core"]
        rows = [operator.rows(mode).take(kept, axis=1) for mode, kept in enumerate(columns)]
        core = np.ascontiguousarray(core[np.ix_(*columns)])
        result = TuckerTensor(core, rows, state.series["fit"], state.converged).arrange(self.wanted.fixed)
        result.factors = [operator.expand(mode, rows) for mode, rows in enumerate(result.factors)]
        return result

    def _model_on_device(self) -> TuckerTensor:
        """Return the model of matrices in device memory."""
        state, operator, factors, columns = self.state, self.operator, list[Array](), self._columns
        device, xp, core = operator.machine.device, operator.machine.device.xp, state.arrays["core"][np.ix_(*columns)]
        for mode in range(operator.order):
            stored = operator.stored(mode)[:, : len(columns[mode])]
            if mode in self.wanted.fixed:
                factors.append(stored.copy())
                continue
            largest = xp.take_along_axis(stored, xp.abs(stored).argmax(axis=0)[None], axis=0)[0]
            signs = xp.where(largest < 0, -1, 1).astype(stored.dtype)
            factors.append(xp.ascontiguousarray(stored * signs))
            core = np.moveaxis(np.moveaxis(core, mode, -1) * device.to_host(signs), -1, mode)
        return TuckerTensor(np.ascontiguousarray(core), factors, state.series["fit"], state.converged)


def product_noise(operator: CoreOperator) -> float:
    """Return the relative rounding error of a core's squared norm, due to rounded products and factor matrices."""
    eps, order = float(np.finfo(operator.options.dtype).eps), operator.order
    return eps * (order + operator.summed / PARTS_ROUNDED) + order * ORTHONORMAL * max(operator.ranks)


def core_of(operator: CoreOperator, ttmc: Array, buffer: Array, mode: int) -> NDArray[np.float64]:
    """Return the tensor times all transposed factor matrices, from a mode's TTMc. Collective.

    `buffer`, (owned, R_n) float64, is overwritten with the owned rows of the mode's factor matrix.
    """
    device, ranks = operator.machine.device, operator.ranks
    operator.wait_comm()
    buffer[...] = operator.owned(mode)
    core = device.xp.ascontiguousarray(device.xp.matmul(ttmc.T, buffer))
    operator.reduce(core, "sum", mode)
    others = [rank for m, rank in enumerate(ranks) if m != mode]
    whole = operator.machine.comm.bcast(device.to_host(core)).reshape(*others, ranks[mode])
    return np.array(np.moveaxis(whole, -1, mode), np.float64, order="C")


def consistency(core: NDArray[np.float64]) -> float:
    """Return the core consistency in percent: the agreement with a CP core, which has ones on its superdiagonal."""
    rank = core.shape[0]
    ideal = np.zeros(core.shape)
    ideal[(np.arange(rank),) * core.ndim] = 1
    off = float(np.sum(np.square(core - ideal)))
    return 100 * (1 - off / float(rank))


def attainable(error: float, precision: str) -> float:
    """Return the error at which to truncate spectra so that the result has at most `error` after rounding.

    Raises
    ------
    InputError
        If the precision does not permit so small an error.
    """
    least = LEAST_ERROR[precision]
    if error < least:
        finer = f"; precision fp64 permits {LEAST_ERROR['fp64']:g}" if precision == "fp32" else ""
        raise InputError(f"error {error:g}: precision {precision} permits errors of at least {least:g}{finer}")
    return error - min(SPARED, least / 4)


def solving_bytes(machine: Machine, ranks: Sequence[int], shape: Sequence[int]) -> Solving:
    """Return a function of (rows, rank): the device memory that a Tucker decomposition needs in addition to TTMc."""
    every = int(np.prod([float(rank) for rank in ranks]))

    def takes(count: int, rank: int) -> SolverBytes:
        return finding_bytes(machine, count, rank, every // rank, shape)

    return takes
