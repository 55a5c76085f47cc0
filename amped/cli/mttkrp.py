"""The verb ``mttkrp``: compute and time MTTKRPs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from partitioner.array_types import Floats, HostArray
from partitioner.flags import flag, path, shown
from partitioner.tensors.labels import named
from partitioner.wording import readable

from ..errors import InputError
from ..files import write_npz
from ..operators.base import Operator
from ..operators.limits import check_result
from ..operators.sources.protocols import DescribedSource
from ..parallel.mpi import on_root, together
from ..report.metrics import split
from ..runs.assembly import place, start
from .job import Job, VerbSession
from .requests import Repeated


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MttkrpRequest(Repeated):
    """The flags of ``mttkrp``."""

    mode: str = flag("all", "mode, counted from 0, or all (all)")
    output: Path | None = flag(None, "write the results: mode_0, mode_1, ...", type=path, metavar="FILE.npz")


def mttkrp(request: MttkrpRequest, session: VerbSession) -> int:
    """Compute and time MTTKRPs with the factor matrices at the start of a decomposition."""
    comm, output = session.comm, request.output
    with Job(request, session) as job:
        source = job.open()
        modes = together(comm, lambda: _modes(request.mode, len(source.shape)))
        with job.reporter.loading():
            budget = job.budget(request.repeat)
            operator = place(source, request.rank, job.machine, request.options, budget=budget, late=True)
        job.say_machine()
        start(operator, source, request.first_seed, request.init)
        job.reporter.began(str(request.tensor), source, operator, operator.ranks[0], job.kernel_budget.spent)
        results = dict[str, HostArray]()
        for position, mode in enumerate(modes):
            turns = [mode] * request.repeat + modes[position + 1 :]
            result = _timed_mttkrp(job, operator, source, turns, request.repeat)
            if comm.rank == 0 and output is not None:
                results[f"mode_{mode}"] = result
        if output is not None:
            results |= named(source.labels)
            on_root(comm, lambda: write_npz(output, results, output in job.outputs.replaced))
        job.display.note(job.reporter.memory(job.machine, operator))
        return job.exit_code()


def _timed_mttkrp(job: Job, operator: Operator, source: DescribedSource, modes: Sequence[int], repeat: int) -> Floats:
    """Compute the first of the coming `modes` `repeat` times, print the median time, and return the gathered result."""
    seconds, mode = [], modes[0]
    for turn in range(repeat):
        if turn:
            operator.forget()
        begin = time.perf_counter()
        rows = operator.mttkrp(mode, then=modes[turn + 1 :])
        operator.synchronize()
        seconds.append(max(job.comm.allgather(time.perf_counter() - begin)))
        by_rank = job.comm.allgather(operator.clock.collect())
        job.metrics.add(by_rank)
        job.metrics.event("mttkrp", mode=mode, seconds=seconds[-1], split=split(by_rank))
    result = operator.gathered(mode, rows)
    values = source.value_range
    together(job.comm, lambda: check_result(operator, mode, result, values))
    operator.clock.collect()
    median = statistics.median(seconds)
    norm = float(np.linalg.norm(result.astype(np.float64)))
    rate = operator.plan.modes[mode].cut.nonzeros[-1] / median / 1e6
    job.display.note(
        f"mode {mode}: {median * 1e3:.3f} ms, {rate:,.0f} million {operator.plan.counted}/s, norm {readable(norm, 9)}"
    )
    return result


def _modes(text: str, order: int) -> list[int]:
    modes = {str(mode): [mode] for mode in range(order)} | {"all": list(range(order))}
    if text not in modes:
        raise InputError(f"--mode {shown(text)}: expected all or a mode from 0 to {order - 1}")
    return modes[text]
