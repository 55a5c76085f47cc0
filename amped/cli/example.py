"""The bundled example, which ``amped`` runs without arguments, and its description in words."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from ..errors import InputError
from ..models.kruskal import KruskalTensor
from ..report import page
from ..report.sentences import sentences
from .cpd import CpdRequest
from .decompose import decompose
from .job import Job, VerbSession

NAME = "uber_pickups.npz"
ARGUMENTS = ["--rank", "6", "--nonnegative", "--max-iters", "500"]
PICTURE = "components.png"
NEXT = 'cpd events.csv --key user --key item --key "hour(time)" --rank 6 --nonnegative --report'


def example_line() -> list[str]:
    """Return the command line of the example, with a report if the libraries for it are installed."""
    return ["cpd", str(files("amped").joinpath("data", NAME)), *ARGUMENTS, *([] if page.missing() else ["--report"])]


def example(request: CpdRequest, session: VerbSession) -> int:
    """Decompose the bundled Uber pickups in New York, and describe the patterns."""
    return decompose(request, session, _show)


def _show(job: Job, model: KruskalTensor, place: Path) -> None:
    assert isinstance(job.request, CpdRequest)
    program = os.environ.get("AMPED_COMMAND", "amped")
    lines = ["", *_story(model), "", f"the numbers: {program} show {place}", _picture(model, place)]
    if job.request.report is not None:
        lines.append(f"the report, for a browser: {job.request.report_at(place)}")
    lines += ["for your data, use a table (CSV, JSON, Parquet) with one row per event; keys are columns or SQL:"]
    job.display.note("\n".join([*lines, f"    {program} {NEXT}"]))


def _picture(model: KruskalTensor, place: Path) -> str:
    """Draw the patterns; return a line with the path of the picture."""
    if page.missing() is not None:
        return f"for a picture and a report: {page.REMEDY}"
    try:
        model.plot(place / PICTURE)
    except InputError as error:
        return str(error)
    return f"a picture: {place / PICTURE}"


def _story(model: KruskalTensor) -> list[str]:
    """Return one sentence per pattern, those of the report, after a title."""
    head = f"{model.rank} patterns in Uber's pickups in New York, April to September 2014 (places: latitude, longitude)"
    return [head, *(f"{number}. {text}" for number, text in enumerate(sentences(model), 1))]
