"""The verb ``ttm``; see `amped.commands`."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict
from typing import Any

import numpy as np

from partitioner.coo import BLOCK
from partitioner.stages import STAGES

from . import commands, requests
from .assembly import Job, Session
from .decomp.initial import initial_factor
from .errors import InputError
from .operators.placement import Loading
from .operators.semisparse import ProductSource
from .operators.ttm_plan import TtmPlan, TtmSetting, make_ttm_plan, most_fibres
from .parallel.mpi import on_root, together
from .products import Product, Shape, open_semisparse, place_product, product_setting, product_source, write_product
from .report.metrics import versions
from .report.products import plan_text
from .report.progress import say


def ttm(request: requests.Ttm, session: Session) -> int:
    """Multiply a sparse tensor with a matrix in one mode: that which a decomposition would start from."""
    comm, options = session.comm, request.options
    with Job(request, session) as job:
        source, opened = _source(job, request)
        setting = together(comm, lambda: product_setting(source, request.mode, request.rank, job.machine, options))
        matrix = initial_factor(opened, request.mode, request.rank, comm, options.dtype, request.seed, request.init)
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
            job.display.note(f"result in {request.output}")
        job.display.note(job.memory_line(product))
        job.tell_stages()
        return job.exit_code()


def _source(job: Job, request: requests.Request) -> tuple[ProductSource, Any]:
    """Open the tensor and say what it is; return it as what is multiplied, and as it was opened. Collective."""
    with STAGES.of("read"):
        semisparse = open_semisparse(request.tensor, job.comm)
    if semisparse is None:
        opened = job.open()
        return product_source(opened), opened
    shape, dense = " x ".join(map(str, semisparse.shape)), ", ".join(map(str, semisparse.dense))
    job.display.note(f"{request.tensor.name}: {shape}, semi-sparse, {semisparse.nnz:,} fibres; dense modes: {dense}")
    return semisparse, semisparse


def plan(request: requests.Plan, session: Session) -> int:
    """Say what a run would need and take, and how it would be balanced."""
    if request.mode is None:
        return commands.plan(request, session)
    comm, ranks = session.comm, session.comm.size if request.ranks is None else request.ranks
    with Job(request, session) as job:
        source, _ = _source(job, request)
        options, machine, mode = request.options, job.machine, request.mode
        setting = together(comm, lambda: product_setting(source, mode, request.rank, machine, options))
        if ranks != comm.size:  # other ranks than those started: all on one node
            memory = options.device_memory or machine.device.memory(ranks)
            setting = setting._replace(memory=memory)
        loading = source.loading(ranks, options.dtype, machine.device.on_host)
        plans = on_root(comm, lambda: _plans(source, setting, ranks, loading))
        if plans is not None:
            job.metrics.event(
                "plan", tensor=str(request.tensor), shape=source.shape, nonzeros=source.nnz, mode=mode,
                rank=request.rank, ranks=ranks, options=asdict(options), fibres=sum(p.fibres for p in plans),
                planned_bytes=[p.planned_bytes for p in plans],
            )  # fmt: skip
            say(plan_text(plans, machine.device))
        return job.exit_code()


def _plans(source: ProductSource, setting: TtmSetting, ranks: int, loading: Loading) -> list[TtmPlan]:
    """Return the plan of each rank; how many fibres there are is known once they are sorted."""
    if setting.mode in source.dense:
        raise InputError(f"mode {setting.mode} is dense already: its product takes blocks of any size")
    others = tuple(source.shape[m] for m in source.sparse if m != setting.mode)
    shares = (source.nnz * (part + 1) // ranks - source.nnz * part // ranks for part in range(ranks))
    return [make_ttm_plan(setting, nnz, most_fibres(nnz, others), loading) for nnz in shares]


def _begin(job: Job, source: ProductSource, setting: TtmSetting, product: Product, seconds: float) -> None:
    """Say what was placed, and how long sorting and packing took."""
    planned = job.comm.allgather(product.plan.planned_bytes)
    fibres = int(product.rows[-1])
    job.metrics.event(
        "start", tensor=str(job.request.tensor), shape=source.shape, nonzeros=source.nnz, mode=setting.mode,
        rank=setting.rank, fibres=fibres, ranks=job.comm.size, kernels=product.kernels,
        options=asdict(product.options), versions=versions(), planned_bytes=planned, placing_seconds=seconds,
    )  # fmt: skip
    job.display.note(f"mode {setting.mode}: {fibres:,} fibres, sorted and placed in {seconds:.3g} s")


def _timed(job: Job, product: Product, setting: TtmSetting, repeat: int) -> None:
    """Compute the product `repeat` times; report the median, and the norm of the result."""
    comm, taken = job.comm, []
    for _ in range(repeat):
        begin = time.perf_counter()
        product.compute()
        product.synchronize()
        taken.append(max(comm.allgather(time.perf_counter() - begin)))
        split = job.metrics.spans(comm.allgather(product.clock.collect()))
        job.metrics.event("ttm", mode=setting.mode, seconds=taken[-1], split=split)
    parts = product.parts()

    def add() -> float:
        found = 0.0
        for part in parts:
            numbers = part.values.reshape(-1)
            for begin in range(0, numbers.size, BLOCK):
                found += float(np.square(numbers[begin : begin + BLOCK], dtype=np.float64).sum())
        return found

    norm, median = math.sqrt(sum(comm.allgather(together(comm, add)))), statistics.median(taken)
    rate = setting.total / median / 1e6
    job.display.note(f"mode {setting.mode}: {median * 1e3:.3f} ms, {rate:,.0f} million nonzeros/s, norm {norm:.9g}")
    job.metrics.event("result", mode=setting.mode, fibres=int(product.rows[-1]), norm=norm, seconds=median)
