"""The pages of methods give the reference values that are computed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forms import exhaustive
from oracle import tensor_path

import amped

ROOT = Path(__file__).parents[2]
PICKUPS = ROOT / "amped" / "data" / "uber_pickups.npz"
FUNCTIONS: dict[str, Any] = {
    "cp_als": amped.cp_als,
    "nonnegative": lambda *given, **options: amped.cp_als(*given, nonnegative=True, **options),
    "constrained": amped.cp_als,
    "observed": amped.cp_als,
    "cp_apr": amped.cp_apr,
    "gcp": amped.cp,
    "stochastic": amped.cp,
    "tucker": amped.tucker,
}
SERIES = {"log-likelihood": "loglikelihood", "estimated objective": "objective", "RMSE": "rmse"}


def rows() -> Iterator[Any]:
    """Yield the page, the options, and the figures by column of each row of the tables; long runs exhaustively."""
    for page in FUNCTIONS:
        text = (ROOT / "docs" / "methods" / f"{page}.md").read_text().split("## Reference values")[1]
        head, _, *lines = re.findall(r"^\| (.*) \|$", text.split("\n## ")[0], re.MULTILINE)
        for line in lines:
            case, iterations, *figures = line.split(" | ")
            values = page, case, iterations, dict(zip(head.split(" | ")[2:], figures, strict=True))
            short = case.startswith("uber_pickups") and page != "stochastic"  # which compiles more than others
            yield pytest.param(*values) if short else exhaustive(*values)


@pytest.mark.parametrize(("page", "case", "iterations", "figures"), [*rows()])
def test_reference_values(
    page: str, case: str, iterations: str, figures: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.startswith("uber_pickups"):
        monkeypatch.setenv("AMPED_COMPILE", "never")
    tensor, rank, *options = re.split(", (?![^`]*`$)", case)
    ranks = [int(number) for number in rank.split(" x ")]
    arguments = eval(f"dict({options[0].strip('`')})") if options else {}
    path = PICKUPS if tensor == PICKUPS.stem else tensor_path("uber393k_4d")
    fixed = {"seed": 0, "precision": "fp64", "device": "cpu"}
    model = FUNCTIONS[page](path, ranks if len(ranks) > 1 else ranks[0], **fixed | arguments)
    count, *ending = iterations.split(", ")
    history = model.fits or next(iter(model.series.values()))
    assert len(history) == pytest.approx(int(count), rel=0.1)
    assert not ending or model.converged == (ending == ["converged"])
    for name, text in figures.items():
        if name == "exact":
            continue
        value = model.fits[-1] if name == "fit" else model.series[SERIES.get(name, name)][-1]
        assert value == pytest.approx(float(text.replace(",", "").replace("−", "-")), rel=1e-3), name
