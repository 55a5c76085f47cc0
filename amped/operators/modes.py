"""One rank's share of a mode, and products: what is computed of it, from the shards of MTTKRP kernels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from partitioner.shards.partition import Cut

from ..backend.device import NOTHING, Array, Device
from ..backend.ops.mttkrp import Kernel, Shard, Share
from ..backend.registry import Op

P = TypeVar("P")


@dataclass(frozen=True)
class ModePlan:
    """One rank's share of one mode."""

    mode: int
    rank: int  # columns of the mode's factor matrix
    cut: Cut  # how all ranks share the mode
    owned: slice  # the output rows that this rank owns
    share: Share  # what it computes
    product: Product[Any]  # what is computed of it
    beside: tuple[Planned[Any], ...] = ()  # what is computed of its shards in other ways
    kernels: tuple[Kernel, ...] = ()  # may compute it; the first one's memory is what the plan counts for shards
    # What computes a product from a kernel's shards, by operation and kernel name; see `Planned.of`.
    providers: Mapping[tuple[Op[Any], str], object] = field(default_factory=dict)
    inputs: tuple[int, ...] = ()  # columns of the input modes' factor matrices
    resident: int = 0  # nonzeros of this rank, the first ones, that stay on the device
    parts: tuple[float, ...] = (1.0,)  # of the nonzeros, shards of their own: rows are exchanged before all are done
    spare: int = 0  # bytes of device memory that its shards may take beyond what the plan counts

    @property
    def nnz(self) -> int:
        """Nonzeros of this rank."""
        return self.share.nnz

    @property
    def rows(self) -> slice:
        """The output rows that it computes: `owned`, and before them the row that it shares with an earlier rank."""
        return self.share.rows

    @property
    def streamed(self) -> int:
        """Nonzeros that are copied in for each pass."""
        return self.nnz - self.resident

    @property
    def any_row(self) -> bool:
        """Whether its nonzeros are those of mode 0's copy, and may be of any row."""
        return self.share.column > 0

    @property
    def width(self) -> int:
        """The columns of the output in memory."""
        return self.product.width(self)

    @property
    def columns(self) -> int:
        """The columns of the output that count."""
        return self.product.columns(self)

    @property
    def computed(self) -> tuple[Planned[Any], ...]:
        """All that is computed of its shards."""
        return self.product, *self.beside

    def shard_bytes(self, nnz: int, streamed: bool = False) -> int:
        """Return the most bytes that shards of so many nonzeros take."""
        return self.kernels[0].bytes(replace(self.share, streamed=streamed), nnz).shard

    def making_bytes(self, nnz: int) -> int:
        """Return the bytes that making a shard takes for a while, of any of the kernels."""
        return max(kernel.bytes(self.share, min(self.nnz, nnz)).making for kernel in self.kernels)

    def running_bytes(self, nnz: int) -> int:
        """Return the bytes of scratch memory that computing a shard takes, of any of the kernels."""
        return max(self.running(kernel, min(self.nnz, nnz)) for kernel in self.kernels)

    def running(self, kernel: Kernel, nnz: int) -> int:
        """Return the bytes of scratch memory that computing a kernel's shard takes."""
        return max(each.bytes(kernel, self, nnz) for each in self.computed)

    def shard_limit(self, nnz: int, streamed: bool = False) -> int:
        """Return the most bytes that a shard of so many nonzeros may take."""
        return self.shard_bytes(nnz, streamed) + self.spare * nnz // max(1, self.nnz)


class Places(NamedTuple):
    """What a product of one mode reads and writes, on the device."""

    factors: Sequence[Array]  # (I_m, stride): the other modes' factor matrices as kernels read them
    own: Array  # (rows, stride): the rows of its own factor matrix that this rank computes
    out: Array  # (rows, width) float64
    scratch: Array  # (bytes,) uint8


