"""The verb ``ttm``: multiply a sparse tensor by a matrix."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from partitioner.errors import one_line
from partitioner.flags import flag, path, whole_number
from partitioner.host.stages import STAGES
from partitioner.tensors.value_range import BLOCK
from partitioner.wording import readable

from ..errors import InputError
from ..methods.initial import initial_factor
from ..operators.sources.protocols import ProductSource
from ..operators.ttm.plan import TtmSetting
from ..parallel.mpi import together
from ..report.metrics import split, versions
from ..runs.products import (
    Product,
    Shape,
    open_semisparse,
    place_product,
    product_setting,
    write_product,
)
from .job import Job, VerbSession
from .requests import Repeated, Request


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TtmRequest(Repeated):
    """The flags of ``ttm``."""

    mode: int = flag(MISSING, "mode to multiply, counted from 0", type=whole_number, metavar="N")
    output: Path | None = flag(None, "write the result: indices, values, mode, shape", type=path, metavar="FILE.npz")

    def check(self) -> None:
        if self.mode < 0:
            raise InputError(f"--mode {self.mode}: modes are counted from 0")
        super().check()


def ttm(request: TtmRequest, session: VerbSession) -> int:
    """Multiply a sparse tensor by the matrix at the start of a decomposition, in one mode."""
    comm, options = session.comm, request.options
    with Job(request, session) as job:
        source, opened = multiplied(job, request)
        setting = together(comm, lambda: product_setting(source, request.mode, request.rank, job.machine, options))
        start = request.first_seed, request.init
        matrix = initial_factor(opened, request.mode, request.rank, comm, options.dtype, *start)
        began = time.perf_counter()
        product, shape = place_product(source, job.machine, setting), Shape(source, setting)
        product.set_matrix(matrix)
        del matrix
        seconds = max(comm.allgather(time.perf_counter() - began))
        job.say_machine()
        _begin(job, source, setting, product, seconds)
        _timed(job, product, setting, request.repeat)
        if request.output is not None:
            with STAGES.of("write"):
                write_product(request.output, product, shape, request.output in job.outputs.replaced)
            job.display.note(f"result in {one_line(str(request.output))}")
        job.display.note(job.reporter.memory(job.machine, product))
        job.metrics.event("stages", seconds=job.reporter.stages())
        return job.exit_code()


def multiplied(job: Job, request: Request) -> tuple[ProductSource, Any]:
    """Open the tensor and print a line about it; return the product's source and the opened source. Collective."""
    with STAGES.of("read"):
        semisparse = open_semisparse(request.tensor, job.comm)
    if semisparse is None:
        opened = job.open()
        return opened.product(), opened
    shape, dense = " x ".join(map(str, semisparse.shape)), ", ".join(map(str, semisparse.dense))
    name = one_line(request.tensor.name)
    job.display.note(f"{name}: {shape}, semi-sparse, {semisparse.nnz:,} fibres; dense modes: {dense}")
    return semisparse, semisparse


def _begin(job: Job, source: ProductSource, setting: TtmSetting, product: Product, seconds: float) -> None:
    """Report the fibres, and the seconds for sorting and placing them."""
    planned = job.comm.allgather(product.plan.planned_bytes)
    fibres = int(product.rows[-1])
    job.metrics.event(
        "start", tensor=str(job.request.tensor), shape=source.shape, nonzeros=source.nnz, mode=setting.mode,
        rank=setting.rank, fibres=fibres, ranks=job.comm.size, kernels=product.kernels,
        options=asdict(product.options), versions=versions(), planned_bytes=planned, placing_seconds=seconds,
    )  # fmt: skip
    job.display.note(f"mode {setting.mode}: {fibres:,} fibres, sorted and placed in {seconds:.3g} s")


def _timed(job: Job, product: Product, setting: TtmSetting, repeat: int) -> None:
    """Compute the product `repeat` times; report the median time and the norm of the result."""
    comm, times = job.comm, list[float]()
    for _ in range(repeat):
        begin = time.perf_counter()
        product.compute()
        product.synchronize()
        times.append(max(comm.allgather(time.perf_counter() - begin)))
        by_rank = comm.allgather(product.clock.collect())
        job.metrics.add(by_rank)
        job.metrics.event("ttm", mode=setting.mode, seconds=times[-1], split=split(by_rank))
    parts = product.parts()

    def sum_of_squares() -> float:
        total = 0.0
        for part in parts:
            numbers = part.values.reshape(-1)
            for begin in range(0, numbers.size, BLOCK):
                total += float(np.square(numbers[begin : begin + BLOCK], dtype=np.float64).sum())
        return total

    norm = math.sqrt(sum(comm.allgather(together(comm, sum_of_squares))))
    median = statistics.median(times)
    rate = setting.total / median / 1e6
    job.display.note(
        f"mode {setting.mode}: {median * 1e3:.3f} ms, {rate:,.0f} million nonzeros/s, norm {readable(norm, 9)}"
    )
    job.metrics.event("result", mode=setting.mode, fibres=int(product.rows[-1]), norm=norm, seconds=median)
