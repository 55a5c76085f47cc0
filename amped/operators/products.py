"""The products of sparse tensors: MTTKRP, Phi, mapped MTTKRP, row systems and TTMc."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from ..backend.device import NOTHING, Array, Device
from ..backend.losses import Maps
from ..backend.ops.mapped import MAPPED, MappedProvider
from ..backend.ops.mttkrp import MTTKRP, Kernel, Operands, Shard
from ..backend.ops.phi import PHI, Groups, PhiParams, PhiProvider
from ..backend.ops.row_systems import ROW_SYSTEMS, RowSystemsProvider, system_width
from ..backend.ops.ttmc import TTMC, TtmcProvider, width
from .modes import ModePlan, Product

FLOOR = 1e-10  # lower bound of divisors while Phi is timed
NO_FORECAST = "decompositions for losses are not predicted"


@dataclass(frozen=True)
class Mttkrp(Product[Kernel]):
    """The MTTKRP; `double`: see `Operator.mttkrp`."""

    double: bool = False

    op, label, reading, timed = MTTKRP, "MTTKRP", "", True

    def suits(self, provider: Kernel, kernel: Kernel, mode: ModePlan) -> bool:
        return True

    def provider(self, device: Device, kernel: Kernel, mode: ModePlan) -> Kernel:
        """See `Planned`: the kernel itself."""
        return kernel

    def bytes(self, kernel: Kernel, mode: ModePlan, nnz: int) -> int:
        return kernel.bytes(mode.share, nnz).running

    def run(self, shard: Shard, mode: ModePlan, operands: Operands, new: slice = NOTHING, data: object = None) -> None:
        shard.kernel.run(shard, operands.factors, operands.out, new, operands.scratch, self.double)


@dataclass(frozen=True)
class NoProduct(Product[Kernel]):
    """No sums: the shards are used only by the additional computations of a plan."""

    op, label, output, reading, sums = MTTKRP, "row problems", "output", "", False
    doubt = "decompositions of observed elements are not predicted"

    def suits(self, provider: Kernel, kernel: Kernel, mode: ModePlan) -> bool:
        return True

    def provider(self, device: Device, kernel: Kernel, mode: ModePlan) -> Kernel:
        """See `Planned`: the kernel itself."""
        return kernel

    def width(self, mode: ModePlan) -> int:
        return 1

    columns = width

    def prepare(self, kernel: Kernel, mode: ModePlan) -> None:
        """See `Product`: compiles nothing."""

    def bytes(self, kernel: Kernel, mode: ModePlan, nnz: int) -> int:
        return 0

    def run(self, shard: Shard, mode: ModePlan, operands: Operands, new: slice = NOTHING, data: object = None) -> None:
        """See `Product`: computes nothing."""


@dataclass(frozen=True)
class LossOnly(NoProduct):
    """No sums by rows: a loss of a dense tensor and its gradient are computed; see `backend.ops.loss_tiles`."""

    label, doubt = "loss", NO_FORECAST


@dataclass(frozen=True)
class Phi(Product[PhiProvider]):
    """The Phi of CP-APR, and log-likelihoods; see `backend.ops.phi`.

    Parameters
    ----------
    floor : float
        Lower bound of divisors.
    skip : int32 device array, optional
        See `backend.ops.phi.PhiParams`.
    groups : Groups, optional
        For several models: the groups to compute; other columns remain unchanged.
    """

    floor: float = FLOOR
    skip: Array = None
    groups: Groups | None = None

    op, label, reading = PHI, "Phi", "Phi requires gather 'full'"
    timed, replicated = True, True
    doubt = "the number of updates per outer iteration of CP-APR varies"
    tuning_key = MappingProxyType({"phi": True})

    def suits(self, provider: PhiProvider, kernel: Kernel, mode: ModePlan) -> bool:
        return not provider.multi_model and provider.suits(kernel, mode.share)

    @property
    def _params(self) -> PhiParams:
        return PhiParams(self.floor, self.skip, self.groups)

    def prepare(self, kernel: Kernel, mode: ModePlan) -> None:
        super().prepare(kernel, mode)
        self.of(kernel, mode).prepare(kernel, mode.share)

    def bytes(self, kernel: Kernel, mode: ModePlan, nnz: int) -> int:
        usual = kernel.bytes(mode.share, nnz).running
        return max(usual, self.of(kernel, mode).bytes(kernel, mode.share, nnz))

    def run(self, shard: Shard, mode: ModePlan, operands: Operands, new: slice = NOTHING, data: object = None) -> None:
        self.of(shard.kernel, mode).run(shard, operands, self._params, new)

    def copy(self, source: Array, target: Array, kernel: Kernel, mode: ModePlan) -> None:
        self.of(kernel, mode).copy(source, target, self._params, mode.share.dtype)

    def add(self, shard: Shard, mode: ModePlan, operands: Operands, total: Array) -> None:
        """See `Summed`: adds ``sum x log(max(m, floor))``, m being the model's value at a nonzero."""
        self.of(shard.kernel, mode).add_logs(shard, operands, self._params, total)


