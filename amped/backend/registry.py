"""Which kernels a device has: a module for each operation, in the folder ``ops`` beside the device."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from .device import Device
from .ops import (
    batch,
    cast16,
    dense,
    eigh,
    equations,
    mttkrp,
    mu_update,
    nonnegative,
    phi,
    rowproblems,
    solve,
    sort,
    ttm,
    ttmc,
)
from .ops.interleaved import OP as INTERLEAVED
from .ops.interleaved import Interleaved


def _providers(device: Device, op: str) -> Sequence[Any]:
    """Return an operation's providers on a device, those to prefer first; none if it has no such module."""
    name = f"{__package__}.{device.name}.ops.{op}"
    found: Sequence[Any] = import_module(name).providers(device) if find_spec(name) else []
    return found


def mttkrp_kernels(device: Device) -> Sequence[mttkrp.Kernel]:
    """Return the MTTKRP kernels; the first suits all nonzeros and gives bitwise equal results every time."""
    return _providers(device, mttkrp.OP)


def dense_kernels(device: Device) -> Sequence[dense.DenseKernel]:
    """Return the kernels of dense tensors, the default first; none on a device that has no such."""
    return _providers(device, dense.OP)


def ttm_kernels(device: Device) -> Sequence[ttm.TtmKernel]:
    """Return the kernels of sparse tensors times matrices, the default first."""
    return _providers(device, ttm.OP)


def phis(device: Device) -> Sequence[phi.Phi]:
    """Return what computes Phi, those to prefer first."""
    return _providers(device, phi.OP)


def phi_of(device: Device, kernel: mttkrp.Kernel, share: mttkrp.Share) -> phi.Phi | None:
    """Return what computes the Phi of such nonzeros from a kernel's shards, if anything does."""
    return next((p for p in phis(device) if p.suits(kernel, share)), None)


def interleaved(device: Device) -> Interleaved | None:
    """Return what computes Phi of interleaved models, if anything does."""
    return next(iter(_providers(device, INTERLEAVED)), None)


def ttmc_of(device: Device, kernel: mttkrp.Kernel, share: mttkrp.Share) -> ttmc.Ttmc | None:
    """Return what computes the TTMc of such nonzeros from a kernel's shards, if anything does."""
    found: Sequence[ttmc.Ttmc] = _providers(device, ttmc.OP)
    return next((p for p in found if p.suits(kernel, share)), None)


def multiplies(device: Device) -> mu_update.MuUpdateProvider:
    """Return what does the elementwise work of multiplicative updates."""
    found: mu_update.MuUpdateProvider = _providers(device, mu_update.OP)[0]
    return found


def row_problems(device: Device) -> dict[rowproblems.RowMethod, rowproblems.RowProblems]:
    """Return what solves the row problems of CP-APR, by method; none on a device that cannot."""
    return {provider.method: provider for provider in _providers(device, rowproblems.OP)}


def solver(device: Device, rank: int, dtype: np.dtype[Any]) -> solve.Solver:
    """Return the first solver that suits rows of so many columns; the last one suits all."""
    found: solve.Solver = next(s for s in _providers(device, solve.OP) if s.suits(rank, dtype))
    return found


def nonnegative_solver(device: Device, rank: int, dtype: np.dtype[Any]) -> nonnegative.NonnegativeSolver:
    """Return the first that solves rows of so many columns without negative numbers; the last one suits all."""
    solvers: Sequence[nonnegative.NonnegativeSolver] = _providers(device, nonnegative.OP)
    return next(s for s in solvers if s.suits(rank, dtype))


def equations_of(device: Device, rank: int) -> equations.EquationsProvider:
    """Return what keeps the small matrices of so many columns; the last provider suits all."""
    found: equations.EquationsProvider = next(p for p in _providers(device, equations.OP) if p.suits(rank))
    return found


def leading_of(device: Device, size: int, count: int) -> eigh.Eigh | None:
    """Return what finds so many leading eigenvectors without the host, if anything does."""
    found: Sequence[eigh.Eigh] = _providers(device, eigh.OP)
    return next((p for p in found if p.suits(size, count)), None)


def batches(device: Device) -> batch.BatchProvider | None:
    """Return what keeps batches of runs of CP-ALS, if anything does."""
    return next(iter(_providers(device, batch.OP)), None)


def roundings(device: Device) -> dict[str, cast16.Rounding]:
    """Return the 16-bit formats by name."""
    return {rounding.name: rounding for rounding in _providers(device, cast16.OP)}


def sorter(device: Device) -> sort.DeviceSorter | None:
    """Return what sorts nonzeros in device memory, if they need not be sorted on the host."""
    return next(iter(_providers(device, sort.OP)), None)
