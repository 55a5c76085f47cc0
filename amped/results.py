"""What is done with a model that is there: the verb ``show``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import requests
from .assembly import Session
from .errors import InputError
from .models.kruskal import load
from .parallel.mpi import on_root
from .report import components
from .report.progress import say


def show(request: requests.Show, session: Session) -> int:
    """Print the components of a model: their weights, shares, and the labels that have most of them."""
    told = on_root(session.comm, lambda: _told(request))
    if told is not None:
        say(told)
    return 0


def _told(request: requests.Show) -> str:
    request.check()
    model = load(request.tensor)
    return "\n".join([_headline(request.tensor, model.rank), components.text(model, request.top)])


def _headline(place: Path, rank: int) -> str:
    """Return what a model is of, and how well it fits, from its record beside it if there is one."""
    record = recorded(place)
    line = f"{place}: {rank} component{'s' * (rank > 1)}"
    if "tensor" in record:
        line += f" of {record['tensor']}"
    for name, what in (("fits", "fit"), ("loglikelihood", "log-likelihood")):
        if record.get(name):
            line += f"; {what} {record[name][-1]:.6g} after {record.get('iterations', len(record[name]))} iterations"
    return line


def recorded(place: Path) -> dict[str, Any]:
    """Return the record of the run that made a model: that beside it; nothing, if there is none that can be read."""
    folder = place if place.is_dir() else place.parent
    try:
        found = json.loads((folder / requests.RUN).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"no record of a run: {error}", path=folder / requests.RUN) from None
    return found if isinstance(found, dict) else {}
