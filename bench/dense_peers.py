"""What a user would type in place of amped: einsum, and two plain products with Khatri-Rao products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import threadpoolctl

from amped.backend.device import Array
from partitioner.host.threads import usable_cores

from .harness import Work

LETTERS = "abcdefgh"


def equations(order: int) -> list[str]:
    """Return the MTTKRP of each mode as an equation of einsum."""
    names = LETTERS[:order]
    return [
        ",".join([names, *(f"{n}z" for n in names if n != names[mode])]) + f"->{names[mode]}z" for mode in range(order)
    ]


def peers_of(device: str, threads: int | None, array: np.ndarray, factors: Sequence[np.ndarray]) -> dict[str, Work]:
    """Return what a user would type: einsum; two plain matrix products of the whole tensor; a copy of it."""
    if device == "cuda":
        return _torch_peers(array, factors)
    most, target = threads or usable_cores(), np.empty_like(array)

    def with_all_threads(work: Work) -> Work:
        def sweep() -> None:
            with threadpoolctl.threadpool_limits(most):
                work()

        return sweep

    def einsum(equation: str, *operands: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.einsum(equation, *operands, optimize=True)
        return found

    return {
        "einsum": with_all_threads(every_mode(einsum, array, factors)),
        "products": with_all_threads(two_products(einsum, array, factors)),
        "copy": lambda: np.copyto(target, array),
    }


def _torch_peers(array: np.ndarray, factors: Sequence[np.ndarray]) -> dict[str, Work]:
    try:
        import torch
    except ImportError:
        print("no peers: PyTorch is not installed", flush=True)
        return {}
    torch.backends.cuda.matmul.allow_tf32 = False
    tensor, matrices = torch.as_tensor(array, device="cuda"), [torch.as_tensor(f, device="cuda") for f in factors]
    torch.cuda.empty_cache()
    target = torch.empty_like(tensor)

    def waited(work: Work) -> Work:
        def sweep() -> None:
            work()
            torch.cuda.synchronize()

        return sweep

    return {
        "einsum": waited(every_mode(torch.einsum, tensor, matrices)),
        "products": waited(two_products(torch.einsum, tensor, matrices)),
        "copy": waited(lambda: target.copy_(tensor)),
    }


def every_mode(einsum: Any, tensor: Any, factors: Sequence[Array]) -> Work:
    def sweep() -> list[Array]:
        order = len(factors)
        return [
            einsum(equation, tensor, *(factors[m] for m in range(order) if m != mode))
            for mode, equation in enumerate(equations(order))
        ]

    return sweep


def two_products(einsum: Any, tensor: Any, factors: Sequence[Array]) -> Work:
    """Modes in two groups of about equal numbers of indices; each product serves a group."""
    lengths = [len(f) for f in factors]
    at = min(range(1, len(lengths)), key=lambda k: math.prod(lengths[:k]) + math.prod(lengths[k:]))
    matrix = tensor.reshape(math.prod(lengths[:at]), -1)

    def khatri_rao(matrices: Sequence[Array]) -> Array:
        found = matrices[0]
        for other in matrices[1:]:
            found = (found[:, None, :] * other[None, :, :]).reshape(-1, found.shape[1])
        return found

    def group(partial: Any, matrices: Sequence[Array]) -> list[Array]:
        if len(matrices) == 1:
            return [partial]
        shaped, names = partial.reshape(*(len(m) for m in matrices), -1), LETTERS[: len(matrices)]
        found = []
        for mode in range(len(matrices)):
            others = [m for m in range(len(matrices)) if m != mode]
            equation = ",".join([f"{names}z", *(f"{names[m]}z" for m in others)]) + f"->{names[mode]}z"
            found.append(einsum(equation, shaped, *(matrices[m] for m in others)))
        return found

    def sweep() -> list[Array]:
        first = group(matrix @ khatri_rao(factors[at:]), factors[:at])
        return first + group(matrix.T @ khatri_rao(factors[:at]), factors[at:])

    return sweep