class Planned(Generic[P]):
    """What plans have memory for, computed by providers of an operation from the shards of MTTKRP kernels.

    Attributes
    ----------
    op : Op
    label : str
        What it is called in messages.
    reading : str
        What is said if factor matrices were to be read in 16 bits, and cannot be; empty if they can.
    keeps : str
        What its memory beside the shards is called; empty if it takes none.
    instead : str
        The end of the message that no kernel suits: what to use.
    """

    op: Op[P]
    label: str
    reading: str
    keeps, instead = "", ""

    @abstractmethod
    def suits(self, provider: P, kernel: Kernel, mode: ModePlan) -> bool:
        """Tell whether a provider computes a mode's nonzeros from a kernel's shards."""

    @abstractmethod
    def bytes(self, kernel: Kernel, mode: ModePlan, nnz: int) -> int:
        """Return the bytes of scratch memory that a kernel's shard of so many nonzeros takes."""

    def kept(self, mode: ModePlan) -> int:
        """Return the bytes of device memory that a mode takes beside its shards."""
        return 0

    def refusal(self, kernels: str) -> str:
        """Return the message that a kernel does not suit, unlike those `kernels`."""
        return f"computes no {self.label}: {kernels} do"

    def codes(self, mode: ModePlan) -> int:
        """Return what its compiled code takes of host memory, as so many kernels do; see `Device.code_bytes`."""
        return 0

    def provider(self, device: Device, kernel: Kernel, mode: ModePlan) -> P | None:
        """Return the first provider that suits, if one does."""
        if (kernel.derive and not kernel.offers) or not kernel.suits(mode.share):
            return None
        return self.op.first(device, lambda provider: self.suits(provider, kernel, mode))

    def of(self, kernel: Kernel, mode: ModePlan) -> P:
        """Return the provider for a kernel's shards: also for those that were made for an earlier plan."""
        return cast("P", mode.providers[self.op, kernel.name])


class Product(Planned[P]):
    """Rows of output, for each row of a mode, that are sums over nonzeros; see `Planned`.

    A product has the parameters of one pass. An operator that was placed for it computes it with any others.

    Attributes
    ----------
    output : str
        What its output is called in plans.
    doubt : str
        Why nobody knows how long an iteration takes; empty if that can be predicted.
    timed : bool
        Whether kernels are compared by the time that they take.
    replicated : bool
        Whether every rank gets the rows of which it computes a part; otherwise only a row's owner does.
    facts : dict
        What distinguishes its times from other products' in the tuning cache.
    """

    output, doubt = "MTTKRP output", ""
    timed, replicated = False, False
    facts: Mapping[str, object] = MappingProxyType({"phi": False})

    def width(self, mode: ModePlan) -> int:
        """Return the columns of the output in memory."""
        return mode.share.stride

    def columns(self, mode: ModePlan) -> int:
        """Return the columns of the output that count."""
        return mode.rank

    def summed(self, mode: ModePlan) -> int:
        """Return the terms of the longest sum that is rounded to the factor matrices' precision."""
        return 1

    def prepare(self, kernel: Kernel, mode: ModePlan) -> None:
        """Begin to compile, and return at once."""
        kernel.prepare(mode.share)

    def make(self, shard: Shard, mode: ModePlan) -> object:
        """Return what `run` needs to know of a shard: made once for a shard."""
        return None

    @abstractmethod
    def run(self, shard: Shard, mode: ModePlan, at: Places, new: slice = NOTHING, made: object = None) -> None:
        """Queue the addition of a shard's part to the output.

        `new` are rows of the output that hold nothing yet: they get the shard's sums, or zeros. `made` is what `make`
        returned.
        """

    def copy(self, source: Array, target: Array, kernel: Kernel, mode: ModePlan) -> None:
        """Queue the copy of a row of the output, if it was computed."""
        target[:] = source


class Summed(Protocol):
    """A sum over all nonzeros of a tensor."""

    def add(self, shard: Shard, mode: ModePlan, at: Places, total: Array) -> None:
        """Queue the addition of a shard's part to `total`, float64."""
