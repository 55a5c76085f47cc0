"""The plan of one rank's share of a mode, and the base classes of products that are computed from its shards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar, cast

from partitioner.shards.partition import Cut

from ..backend.device import NOTHING, Array, Device
from ..backend.ops.mttkrp import Kernel, Operands, Shard, Share
from ..backend.registry import Op

P = TypeVar("P")


@dataclass(frozen=True)
class ModePlan:
    """One rank's share of one mode."""

    mode: int
    rank: int  # columns of the mode's factor matrix
    cut: Cut  # how all ranks share the mode
    owned: slice  # the output rows that this rank owns
    share: Share  # the nonzeros that this rank computes
    product: Product[Any]  # the main computation
    extras: tuple[Planned[Any], ...] = ()  # additional computations from the same shards
    kernels: tuple[Kernel, ...] = ()  # candidates; the plan counts the first one's memory for shards
    # Providers that compute a product from a kernel's shards, by operation and kernel name; see `Planned.of`.
    providers: Mapping[tuple[Op[Any], str], object] = field(default_factory=dict)
    inputs: tuple[int, ...] = ()  # columns of the input modes' factor matrices
    resident: int = 0  # number of leading nonzeros of this rank that stay on the device
    parts: tuple[float, ...] = (1.0,)  # fractions of the nonzeros after which finished rows are exchanged
    spare: int = 0  # bytes of device memory by which its shards may exceed the planned size

    @property
    def nnz(self) -> int:
        """Nonzeros of this rank."""
        return self.share.nnz

    @property
    def rows(self) -> slice:
        """The output rows that this rank computes: `owned`, preceded by a row shared with an earlier rank, if any."""
        return self.share.rows

    @property
    def streamed(self) -> int:
        """Nonzeros that are copied in for each pass."""
        return self.nnz - self.resident

    @property
    def any_row(self) -> bool:
        """Whether its nonzeros are those of mode 0's copy and so may belong to any row."""
        return self.share.column > 0

    @property
    def width(self) -> int:
        """The number of columns of the output in memory, including padding."""
        return self.product.width(self)

    @property
    def columns(self) -> int:
        """The number of columns of the output without padding."""
        return self.product.columns(self)

    @property
    def computed(self) -> tuple[Planned[Any], ...]:
        """All computations from its shards."""
        return self.product, *self.extras

    def shard_bytes(self, nnz: int, streamed: bool = False) -> int:
        """Return an upper bound of the bytes of shards with `nnz` nonzeros."""
        return self.kernels[0].bytes(replace(self.share, streamed=streamed), nnz).shard

    def making_bytes(self, nnz: int) -> int:
        """Return the temporary memory for building a shard: the maximum over the kernels."""
        return max(kernel.bytes(self.share, min(self.nnz, nnz)).making for kernel in self.kernels)

    def running_bytes(self, nnz: int) -> int:
        """Return the scratch memory for computing a shard: the maximum over the kernels."""
        return max(self.running(kernel, min(self.nnz, nnz)) for kernel in self.kernels)

    def running(self, kernel: Kernel, nnz: int) -> int:
        """Return the scratch memory for computing a kernel's shard."""
        return max(each.bytes(kernel, self, nnz) for each in self.computed)

    def shard_limit(self, nnz: int, streamed: bool = False) -> int:
        """Return the largest permitted size of a shard with `nnz` nonzeros."""
        return self.shard_bytes(nnz, streamed) + self.spare * nnz // max(1, self.nnz)


