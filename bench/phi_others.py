"""CP-APR of other tools on the same tensor: ALTO's programs, and pyttb."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from amped.errors import InputError
from partitioner.tensors.sparse import SparseTensor

from .harness import seconds_of

BITS = 64  # of indices, interleaved, that the smaller of ALTO's programs takes
SWEEPS = 20  # MTTKRPs of all modes in one of its runs
SEED = 1

Once = Callable[[], dict[str, float]]


def alto(programs: Path, tensor: SparseTensor, rank: int, threads: int, folder: Path, inner: int) -> Once:
    """Return a function that runs ALTO's CP-APR and MTTKRP once, and returns the seconds of a sweep over all modes.

    One outer iteration: in single precision its later ones take up to three times as long, as numbers become denormal.
    It reads the tensor from a file in `folder`.
    """
    bits = sum((length - 1).bit_length() for length in tensor.shape)
    program, path = programs / ("cpd64" if bits <= BITS else "cpd128"), folder / "tensor.tns"
    if not program.exists():
        raise InputError("--alto FOLDER: there is no such program", path=program)
    with path.open("wb") as file:
        np.savetxt(file, np.column_stack([*(tensor.columns + 1), tensor.values.astype(np.int64)]), "%d")
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
    common = [str(program), "-i", str(path), "-r", str(rank), "-x", str(SEED), "-p"]

    def reported(*flags: str) -> Callable[[str], float]:
        # Its exit status says nothing: some of its runs fail after they have printed all.
        text = subprocess.run([*common, *flags], env=environment, stdout=subprocess.PIPE, text=True, check=False).stdout

        def number(label: str) -> float:
            found = re.search(rf"{label}\s*[=:]\s*([0-9.]+)", text)
            if not found:
                raise InputError(f"ALTO did not say '{label}': {text[-300:]}")
            return float(found[1])

        return number

    def once() -> dict[str, float]:
        apr, mttkrp = (
            reported("-m", "1", "-n", str(inner), "-l", "APR"),
            reported("-m", str(SWEEPS), "-t", "-1", "-l", "ALS"),
        )
        sweeps = apr("Total inner iterations") / len(tensor.shape)
        return {
            "update of all modes": apr("CP-APR main iteration time") / sweeps,
            "Phi sweep": apr("CP-APR Phi accumulated time") / sweeps,
            "MTTKRP sweep": mttkrp("ALTO runtime") / SWEEPS,
        }

    return once


def pyttb(tensor: SparseTensor, rank: int, inner: int) -> Once:
    """Return a function that updates each mode this many times with pyttb's `cp_apr`, in double precision."""
    import pyttb as ttb

    rng = np.random.default_rng(SEED)
    start = ttb.ktensor([rng.random((length, rank)) for length in tensor.shape])
    sparse = ttb.sptensor(tensor.columns.T.astype(np.int64), tensor.values[:, None].copy(), tensor.shape)

    def once() -> dict[str, float]:
        options = {"maxiters": 1, "maxinneriters": inner, "init": start.copy(), "printitn": 0}
        return {"update of all modes": seconds_of(lambda: ttb.cp_apr(sparse, rank, "mu", 0.0, **options)) / inner}

    return once
