"""A search over how Phi is computed: layouts, chunks, threads, rows loaded together, prefetching; and the gain.

From the layout whose MTTKRP is the fastest, one choice at a time; then the best of all together.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from amped.backend.ops.mttkrp import MTTKRP, Kernel
from amped.backend.ops.phi import phi_of

from .groups import free_memory
from .harness import Facts, summaries
from .phi_code import changed, compiled, packed
from .phi_problem import Nonzeros, Timed, best_kernel, seconds, study, study_flags

CHUNKS, THREADS = (64, 128, 256, 512), (64, 128, 256)  # nonzeros; threads of a block
BATCHES, MORE_BLOCKS = (1, 2, 4), (-2, -1, 1, 2)  # rows loaded together; blocks a multiprocessor beside the default
AHEAD, TURNS = (0, 4, 8, 12, 24, 48), (1, 2, 4, 8, 16, 32)  # on a CPU: nonzeros; parts for each thread

Choices = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Policy:
    """A way to compute Phi; what is not named is as amped has it."""

    kernel: str
    layout: Choices = ()  # see `packed`; on a CPU `turns`
    code: Choices = ()  # macros of the kernel; on a CPU `ahead`

    @property
    def name(self) -> str:
        """The kernel, and what is not as amped has it."""
        return ", ".join([self.kernel, *(f"{k.lower()} {v}" for k, v in (*self.layout, *self.code))])

    def with_all(self, others: Sequence[Policy]) -> Policy:
        """Return this policy with all choices of others."""
        found = self
        for other in others:
            found = replace(found, layout=(*found.layout, *other.layout), code=(*found.code, *other.code))
        return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    study_flags(parser, "phi-policy")


def run(args: argparse.Namespace) -> None:
    """Search for each tensor, number of columns, precision and mode."""
    study(args, "phi-policy", partial(search, repeats=args.repeats), line)


def search(nonzeros: Nonzeros, repeats: int) -> Facts:
    """Return what each policy takes, and the best of them."""
    _, known = best_kernel(nonzeros)
    default = Policy(min(known, key=lambda name: known[name]["mttkrp"]))
    own = timed(nonzeros, default)
    trials = {default: 1.0}

    def attempt(policies: Sequence[Policy]) -> None:
        _compile(nonzeros, policies)
        for policy in policies:
            if policy not in trials:
                trials[policy] = _gain(nonzeros, own, policy, repeats)

    attempt([Policy(kernel.name) for kernel in _kernels(nonzeros)])
    best = max(trials, key=lambda p: trials[p])
    choices = list(_choices(nonzeros, best))
    attempt([policy for some in choices for policy in some])
    better = [max(some, key=lambda p: trials[p]) for some in choices if some]
    together = best.with_all([policy for policy in better if trials[policy] > trials[best]])
    attempt([together])
    final = max(trials, key=lambda p: trials[p])
    times = seconds(nonzeros.device, {"default": own, "best": timed(nonzeros, final)}, repeats)
    gain = statistics.median(a / b for a, b in zip(times["default"], times["best"], strict=True))
    if gain < 1:  # it was the best of many by chance
        final, gain, times["best"] = default, 1.0, times["default"]
    return {
        "default": default.name,
        "best": final.name,
        "seconds": summaries(times),
        "gain": gain,
        "gains": {policy.name: each for policy, each in trials.items()},
    }


def timed(nonzeros: Nonzeros, policy: Policy) -> Timed:
    """Return Phi as a policy has it, ready to be timed."""
    kernel = nonzeros.kernel(policy.kernel)
    if nonzeros.device.on_host:
        with _turns(dict(policy.layout).get("turns")):
            shard = replace(nonzeros.shard(kernel), **dict(policy.code))
        return Timed(nonzeros.device, nonzeros.actions(kernel, shard)["phi"])
    with packed(**dict(policy.layout)), changed(dict(policy.code)):
        return Timed(nonzeros.device, nonzeros.actions(kernel)["phi"])


def _gain(nonzeros: Nonzeros, own: Timed, policy: Policy, repeats: int) -> float:
    """Return how many times as fast as the default a policy is; 0 if the device cannot launch it."""
    try:
        times = seconds(nonzeros.device, {"default": own, "policy": timed(nonzeros, policy)}, repeats)
    except (RuntimeError, ValueError) as error:  # CuPy's and NVRTC's are RuntimeErrors
        print(f"  {policy.name}: {str(error)[:100]}", flush=True)
        return 0.0
    finally:
        free_memory(nonzeros.device.xp)
    return statistics.median(a / b for a, b in zip(times["default"], times["policy"], strict=True))


def _kernels(nonzeros: Nonzeros) -> list[Kernel]:
    """Return all kernels from whose shards Phi is computed, whether they promise a gain or not."""
    share, device = nonzeros.share, nonzeros.device
    some = [k for k in MTTKRP.providers(device) if k.suits(share) and not k.derive and phi_of(device, k, share)]
    if device.on_host:
        return some
    return [k for k in some if _layout(nonzeros, Policy(k.name)).kernel == k.name]


def _choices(nonzeros: Nonzeros, base: Policy) -> Iterator[list[Policy]]:
    """Yield, for each choice that a kernel has, the policies that differ from `base` in it alone."""

    def layouts(name: str, values: Sequence[int]) -> list[Policy]:
        return [replace(base, layout=((name, value),)) for value in values]

    def codes(name: str, values: Sequence[int]) -> list[Policy]:
        return [replace(base, code=((name, value),)) for value in values]

    if nonzeros.device.on_host:
        yield codes("ahead", AHEAD)
        yield layouts("turns", TURNS)
        return
    from amped.backend.cuda.code import phi

    layout = _layout(nonzeros, base)
    usual, staged = phi.macros(layout), any(layout.staged)
    yield codes("BATCH", [b for b in BATCHES if b != usual["BATCH"] and layout.panels == 1])
    most = layout.schedule.threads
    counts = {phi.threads(layout, n) for n in ((most, most // 2) if staged else (most, 2 * most, 4 * most))}
    yield codes("THREAD_COUNT", sorted(counts - {usual["THREAD_COUNT"]}))
    if staged:
        return
    yield codes("BLOCKS", [usual["BLOCKS"] + d for d in MORE_BLOCKS if usual["BLOCKS"] + d > 0])
    yield layouts("chunk", [c for c in CHUNKS if c != layout.chunk])
    yield layouts("threads", [t for t in THREADS if t != most])
    if layout.kernel == "segmented":  # others have no wide rows
        yield layouts("lanes", [n for n in (2, 4, 8) if n < layout.lanes])


def _layout(nonzeros: Nonzeros, policy: Policy) -> Any:
    from amped.backend.cuda.layout import make_layout

    with packed(**dict(policy.layout)):
        layout = make_layout(policy.kernel, nonzeros.share, nonzeros.device.limits)  # type: ignore[attr-defined]
        layout.macros, layout.schedule, layout.chunk  # noqa: B018  (they are kept as they are now)
    return layout


def _compile(nonzeros: Nonzeros, policies: Sequence[Policy]) -> None:
    """Begin to compile the policies' code, side by side."""
    if not nonzeros.device.on_host:
        from partitioner.cuda.code import prepare

        prepare([compiled(_layout(nonzeros, policy), dict(policy.code)) for policy in policies])


@contextmanager
def _turns(turns: int | None) -> Iterator[None]:
    """Have shards made of so many parts for each thread of a CPU."""
    from amped.backend.cpu.ops import mttkrp

    was = mttkrp.TURNS, mttkrp.TILED_TURNS
    if turns:
        mttkrp.TURNS = mttkrp.TILED_TURNS = turns
    try:
        yield
    finally:
        mttkrp.TURNS, mttkrp.TILED_TURNS = was


def line(case: Mapping[str, Any]) -> str:
    """Return a case as text."""
    took = " -> ".join(f"{case['seconds'][name]['median'] * 1e3:.3f}" for name in ("default", "best"))
    return f"{took} ms, x{case['gain']:.2f}: {case['default']} -> {case['best']} ({len(case['gains'])} tried)"
