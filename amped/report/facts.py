"""What a report says of a model beside its components: what was asked, how well it fits, and how the run went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from partitioner.errors import one_line as escaped
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.labels import mode_names
from partitioner.tensors.sparse import SparseTensor

from ..models.explained import explained_deviance, tensor_sum
from ..models.kruskal import KruskalTensor
from ..models.record import KINDS, is_sound
from .components import as_text, one_line

Run = Mapping[str, Any]
"""What is known of the run that made a model: what its record has."""

LONGEST = 300  # characters of an expression or a path
FIT = (
    "1 − ‖X − M‖ / ‖X‖ for the tensor X and the model M: 1 where they are equal, 0 where the model is no better "
    "than nothing at all."
)
EXPLAINED = "R²: the part of the tensor's squared values that the model accounts for, 1 − ‖X − M‖² / ‖X‖²."
ABSENT = (
    "What a sparse tensor lacks counts as 0, and the model is to be near 0 there, too. So the fit to counts that are "
    "mostly 0 or 1 is low even where the patterns are right: compare it with other numbers of components, not with 1."
)
DENSE = "All elements of a dense tensor count alike, zeros, too."
LIKELIHOOD = (
    "Values are taken for counts, each with a Poisson distribution around what the model expects. The log-likelihood "
    "is of all of them, but for a part that no model changes; it grows as the model gets better. What a sparse tensor "
    "lacks is a count of 0."
)
VIOLATION = "KKT violation: how far the model is from where nothing more is to be gained; it ends near 0."
OBJECTIVE = "Objective: the relative squared distance, and what the ridge adds for large components; it never rises."
DEVIANCE = (
    "Explained deviance: how far the model has come from expecting the same everywhere (0) to expecting each value "
    "exactly (1), measured by likelihood."
)
METHODS = {
    "als": "CP by alternating least squares",
    "mu": "CP of counts (CP-APR), multiplicative updates",
    "pdnr": "CP of counts (CP-APR), damped Newton steps by rows",
    "pqnr": "CP of counts (CP-APR), quasi-Newton steps by rows",
}


class Fact(NamedTuple):
    """A line of a table: a name, and what it is."""

    name: str
    told: str


class Number(NamedTuple):
    """A number that says how well a model fits."""

    name: str
    told: str


def known(model: KruskalTensor, run: Run) -> dict[str, Any]:
    """Return what is known of a run, from its record and from the model itself."""
    found: dict[str, Any] = dict(model.series)
    if model.fits:
        found["fits"] = list(model.fits)
    if found:
        found["converged"] = model.converged
    return found | {name: each for name, each in run.items() if name in KINDS and is_sound(name, each)}


def names_of(model: KruskalTensor) -> list[str]:
    """Return what each mode is, in one line each."""
    return [one_line(name, 60) for name in mode_names(model.labels, len(model.factors))]


def title(run: Run) -> str:
    """Return what the report is of."""
    return one_line(Path(str(run["tensor"])).name, 80) if run.get("tensor") else "a CP model"


def question(model: KruskalTensor, run: Run) -> list[Fact]:
    """Return what was asked for: the tensor, how it was made of a table, the method."""
    modes = " × ".join(f"{name} ({length:,})" for name, length in zip(names_of(model), model.shape, strict=True))
    found = [Fact("tensor", _text(run["tensor"]))] if run.get("tensor") else []
    found += [Fact("more files", _text(", ".join(run["more"])))] if run.get("more") else []
    found.append(Fact("modes", modes))
    if run.get("nonzeros") is not None:
        found.append(Fact("nonzeros", _nonzeros(run)))
    if run.get("key"):
        found.append(Fact("keys", _text("; ".join(run["key"]))))
        found.append(Fact("value", _text(run.get("value") or "number of rows")))
        found.append(Fact("rows", _text(f"where {run['where']}" if run.get("where") else "all")))
        kept = "have a label of their own" if run.get("missing") == "keep" else "are left out"
        found.append(Fact("missing keys", f"rows that lack one {kept}"))
    found.append(Fact("components", str(model.rank)))
    return found + _method(model, run)


def _nonzeros(run: Run) -> str:
    """Return how many there are, and what was repaired in them."""
    found = f"{run['nonzeros']:,}"
    for name, told in (("duplicates", "duplicates summed"), ("zeros", "zeros dropped")):
        if run.get(name):
            found += f"; {run[name]:,} {told}"
    return found


def _method(model: KruskalTensor, run: Run) -> list[Fact]:
    found = [Fact("method", METHODS[run["method"]])] if run.get("method") in METHODS else []
    if run.get("nonnegative"):
        every = len(run["nonnegative"]) == len(model.factors)
        found.append(Fact("no negative numbers", "in any mode" if every else f"in {_modes(model, run['nonnegative'])}"))
    if run.get("ridge"):
        found.append(Fact("ridge", ", ".join(f"{number:g}" for number in run["ridge"])))
    if run.get("fixed_modes"):
        found.append(Fact("kept as given", _modes(model, run["fixed_modes"])))
    if run.get("init") is not None:
        found.append(Fact("start", _text(run["init"] or "given matrices")))
    elif run.get("seed") is not None:
        found.append(Fact("start", f"random, seed {run['seed']}"))
    if run.get("precision"):
        found.append(Fact("precision", {"fp32": "single", "fp64": "double"}.get(run["precision"], "")))
    return found


def _modes(model: KruskalTensor, modes: Sequence[int]) -> str:
    return ", ".join(name for mode, name in enumerate(names_of(model)) if mode in modes)


def numbers(run: Run) -> list[Number]:
    """Return how well a model fits, and how its iterations ended."""
    found = list[Number]()
    if run.get("fits"):
        fit = run["fits"][-1]
        found += [Number("fit", f"{fit:.4f}"), Number("R²", f"{1 - (1 - fit) ** 2:.1%}")]
    if run.get("loglikelihood"):
        found.append(Number("log-likelihood", f"{run['loglikelihood'][-1]:,.6g}"))
    if run.get("kkt"):
        found.append(Number("KKT violation", f"{run['kkt'][-1]:.2g}"))
    if run.get("deviance") is not None:
        found.append(Number("explained deviance", f"{run['deviance']:.1%}"))
    if run.get("sums") is not None:
        ours, theirs = run["sums"]
        found.append(Number("model's sum", f"{ours / theirs:.1%} of the tensor's" if theirs else f"{ours:,.6g}"))
    if (count := iterations(run)) is not None:
        found.append(Number("iterations", f"{count}, {'converged' if run.get('converged') else 'not converged'}"))
    return found


def iterations(run: Run) -> int | None:
    """Return how many iterations there were, if that is known."""
    series = [run[name] for name in ("fits", "loglikelihood") if run.get(name)]
    found = run.get("iterations", len(series[0]) if series else None)
    return None if found is None else int(found)


def meaning(run: Run) -> list[str]:
    """Return what those numbers mean, in sentences."""
    found = list[str]()
    if run.get("fits"):
        found += [f"Fit: {FIT}", EXPLAINED, DENSE if run.get("tensor_kind") == "dense" else ABSENT]
    if run.get("objectives"):
        found.append(OBJECTIVE)
    if run.get("loglikelihood"):
        found += [LIKELIHOOD, VIOLATION]
    if run.get("deviance") is not None:
        found.append(DEVIANCE)
    return found


def compared(model: KruskalTensor, tensor: SparseTensor | DenseTensor, run: Run) -> dict[str, Any]:
    """Return how well a model fits a tensor, computed from both: what takes the place of what a record says."""
    fit, fits = model.score(tensor), list(run.get("fits") or ())
    found: dict[str, Any] = {"fits": [*fits[:-1], fit]}
    if run.get("loglikelihood"):
        found = {"deviance": explained_deviance(model.weights, model.factors, tensor)}
    if all(factor.min(initial=0) >= 0 for factor in model.factors):
        ours = float(model.weights @ np.prod([f.sum(axis=0, dtype=np.float64) for f in model.factors], axis=0))
        found["sums"] = ours, tensor_sum(tensor)
    if isinstance(tensor, SparseTensor):
        found = {"nonzeros": tensor.nnz, **found}
    return {"tensor_kind": tensor.kind, **found}


def machine(run: Run) -> str | None:
    """Return what the run was on."""
    if not run.get("device_description"):
        return None
    ranks = run.get("ranks", 1)
    each = run.get("seconds_an_iteration")
    pace = f"; an iteration took {duration(each)} (median)" if each else ""
    return f"{ranks} rank{'s' * (ranks > 1)}: {run['device_description']}{pace}"


def duration(seconds: float) -> str:
    """Return seconds in a unit that keeps them short."""
    if seconds >= 90:
        return f"{seconds / 60:.3g} min"
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


def command(run: Run) -> str | None:
    """Return the command that makes the model again, if that is known."""
    return escaped(run["command"]) if run.get("command") else None


def versions(run: Run) -> dict[str, str]:
    """Return what the run was made with."""
    return {escaped(name): escaped(told) for name, told in run.get("versions", {}).items()}


def _text(given: Any) -> str:
    return as_text(str(given), LONGEST)


Series = tuple[str, Sequence[float], bool]
"""A name, a number after each iteration, and whether they are drawn on a logarithmic axis."""


def series(run: Run) -> list[Series]:
    """Return what was noted after each iteration, the most telling first."""
    wanted = (
        ("fits", "fit", False), ("objectives", "objective", False),
        ("loglikelihood", "log-likelihood", False), ("kkt", "KKT violation", True),
    )  # fmt: skip
    return [(told, run[name], logarithmic) for name, told, logarithmic in wanted if len(run.get(name) or ()) > 1]