@dataclass(frozen=True)
class Mapped(Product[MappedProvider]):
    """A mapped MTTKRP, for the gradient of any loss; see `backend.ops.mapped`.

    Parameters
    ----------
    maps : Maps
    total : (1,) float64 device array, optional
        The sum of `maps.value` over the nonzeros is added to it.
    """

    maps: Maps
    total: Array = None

    op, label, reading = MAPPED, "gradient", "gradients require gather 'full'"
    timed, doubt = True, NO_FORECAST
    tuning_key = MappingProxyType({"mapped": True})

    def suits(self, provider: MappedProvider, kernel: Kernel, mode: ModePlan) -> bool:
        return provider.suits(kernel, mode.share)

    def prepare(self, kernel: Kernel, mode: ModePlan) -> None:
        """See `Product`; the loss is added up in the first mode."""
        super().prepare(kernel, mode)
        self.of(kernel, mode).prepare(kernel, mode.share, self.maps, mode.mode == 0)

    def bytes(self, kernel: Kernel, mode: ModePlan, nnz: int) -> int:
        return max(kernel.bytes(mode.share, nnz).running, self.of(kernel, mode).bytes(kernel, mode.share, nnz))

    def run(self, shard: Shard, mode: ModePlan, operands: Operands, new: slice = NOTHING, data: object = None) -> None:
        self.of(shard.kernel, mode).run(shard, operands, self.maps, self.total, new)


class SeveralPhi(Phi):
    """Phi of several models, whose columns form groups."""

    label, timed = "Phi of several models", False

    def suits(self, provider: PhiProvider, kernel: Kernel, mode: ModePlan) -> bool:
        return provider.multi_model and provider.suits(kernel, mode.share)


@dataclass(frozen=True)
class RowSystems(Product[RowSystemsProvider]):
    """Gradient, second derivatives and objective of each row, for any loss; see `backend.ops.row_systems`.

    The output has `system_width` columns.

    Parameters
    ----------
    maps : Maps
    scaled : bool
        Whether the last mode is that of weights, as a part of the model; see `partitioner.tensors.observed`.
    """

    maps: Maps
    scaled: bool = False

    op, label, keeps = ROW_SYSTEMS, "row systems", "rows of shards"
    reading, doubt = "row systems require gather 'full'", NO_FORECAST

    def refusal(self, kernels: str) -> str:
        return f"computes no row systems; use {kernels}"

    @property
    def curved(self) -> bool:
        """Whether second derivatives are computed."""
        return self.maps.curve is not None

    def suits(self, provider: RowSystemsProvider, kernel: Kernel, mode: ModePlan) -> bool:
        return provider.suits(kernel, mode.share, self.maps)

    def width(self, mode: ModePlan) -> int:
        """See `Product`: the mode of the weights is never computed."""
        if (self.maps.weighted or self.scaled) and mode.mode == len(mode.share.lengths):
            return 1
        return system_width(mode.rank, self.curved)

    columns = width

    def prepare(self, kernel: Kernel, mode: ModePlan) -> None:
        super().prepare(kernel, mode)
        self.of(kernel, mode).prepare(kernel, mode.share, mode.rank, self.maps)

    def bytes(self, kernel: Kernel, mode: ModePlan, nnz: int) -> int:
        own = self.of(kernel, mode).bytes(kernel, mode.share, mode.rank, self.curved, nnz)
        return max(kernel.bytes(mode.share, nnz).running, own.running)

    def kept(self, mode: ModePlan) -> int:
        args = mode.share, mode.rank, self.curved, mode.nnz
        return max(self.of(kernel, mode).bytes(kernel, *args).kept for kernel in mode.kernels)

    def codes(self, mode: ModePlan) -> int:
        """See `Planned`: its code, and the compiler of formulas, which are compiled in each process."""
        return 4

    def make(self, shard: Shard, mode: ModePlan) -> object:
        """See `Product`: the positions of the shard's rows."""
        return self.of(shard.kernel, mode).make(shard, mode.share)

    def run(self, shard: Shard, mode: ModePlan, operands: Operands, new: slice = NOTHING, data: object = None) -> None:
        self.of(shard.kernel, mode).run(data, shard, operands, mode.rank, self.maps, new)


@dataclass(frozen=True)
class Ttmc(Product[TtmcProvider]):
    """TTMc: the tensor times the factor matrices of all modes but one; `double`: see `CoreOperator`."""

    double: bool = False

    op, label, output = TTMC, "Tucker decomposition", "TTMc output"
    reading = "Tucker decompositions require gather 'full'"
    doubt = "Tucker decompositions are not predicted"

    def suits(self, provider: TtmcProvider, kernel: Kernel, mode: ModePlan) -> bool:
        return provider.suits(kernel, mode.share)

    def width(self, mode: ModePlan) -> int:
        return width(mode.inputs)

    columns = width

    def summed(self, mode: ModePlan) -> int:
        return self.of(mode.kernels[0], mode).summed

    def prepare(self, kernel: Kernel, mode: ModePlan) -> None:
        """See `Product`: does not compile the kernel's own code, which is not used."""
        self.of(kernel, mode).prepare(mode.share, mode.inputs)

    def bytes(self, kernel: Kernel, mode: ModePlan, nnz: int) -> int:
        return self.of(kernel, mode).bytes(mode.share, mode.inputs, nnz)

    def run(self, shard: Shard, mode: ModePlan, operands: Operands, new: slice = NOTHING, data: object = None) -> None:
        provider = self.of(shard.kernel, mode)
        factors, _, out, scratch = operands
        provider.run(shard, factors, mode.inputs, out, new, scratch, self.double)
