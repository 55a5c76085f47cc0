"""Results on disk: one JSON file per run, with the facts needed to judge and repeat it."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np

from amped.report.metrics import versions

RESULTS = Path(__file__).parent / "results"


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the spread of repeated measurements."""
    low, median, high = np.percentile(values, (25, 50, 75))
    return {"median": float(median), "quartile_1": float(low), "quartile_3": float(high), "runs": len(values)}


def machine(devices: Sequence[str]) -> dict[str, Any]:
    """Return the machine's facts: processor, cores, and the ranks' devices."""
    return {"processor": _processor(), "cores": len(os.sched_getaffinity(0)), "devices": list(devices)}


def _processor() -> str:
    """Return the processor's name and LLVM's name of its type, as virtual machines hide the model."""
    return f"{_model()} ({llvmlite.binding.get_host_cpu_name()})"


def _model() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return platform.processor()


def write(name: str, devices: Sequence[str], facts: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write a result as ``name.json`` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    result = {"benchmark": name, "date": today, "machine": machine(devices), "versions": versions(), **facts}
    text = re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), json.dumps(result, indent=1))
    path.write_text(text + "\n")
    return path
