"""Products of sparse tensors: what an operator computes is one class, which the package need not know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from oracle import coo_mttkrp, random_factors, small_pieces

import amped
from amped.backend.device import NOTHING
from amped.backend.ops.mttkrp import Kernel, Operands, Shard
from amped.errors import InputError
from amped.operators.modes import ModePlan
from amped.operators.products import Mttkrp
from amped.options import Options
from amped.parallel.mpi import world
from amped.runs.assembly import bring_up, open_tensor, setting_for
from amped.runs.kinds import SPARSE

RNG = np.random.default_rng(0)
INDICES = np.unique(RNG.integers(0, (9, 8, 7), (200, 3)), axis=0)
TENSOR = amped.SparseTensor(INDICES, RNG.integers(1, 9, len(INDICES)).astype(float), (9, 8, 7))


@dataclass(frozen=True)
class Times(Mttkrp):
    """Several copies of the MTTKRP, side by side."""

    times: int = 2

    def width(self, mode: ModePlan) -> int:
        return self.times * mode.share.stride

    columns = width

    def bytes(self, kernel: Kernel, mode: ModePlan, nnz: int) -> int:
        return super().bytes(kernel, mode, nnz) + nnz

    def run(self, shard: Shard, mode: ModePlan, operands: Operands, new: slice = NOTHING, data: object = None) -> None:
        out = np.zeros((len(operands.out), mode.share.stride))
        super().run(shard, mode, operands._replace(out=out), new)
        operands.out[new] = 0
        operands.out[:] += np.tile(out, self.times)


def placed(product: Mttkrp, **options: Any) -> Any:
    chosen = Options("cpu", precision="fp64", **options)
    machine = bring_up(chosen, world())
    source = open_tensor(TENSOR, machine, chosen)
    return SPARSE.place(source, machine, setting_for(source, 3, machine, chosen)._replace(product=product), None)


@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_a_product_from_outside_the_package(placement: str) -> None:
    factors = random_factors(0, TENSOR.shape, 3)
    with small_pieces(20):
        operator = placed(Times(), placement=placement)
    assert operator.plan.device_bytes["MTTKRP output"] == 9 * 2 * operator.plan.modes[0].share.stride * 8
    for mode, factor in enumerate(factors):
        operator.set_factor(mode, factor)
    for mode in range(TENSOR.order):
        found = operator.compute(Times(), mode).reshape(TENSOR.shape[mode], 2, -1)[:, :, :3]
        want = coo_mttkrp(TENSOR.columns, TENSOR.values, factors, mode)
        np.testing.assert_allclose(found, np.stack([want, want], axis=1), rtol=1e-12)


def test_a_product_that_no_kernel_computes() -> None:
    class Never(Times):
        label = "such thing"

        def provider(self, *given: Any) -> Any:
            return None

    with pytest.raises(InputError, match="cpu computes no such thing of 3 columns; use fewer"):
        placed(Never())
