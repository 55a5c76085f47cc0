"""Phi's CUDA code compiled otherwise than amped compiles it: for measurements only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from amped.backend.cuda.code import phi as phi_code
from amped.backend.cuda.layout import PackedLayout, make_layout
from amped.backend.device import Device
from amped.backend.ops.mttkrp import Kernel, Share
from partitioner.cuda.cubins import CudaSource

Edit = tuple[str, str]

NO_DIVISION: Edit = ("model[h] = inverse(model[h]);", ";")
"""Values are multiplied by the model's instead of divided."""
NO_ATOMICS: Edit = ("if (to.live) add(to.out + (long long)current * COLUMNS, sum);", """if (to.live) {
      volatile real* at = (volatile real*)(to.out + (long long)current * COLUMNS);
      for (int k = 0; k < PER_VECTOR; k++) at[k] = sum.at[k];
    }""")  # fmt: skip
"""Tiles' sums are stored over each other instead of added in the L2 cache."""


UNCHANGED: Mapping[str, Any] = {}


def edited(source: CudaSource, edits: Sequence[Edit]) -> CudaSource:
    """Return CUDA code with parts of its text replaced: each is there once."""
    text = source.text
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"the kernel has changed: {text.count(old)} times '{old}'")
        text = text.replace(old, new)
    return source._replace(text=text)


def compiled(layout: PackedLayout, macros: Mapping[str, object] = UNCHANGED, edits: Sequence[Edit] = ()) -> CudaSource:
    """Return the code of a layout's Phi with other macros and parts of its text."""
    return edited(phi_code.unit("phi", phi_code.macros(layout) | dict(macros)), edits)


def begin(device: Device, wanted: Iterable[tuple[Share, Sequence[Kernel]]], edits: Collection[Edit] = ()) -> None:
    """Begin to compile MTTKRP and Phi of nonzeros that will be packed for some kernels, side by side, on a GPU.

    Of Phi also a version with each of some edits.
    """
    from partitioner.cuda.code import prepare

    for share, kernels in wanted:
        for kernel in kernels:
            kernel.prepare(share)
            layout = make_layout(kernel.name, share, device.limits)
            prepare([compiled(layout), *(compiled(layout, edits=[edit]) for edit in edits)])


@contextmanager
def changed(macros: Mapping[str, object] = UNCHANGED, edits: Sequence[Edit] = ()) -> Iterator[None]:
    """Have Phi compiled with other macros and text where it is first run within."""
    from amped.backend.cuda.ops import phi

    new = dict(macros)
    was = phi.macros, phi.source
    phi._compiled.cache_clear()
    phi.macros = lambda layout, logs=False: phi_code.macros(layout, logs) | new
    phi.source = lambda layout, logs=False: compiled(layout, new, edits)
    try:
        yield
    finally:
        phi.macros, phi.source = was
        phi._compiled.cache_clear()
