"""Results on disk: one JSON file per run, with the facts needed to judge and repeat it."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding

from amped.report.metrics import versions

from .spread import summary as summary

WIDTH = 160  # characters of a line
RESULTS = Path(__file__).parent / "results"


def machine(devices: Sequence[str]) -> dict[str, object]:
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


def write(name: str, devices: Sequence[str], facts: dict[str, object], folder: Path = RESULTS) -> Path:
    """Write a result as ``name.json`` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    result = {"benchmark": name, "date": today, "machine": machine(devices), "versions": versions(), **facts}
    path.write_text(formatted(result) + "\n")
    return path


def formatted(value: object, indent: int = 0) -> str:
    """Return a value as JSON in which whatever fits is one line, and numbers have nine digits."""
    flat = json.dumps(_rounded(value))
    if indent + len(flat) <= WIDTH or not value or not isinstance(value, dict | list | tuple):
        return flat
    space = " " * (indent + 1)
    if isinstance(value, dict):
        keys = [f"{json.dumps(str(key))}: " for key in value]
        parts = [key + formatted(each, indent + 1) for key, each in zip(keys, value.values(), strict=True)]
        return "{\n" + ",\n".join(space + part for part in parts) + "\n" + space[1:] + "}"
    if not any(isinstance(each, dict | list | tuple | str) for each in value):
        return flat
    return "[\n" + ",\n".join(space + formatted(each, indent + 1) for each in value) + "\n" + space[1:] + "]"


def _rounded(value: object) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
