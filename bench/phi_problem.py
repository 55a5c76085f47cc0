"""What the studies of Phi share: the nonzeros of one mode as MTTKRP and Phi take them, and times of what is computed.

The studies are those of "Analyzing the Performance Portability of Tensor Decomposition" (Anderson, Teranishi, Dunlavy,
Choi), on tensors with the shapes of its tensors.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from amped.backend.choose import choose
from amped.backend.device import Array, Clock, Device
from amped.backend.ops.mttkrp import MTTKRP, Kernel, Operands, Share
from amped.backend.ops.phi import PhiParams, phi_of
from amped.operators.limits import check_range
from amped.options import DTYPES, Options
from amped.parallel.mpi import SingleComm
from partitioner.array_types import FloatDType
from partitioner.shards.partition import mode_order

from . import phi_code
from .cooldown import Cooldown
from .counter_rng import Recipe
from .groups import free_memory
from .harness import Facts, Result, common_flags, in_turn
from .spread import summary
from .synthetic import SHAPES, SyntheticSource, recipe

Action = Callable[[], object]

TENSORS = ("chicago", "enron", "lbnl", "nell2", "nips", "uber")
"""The tensors of the paper, by the names of their shapes."""
MOST_ON_A_CPU = 5_000_000  # nonzeros of a tensor, unless more are requested
FLOOR = 1e-10  # the least that values are divided by: `eps` of CP-APR
SPARE = 4  # times the scratch memory that is needed: other layouts may take more
CHOOSING = 3  # runs with each kernel before one is chosen
WARM = 2  # runs of each before those that count; a device that queues work notes it down in them
FACTOR_SEED = 1000


def study_flags(parser: argparse.ArgumentParser, name: str) -> Callable[..., Any]:
    """Add the flags of a study; return the parser's ``add_argument``."""
    add = common_flags(parser, f"{name}-DEVICE", repeats=7)
    add("--threads", type=int, metavar="T", help="on a CPU (all cores)")
    add("--shapes", nargs="+", choices=TENSORS, default=list(TENSORS), help="of tensors (all of the paper)")
    add("--nonzeros", type=int, metavar="N", help="of each tensor (its own; on a CPU at most 5,000,000)")
    add("--rank", nargs="+", type=int, default=[32], metavar="R", help="columns of the factor matrices (32)")
    add("--precision", nargs="+", choices=("fp32", "fp64"), default=["fp32"])
    return add


def device_of(args: argparse.Namespace) -> Device:
    """Return the device that the flags name."""
    return choose(args.device, SingleComm(), args.threads)


def study(
    args: argparse.Namespace, name: str, measure: Callable[[Nonzeros], Facts], line: Callable[[Facts], str]
) -> Result:
    """Measure each tensor, number of columns, precision and mode; rewrite the results file after each."""
    device = device_of(args)
    result = Result(args, f"{name}-{device.name}", [device.description], device=device.name, load_before=load())
    for shape in args.shapes:
        source = source_of(args, shape, device)
        for rank, precision in product(args.rank, args.precision):
            for nonzeros in modes_of(source, device, rank, precision):
                case = {"shape": shape, "nonzeros": source.nnz, "rank": rank, "precision": precision}
                case |= {"mode": nonzeros.mode, **measure(nonzeros)}
                result.add(case, f"{shape} rank {rank} {precision} mode {nonzeros.mode}: {line(case)}")
    result.facts["load_after"] = load()
    return result


def nonzeros_of(args: argparse.Namespace, shape: str, device: Device) -> int:
    """Return how many nonzeros a tensor of a named shape is drawn with."""
    own = SHAPES[shape][1]
    return args.nonzeros or (min(own, MOST_ON_A_CPU) if device.on_host else own)


def source_of(args: argparse.Namespace, shape: str, device: Device) -> SyntheticSource:
    """Return a tensor of counts of a named shape."""
    made = recipe(shape, nonzeros_of(args, shape, device), integers=True)
    return SyntheticSource(made, SingleComm(), device.xp)


@dataclass(frozen=True)
class Nonzeros:
    """A mode's nonzeros, sorted by output row, and factor matrices, in device memory."""

    device: Device
    mode: int
    share: Share
    columns: tuple[Array, ...]  # output indices, those of the input modes, values
    factors: tuple[Array, ...]  # of the input modes
    own: Array  # of the output mode
    rank: int

    @property
    def order(self) -> int:
        """The number of modes."""
        return len(self.factors) + 1

    def changed(self, indices: Sequence[Array]) -> Nonzeros:
        """Return the same with other indices, sorted by output row."""
        order = self.device.xp.argsort(indices[0], kind="stable")
        return replace(self, columns=(*(column[order] for column in indices), self.columns[-1][order]))

    def output(self) -> Array:
        """Return an output: (rows, stride), in double precision."""
        return self.device.empty((len(self.own), self.share.stride), np.float64)

    def kernel(self, name: str) -> Kernel:
        """Return a kernel by its name."""
        return next(kernel for kernel in MTTKRP.providers(self.device) if kernel.name == name)

    def shard(self, kernel: Kernel) -> Any:
        """Return the nonzeros as a kernel needs them."""
        return kernel.make(list(self.columns[:-1]), self.columns[-1], self.share, False)

    def actions(self, kernel: Kernel, shard: Any = None, out: Array = None) -> dict[str, Action]:
        """Return what computes `phi` and `mttkrp` from a kernel's shard; memory that is not given is taken here."""
        shard = self.shard(kernel) if shard is None else shard
        phi, share = phi_of(self.device, kernel, self.share), self.share
        assert phi is not None
        out = self.output() if out is None else out
        needed = max(kernel.bytes(share, share.nnz).running, phi.bytes(kernel, share, share.nnz))
        scratch, new = self.device.empty((SPARE * needed,), np.uint8), slice(0, len(out))
        operands = Operands(self.factors, self.own, out, scratch)
        return {
            "phi": lambda: phi.run(shard, operands, PhiParams(FLOOR), new),
            "mttkrp": lambda: kernel.run(shard, self.factors, out, new, scratch),
        }


