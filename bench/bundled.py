"""The tensors that come with amped. This module does not import amped, whose first import is measured."""

from __future__ import annotations

from pathlib import Path

EXAMPLE, UBER = "uber_pickups.npz", "uber393k_4d.tns.gz"


def bundled(name: str = EXAMPLE) -> Path:
    """Return the path of a tensor that comes with amped."""
    from importlib.resources import files

    return Path(str(files("amped").joinpath("data", name)))
