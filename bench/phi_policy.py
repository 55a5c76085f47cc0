"""A search over how Phi is computed: layouts of nonzeros, then threads, rows loaded together and prefetching.

From the layout whose MTTKRP is the fastest: all layouts, then one choice at a time from the best.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from amped.backend.ops.mttkrp import MTTKRP, Kernel
from amped.backend.ops.phi import phi_of

from .groups import free_memory
from .harness import Facts, summaries
from .phi_code import changed, compiled
from .phi_problem import Nonzeros, Timed, best_kernel, seconds, study, study_flags

BATCHES, MORE_BLOCKS = (1, 2, 4), (-2, -1, 1, 2)  # rows loaded together; blocks a multiprocessor beside the default
AHEAD = (0, 4, 8, 12, 24, 48)  # nonzeros that a CPU prefetches ahead


@dataclass(frozen=True)
class Policy:
    """A way to compute Phi; what is not named is as amped has it."""

    kernel: str
    code: tuple[tuple[str, int], ...] = ()  # macros of the kernel; on a CPU `ahead`

    @property
    def name(self) -> str:
        """The kernel, and what is not as amped has it."""
        return ", ".join([self.kernel, *(f"{k.lower()} {v}" for k, v in self.code)])


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
    own, trials = timed(nonzeros, default), {default: 1.0}

    def attempt(policies: Sequence[Policy]) -> Policy:
        """Time some policies; return the best so far."""
        _compile(nonzeros, policies)
        trials.update({policy: _gain(nonzeros, own, policy, repeats) for policy in policies if policy not in trials})
        return max(trials, key=lambda policy: trials[policy])

    final = attempt(_choices(nonzeros, attempt([Policy(kernel.name) for kernel in _kernels(nonzeros)])))
    times = seconds(nonzeros.device, {"default": own, "best": timed(nonzeros, final)}, repeats)
    gain = statistics.median(a / b for a, b in zip(times["default"], times["best"], strict=True))
    if gain < 1:  # it was the best of many by chance
        final, gain, times["best"] = default, 1.0, times["default"]
    gains = {policy.name: each for policy, each in trials.items()}
    return {"default": default.name, "best": final.name, "seconds": summaries(times), "gain": gain, "gains": gains}


def timed(nonzeros: Nonzeros, policy: Policy) -> Timed:
    """Return Phi as a policy has it, ready to be timed."""
    kernel = nonzeros.kernel(policy.kernel)
    if nonzeros.device.on_host:
        shard = replace(nonzeros.shard(kernel), **dict(policy.code))
        return Timed(nonzeros.device, nonzeros.actions(kernel, shard)["phi"])
    with changed(dict(policy.code)):
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
    return [k for k in some if device.on_host or _layout(nonzeros, Policy(k.name)).kernel == k.name]


def _choices(nonzeros: Nonzeros, base: Policy) -> list[Policy]:
    """Return the policies that differ from `base` in one choice."""
    choices: dict[str, Sequence[int]] = {"ahead": AHEAD}
    if not nonzeros.device.on_host:
        from amped.backend.cuda.code import phi

        layout = _layout(nonzeros, base)
        usual, staged, most = phi.macros(layout), any(layout.staged), layout.schedule.threads
        threads = {phi.threads(layout, n) for n in ((most, most // 2) if staged else (most, 2 * most, 4 * most))}
        choices = {"BATCH": BATCHES if layout.panels == 1 else (), "THREAD_COUNT": sorted(threads)}
        choices |= {} if staged else {"BLOCKS": [usual["BLOCKS"] + d for d in MORE_BLOCKS if usual["BLOCKS"] + d > 0]}
    return [replace(base, code=((name, value),)) for name, values in choices.items() for value in values]


def _layout(nonzeros: Nonzeros, policy: Policy) -> Any:
    from amped.backend.cuda.layout import make_layout

    return make_layout(policy.kernel, nonzeros.share, nonzeros.device.limits)  # type: ignore[attr-defined]


def _compile(nonzeros: Nonzeros, policies: Sequence[Policy]) -> None:
    """Begin to compile the policies' code, in threads."""
    if not nonzeros.device.on_host:
        from partitioner.cuda.code import prepare

        prepare([compiled(_layout(nonzeros, policy), dict(policy.code)) for policy in policies])


def line(case: Mapping[str, Any]) -> str:
    """Return a case as text."""
    took = " -> ".join(f"{case['seconds'][name]['median'] * 1e3:.3f}" for name in ("default", "best"))
    return f"{took} ms, x{case['gain']:.2f}: {case['default']} -> {case['best']} ({len(case['gains'])} tried)"