def modes_of(
    source: SyntheticSource, device: Device, rank: int, precision: str, modes: Sequence[int] | None = None
) -> Iterator[Nonzeros]:
    """Yield the nonzeros of each mode in turn, and random factor matrices; memory is given back before the next."""
    dtype, lengths = np.dtype(DTYPES[precision]), source.shape
    check_range(source.value_range, Options(device.name, precision))  # type: ignore[arg-type]
    stride, wanted = device.stride(rank, dtype.itemsize), modes or range(len(lengths))
    shares = [_share(source, mode, stride, dtype) for mode in wanted]
    if not device.on_host:
        phi_code.begin(device, [(share, kernels_of(device, share)) for share in shares])
    factors = [_factor(device, length, rank, stride, dtype, mode) for mode, length in enumerate(lengths)]
    for mode, share in zip(wanted, shares, strict=True):
        inputs = mode_order(len(lengths), mode)[1:]
        columns = tuple(source.load(mode, source.cut(mode, 1), dtype))
        yield Nonzeros(device, mode, share, columns, tuple(factors[m] for m in inputs), factors[mode], rank)
        del columns
        free_memory(device.xp)


def _share(source: SyntheticSource, mode: int, stride: int, dtype: FloatDType) -> Share:
    inputs = mode_order(len(source.shape), mode)[1:]
    others, rows = tuple(source.shape[m] for m in inputs), slice(0, source.shape[mode])
    return Share(others, rows, source.nnz, stride, dtype, source.value_range)


def kernels_of(device: Device, share: Share) -> list[Kernel]:
    """Return the MTTKRP kernels whose shards Phi is computed from, and which may be the fastest."""
    plain, *others = MTTKRP.providers(device)
    kernels = [plain, *(k for k in others if k.suits(share) and k.gains(share))]
    return [kernel for kernel in kernels if phi_of(device, kernel, share)]


def _factor(device: Device, length: int, rank: int, stride: int, dtype: FloatDType, mode: int) -> Array:
    matrix = device.zeros((length, stride), dtype)
    rng = Recipe((length,), length, seed=FACTOR_SEED + mode).rng(device.xp)
    matrix[:, :rank] = rng.values(range(length * rank), dtype).reshape(length, rank)
    return matrix


_known: dict[tuple[object, ...], dict[str, dict[str, float]]] = {}


def best_kernel(nonzeros: Nonzeros, repeats: int = CHOOSING) -> tuple[Kernel, dict[str, dict[str, float]]]:
    """Return the kernel whose shards have the fastest Phi, and the median seconds of all that may be it.

    They are measured once in a process.
    """
    device, share = nonzeros.device, nonzeros.share
    key = device.description, share.lengths, share.rows.stop, share.nnz, str(share.dtype), nonzeros.rank
    if key not in _known:
        found = _known[key] = {}
        for kernel in kernels_of(device, share):
            times = seconds(device, nonzeros.actions(kernel), repeats)
            found[kernel.name] = {name: summary(each)["median"] for name, each in times.items()}
            free_memory(device.xp)
    known = _known[key]
    return nonzeros.kernel(min(known, key=lambda name: known[name]["phi"])), known


class Timed:
    """Work that is run again and again: on a GPU as one launch, so that the host's part does not count.

    Where it has a clock, `kind` and `mode` say which of its spans is meant.
    """

    def __init__(
        self, device: Device, action: Action, clock: Clock | None = None, kind: str = "run", mode: int = 0
    ) -> None:
        self._clock, self._key = clock or device.clock(), (kind, mode)
        self._run = action if clock else lambda: self._spanned(action)
        self._run()  # whatever is compiled or loaded for it
        device.synchronize()
        self._clock.collect()
        self._replay = device.capture(self._run, device.zeros((16,), np.uint8), self._clock)
        for _ in range(WARM):
            self.seconds()

    def _spanned(self, action: Action) -> None:
        with self._clock.span(*self._key):
            action()

    def seconds(self) -> float:
        """Run it; return the device's seconds."""
        if self._replay is None:
            self._run()
        else:
            self._replay.launch()
            self._replay.wait()
        return self._clock.collect()[self._key]


def seconds(device: Device, actions: Mapping[str, Action | Timed], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each of some actions, which take turns."""
    timed = {name: a if isinstance(a, Timed) else Timed(device, a) for name, a in actions.items()}
    cooldown = Cooldown()

    def once(action: Timed) -> float:
        taken = action.seconds()
        if not device.on_host:
            cooldown.after(taken)
        return taken

    return in_turn({name: partial(once, action) for name, action in timed.items()}, repeats, warm=0)


def load() -> list[float]:
    """Return the machine's load averages: how busy others keep it."""
    return [round(x, 2) for x in os.getloadavg()]
