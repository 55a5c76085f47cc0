"""Coverage-guided fuzzing: ``python tests/fuzz/fuzz.py TARGET [FOLDER OF INPUTS ...] [-max_total_time=60 ...]``.

Targets are those of targets.py, options those of libFuzzer. What is found lies in a file ``crash-...``; giving that
file in place of a folder runs it again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import zipfile
from pathlib import Path
from types import FunctionType, ModuleType

import atheris
from numpy.lib import _format_impl

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import targets

from amped import files, run
from amped.cli import cpd, mttkrp, plan, requests, run_requests, show, tucker
from amped.models import factor_model, kruskal, loading
from amped.runs import assembly as job
from amped.runs import checkpoint
from partitioner import __main__ as partition
from partitioner import flags
from partitioner.host import checksums
from partitioner.readers import form, pieces
from partitioner.readers.arrays import members, npz
from partitioner.readers.text import blocks, head, tns
from partitioner.store import format as store
from partitioner.tensors import labels
from partitioner.tensors import sparse as coo

# Module by module: Numba, which compiles others, knows nothing of counters.
READERS = (argparse, json.decoder, json.scanner, zipfile, _format_impl, checksums, coo, flags, labels, store, blocks,
           form, head, members, npz, pieces, tns, checkpoint, cpd, factor_model, files, job, kruskal, loading, mttkrp,
           partition, plan, requests, run, run_requests, show, targets, tucker)  # fmt: skip


def count(owner: object) -> None:
    """Count what is reached in the functions of a module or class."""
    name = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    for item in list(vars(owner).values()):
        if isinstance(item, FunctionType) and item.__module__ == name:
            atheris.instrument_func(item)
        elif isinstance(owner, ModuleType) and isinstance(item, type) and item.__module__ == name:
            count(item)


if __name__ == "__main__":
    name = sys.argv.pop(1)
    absolute = [str(Path(a).resolve()) if not a.startswith("-") else a for a in sys.argv]
    target = targets.TARGETS[name]
    for module in READERS:
        count(module)
    for file in (Path(__file__).parent / "corpus" / name).iterdir():  # compiles, before time and memory count
        with contextlib.suppress(AssertionError):
            target(file.read_bytes())
    atheris.Setup(absolute, target)
    atheris.Fuzz()
