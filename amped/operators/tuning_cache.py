"""Disk cache of measurements on a device, for later runs.

Each measurement is a small JSON file, named by a digest of all that it depends on. Files that are missing, damaged or
owned by another user are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from partitioner import __version__
from partitioner.host.cache import load_entry, new_digest, save_entry

from ..backend.device import Device

DIGITS = 2  # significant digits of numbers of nonzeros and rows, which differ slightly between ranks and runs


def load_timings(kind: str, facts: Mapping[str, Any], device: Device) -> dict[str, float]:
    """Return the numbers stored for these facts; empty if there are none."""
    try:
        numbers = json.loads(load_entry(_name(kind, facts, device)) or b"{}")
    except (ValueError, RecursionError):
        return {}
    items = numbers.items() if isinstance(numbers, dict) else ()
    return {name: number for name, number in items if isinstance(number, float) and 0 < number < math.inf}


def store_timings(kind: str, facts: Mapping[str, Any], device: Device, numbers: Mapping[str, float]) -> None:
    """Store numbers, which must be finite and positive, for these facts."""
    save_entry(_name(kind, facts, device), json.dumps(numbers).encode())


def rounded(count: int) -> str:
    """Return a number of nonzeros or rows, rounded to `DIGITS` digits, for use in a key."""
    return f"{count:.{DIGITS}g}"


def _name(kind: str, facts: Mapping[str, Any], device: Device) -> str:
    whole = {**facts, "device": device.model, "version": __version__, "code": _code(device.folder)}
    return f"{kind}-{new_digest(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:40]}.json"


@cache
def _code(device: str) -> str:
    """Return a digest of the source of a device and its kernels."""
    folder, digest = Path(str(files(f"amped.backend.{device}"))), new_digest()
    for each in sorted(folder.rglob("*")):
        if each.suffix in (".py", ".cu", ".cuh"):
            digest.update(str(each.relative_to(folder)).encode() + b"\0" + each.read_bytes() + b"\0")
    return digest.hexdigest()
