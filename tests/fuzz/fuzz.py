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

from amped import assembly as job
from amped import checkpoint, files, run
from amped.models import kruskal, loading
from amped.verbs import info, mttkrp, plan, requests, runs
from partitioner import __main__ as partition
from partitioner import checked, coo, flags, labels, store
from partitioner.readers import blocks, form, head, headers, npz, pieces, tns

# Module by module: Numba, which compiles others, knows nothing of counters.
READERS = (argparse, json.decoder, json.scanner, zipfile, _format_impl, checked, coo, flags, labels, store, blocks,
           form, head, headers, npz, pieces, tns, checkpoint, files, info, job, kruskal, loading, mttkrp, partition,
           plan, requests, run, runs, targets)  # fmt: skip


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