class Planned(Generic[P]):
    """A computation from the shards of MTTKRP kernels by providers of an operation; plans reserve memory for it.

    Attributes
    ----------
    op : Op
    label : str
        Name in messages.
    reading : str
        Error message if 16-bit copies of factor matrices are requested; empty if they are supported.
    keeps : str
        Name of its memory in addition to the shards; empty if it needs none.
    instead : str
        End of the error message that no kernel is suitable: the alternatives.
    """

    op: Op[P]
    label: str
    reading: str
    keeps, instead = "", ""

    @abstractmethod
    def suits(self, provider: P, kernel: Kernel, mode: ModePlan) -> bool:
        """Return whether a provider supports a mode's nonzeros in a kernel's shards."""

    def prepare(self, kernel: Kernel, mode: ModePlan) -> None:
        """Start compiling; return immediately."""

    @abstractmethod
    def bytes(self, kernel: Kernel, mode: ModePlan, nnz: int) -> int:
        """Return the scratch memory for a kernel's shard of `nnz` nonzeros."""

    def kept(self, mode: ModePlan) -> int:
        """Return the device memory that a mode needs in addition to its shards."""
        return 0

    def refusal(self, kernels: str) -> str:
        """Return the error message for an unsuitable kernel; `kernels` are the suitable ones."""
        return f"computes no {self.label}: {kernels} do"

    def codes(self, mode: ModePlan) -> int:
        """Return the host memory of its compiled code, in units of `Device.code_bytes`."""
        return 0

    def provider(self, device: Device, kernel: Kernel, mode: ModePlan) -> P | None:
        """Return the first suitable provider; None if there is none."""
        if (kernel.derive and not kernel.offers) or not kernel.suits(mode.share):
            return None
        return self.op.first(device, lambda provider: self.suits(provider, kernel, mode))

    def of(self, kernel: Kernel, mode: ModePlan) -> P:
        """Return the provider for a kernel's shards, including shards built for an earlier plan."""
        return cast("P", mode.providers[self.op, kernel.name])


class Product(Planned[P]):
    """A computation whose output has, for each row of a mode, a row of sums over nonzeros; see `Planned`.

    A product includes the parameters of one pass. An operator placed for a product computes it with any parameters.

    Attributes
    ----------
    output : str
        Name of its output in plans.
    doubt : str
        Why the time of an iteration cannot be predicted; empty if it can.
    timed : bool
        Whether kernels are chosen by timing.
    replicated : bool
        Whether all ranks that contribute to a row get its sum; otherwise only its owner does.
    tuning_key : dict
        Distinguishes its times from other products' in the tuning cache.
    sums : bool
        Whether it computes sums at all; otherwise only the additional computations of a plan use the tensor.
    """

    output, doubt, sums = "MTTKRP output", "", True
    timed, replicated = False, False
    tuning_key: Mapping[str, object] = MappingProxyType({"phi": False})

    def width(self, mode: ModePlan) -> int:
        """Return the number of columns of the output in memory, including padding."""
        return mode.share.stride

    def columns(self, mode: ModePlan) -> int:
        """Return the number of columns of the output without padding."""
        return mode.rank

    def summed(self, mode: ModePlan) -> int:
        """Return the number of terms of the longest sum in the factor matrices' precision."""
        return 1

    def prepare(self, kernel: Kernel, mode: ModePlan) -> None:
        """See `Planned`: the kernel's code."""
        kernel.prepare(mode.share)

    def make(self, shard: Shard, mode: ModePlan) -> object:
        """Return the data that `run` needs for a shard, computed once per shard."""
        return None

    @abstractmethod
    def run(self, shard: Shard, mode: ModePlan, operands: Operands, new: slice = NOTHING, data: object = None) -> None:
        """Queue the addition of a shard's contribution to the output.

        Rows `new` of the output are uninitialised and are set to the shard's sums or zeros. `data` is the result of
        `make`.
        """

    def copy(self, source: Array, target: Array, kernel: Kernel, mode: ModePlan) -> None:
        """Queue the copy of a row of the output, unless its computation was skipped."""
        target[:] = source


class Summed(Protocol):
    """A sum over all nonzeros of a tensor."""

    def add(self, shard: Shard, mode: ModePlan, operands: Operands, total: Array) -> None:
        """Queue the addition of a shard's contribution to `total`, float64."""
