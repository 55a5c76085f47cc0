"""The parts of a report other than the components: the input and method, the fit, and the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from partitioner.errors import one_line as escaped
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.labels import mode_names
from partitioner.tensors.observed import STORED
from partitioner.tensors.sparse import SparseTensor
from partitioner.wording import readable

from ..backend.known_losses import KNOWN
from ..files import relative
from ..methods.gcp import GENERAL
from ..models.explained import explained_deviance, tensor_sum
from ..models.history import AnyModel
from ..models.kruskal import KruskalTensor
from ..models.record import KINDS, is_sound
from ..models.tucker import TuckerTensor
from .components import as_text, one_line
from .text import figure

Run = Mapping[str, Any]
"""The record of the run that made a model."""

LONGEST = 300  # maximum characters of an expression or a path
FIT = "1 − ‖X − M‖ / ‖X‖ for the tensor X and the model M: 1 if they are equal, 0 if the model is no better than zero."
EXPLAINED = "R²: the share of the tensor's squared norm that the model explains, 1 − ‖X − M‖² / ‖X‖²."
ABSENT = (
    "Absent elements of a sparse tensor count as 0. The fit to counts that are mostly 0 or 1 is therefore low even if "
    "the patterns are right: compare it with other numbers of components, not with 1."
)
DENSE = "All elements of a dense tensor have equal weight, including zeros."
LIKELIHOOD = (
    "Log-likelihood: each value is modelled as a Poisson count whose mean is the model's value there. Terms that do "
    "not depend on the model are left out. It increases as the model improves. Absent elements of a sparse tensor are "
    "counts of 0."
)
VIOLATION = "KKT violation: the distance from the conditions that hold at an optimum; it ends near 0."
OBSERVED = "Only observed elements count; others are unknown, not zero."
OBSERVED_OBJECTIVE = "Objective: the (weighted) sum of squared residuals plus the ridge penalty; it never increases."
OBJECTIVE = "Objective: the relative squared distance plus the ridge penalty; it never increases."
DEVIANCE = (
    "Explained deviance: the position of the model's log-likelihood between that of a constant rate (0) and that of an "
    "exact model (1)."
)
LOSS = "Objective: the sum of the loss over all elements that count, plus the ridge penalty; it never increases."
LOSS_DEVIANCE = (
    "Explained deviance: the position of the model's loss between that of the best constant (0) and that of a model "
    "that fits each element by itself (1)."
)
METHODS = {
    "als": "CP by alternating least squares",
    "mu": "CP of counts (CP-APR), multiplicative updates",
    "pdnr": "CP of counts (CP-APR), damped Newton steps by rows",
    "pqnr": "CP of counts (CP-APR), quasi-Newton steps by rows",
    "lbfgs": "generalised CP (GCP) by quasi-Newton steps, L-BFGS-B",
    "newton": "generalised CP (GCP) by Newton steps of rows",
    "adam": "generalised CP (GCP) by stochastic gradients, Adam",
    "adagrad": "generalised CP (GCP) by stochastic gradients, AdaGrad",
    "hooi": "Tucker by higher-order orthogonal iteration (HOOI)",
    "hosvd": "Tucker by the higher-order singular value decomposition (HOSVD)",
    "sthosvd": "Tucker by the sequentially truncated HOSVD",
    "sgd": "generalised CP (GCP) by stochastic gradients (SGD)",
}


class Fact(NamedTuple):
    """A row of a table: a name and its value."""

    name: str
    value: str


class Number(NamedTuple):
    """A figure about the fit of a model."""

    name: str
    value: str


def known(model: AnyModel, run: Run) -> dict[str, object]:
    """Return the valid facts about a run, from its record and from the history of the model."""
    history: dict[str, Any] = dict(model.series)
    if model.fits:
        history["fits"] = list(model.fits)
    if history:
        history["converged"] = model.converged
    facts = {name: list(each) if isinstance(each, tuple) else each for name, each in run.items()}
    return history | {name: each for name, each in facts.items() if name in KINDS and is_sound(name, each)}


def names_of(model: KruskalTensor) -> list[str]:
    """Return the name of each mode, in one line each."""
    return [one_line(name, 60) for name in mode_names(model.labels, len(model.factors))]


def title(run: Run, kind: str = "a CP model") -> str:
    """Return the title of the report: the name of the tensor's file, or the kind of the model."""
    return one_line(Path(str(run["tensor"])).name, 80) if run.get("tensor") else kind


def question(model: KruskalTensor, run: Run, whole: TuckerTensor | None = None) -> list[Fact]:
    """Return facts about the input and the method: the tensor, the query of its table, and the parameters.

    `model` are terms of the Tucker model `whole`, if there is one.
    """
    modes = " × ".join(f"{name} ({length:,})" for name, length in zip(names_of(model), model.shape, strict=True))
    facts = [Fact("tensor", _text(relative(run["tensor"])))] if run.get("tensor") else []
    facts += [Fact("more files", _text(", ".join(map(relative, run["more"]))))] if run.get("more") else []
    facts.append(Fact("modes", modes))
    if run.get("nonzeros") is not None:
        facts.append(Fact("nonzeros", _nonzeros(run)))
    if run.get("key"):
        facts.append(Fact("keys", _text("; ".join(run["key"]))))
        facts.append(Fact("value", _text(run.get("value") or "number of rows")))
        facts.append(Fact("rows", _text(f"where {run['where']}" if run.get("where") else "all")))
        handling = "get a separate label" if run.get("missing") == "keep" else "are dropped"
        facts.append(Fact("missing keys", f"rows without a key {handling}"))
    size = Fact("components", str(model.rank)) if whole is None else Fact("core", " × ".join(map(str, whole.ranks)))
    facts.append(size)
    return facts + _method(model, run)


def _nonzeros(run: Run) -> str:
    """Return the number of nonzeros, and the repairs on reading."""
    text = f"{run['nonzeros']:,}"
    for name, repair in (("duplicates", "duplicates summed"), ("zeros", "zeros dropped")):
        if run.get(name):
            text += f"; {run[name]:,} {repair}"
    return text


def _method(model: KruskalTensor, run: Run) -> list[Fact]:
    facts = [Fact("method", METHODS[run["method"]])] if run.get("method") in METHODS else []
    if run.get("method") in GENERAL and run.get("loss"):
        facts.append(Fact("loss", _loss(run["loss"])))
    if run.get("nonnegative"):
        every = len(run["nonnegative"]) == len(model.factors)
        modes = "all modes" if every else _modes(model, run["nonnegative"])
        facts.append(Fact("constraint", f"non-negative in {modes}"))
    if run.get("ridge"):
        facts.append(Fact("ridge", ", ".join(f"{number:g}" for number in run["ridge"])))
    if run.get("constraints"):
        of_modes = [f"{_modes(model, [int(mode)])}: {', '.join(names)}" for mode, names in run["constraints"].items()]
        facts.append(Fact("constraints", _text("; ".join(of_modes))))
    if run.get("fixed_modes"):
        facts.append(Fact("fixed modes", _modes(model, run["fixed_modes"])))
    if run.get("init") is not None:
        facts.append(Fact("start", _text(run["init"] or "matrices in memory")))
    elif run.get("seed") is not None:
        facts.append(Fact("start", f"random, seed {run['seed']}"))
    if run.get("precision"):
        facts.append(Fact("precision", {"fp32": "single", "fp64": "double"}.get(run["precision"], "")))
    return facts


def _loss(name: str) -> str:
    """Return the name of a loss, with the data that it suits."""
    known = KNOWN.get(name.partition(":")[0])
    return _text(name) if known is None else f"{_text(name)}: for {known.data}"


def _modes(model: KruskalTensor, modes: Sequence[int]) -> str:
    return ", ".join(name for mode, name in enumerate(names_of(model)) if mode in modes)


def numbers(run: Run) -> list[Number]:
    """Return the final figures of the fit, and the number of iterations."""
    figures = list[Number]()
    if run.get("fits"):
        fit = run["fits"][-1]
        figures += [Number("fit", f"{fit:.4f}"), Number("R²", f"{1 - (1 - fit) ** 2:.1%}")]
    if run.get("method") in GENERAL and run.get("objectives"):
        figures.append(Number("objective", figure(run["objectives"][-1])))
    if run.get("rmse"):
        figures.append(Number("RMSE", readable(run["rmse"][-1], 4)))
    if run.get("loglikelihood"):
        figures.append(Number("log-likelihood", figure(run["loglikelihood"][-1])))
    if run.get("kkt"):
        figures.append(Number("KKT violation", f"{run['kkt'][-1]:.2g}"))
    if run.get("deviance") is not None:
        figures.append(Number("explained deviance", f"{run['deviance']:.1%}"))
    if run.get("sums") is not None:
        of_model, of_tensor = run["sums"]
        share = f"{of_model / of_tensor:.1%} of the tensor's" if of_tensor else figure(of_model)
        figures.append(Number("model's sum", share))
    if (count := iterations(run)) is not None:
        figures.append(Number("iterations", f"{count}, {'converged' if run.get('converged') else 'not converged'}"))
    return figures


def iterations(run: Run) -> int | None:
    """Return the number of iterations; None if unknown."""
    series = [run[name] for name in ("fits", "loglikelihood") if run.get(name)]
    count = run.get("iterations", len(series[0]) if series else None)
    return None if count is None else int(count)


def meaning(run: Run) -> list[str]:
    """Return sentences that explain the figures."""
    sentences = list[str]()
    if run.get("fits"):
        partial = run.get("partial", bool(run.get("mask")))
        weighting = OBSERVED if partial else DENSE if run.get("tensor_kind") == "dense" else ABSENT
        sentences += [f"Fit: {FIT}", EXPLAINED, weighting]
    general = run.get("method") in GENERAL
    if run.get("objectives"):
        sentences.append(LOSS if general else OBSERVED_OBJECTIVE if run.get("mask") else OBJECTIVE)
    if run.get("loglikelihood"):
        sentences += [LIKELIHOOD, VIOLATION]
    if run.get("deviance") is not None:
        sentences.append(LOSS_DEVIANCE if general else DEVIANCE)
    return sentences


def compared(model: KruskalTensor, tensor: SparseTensor | DenseTensor, run: Run, partial: bool) -> dict[str, object]:
    """Return facts computed from the model and the tensor, which replace those of the record.

    If it is `partial`, elements that the sparse tensor does not store are missing: only the fit is known.
    """
    facts: dict[str, object] = {"partial": partial}
    mask, has_link = STORED if partial else None, model.known_loss is not None
    if has_link:
        facts["deviance"] = model.score(tensor, mask=mask)
    elif not run.get("loglikelihood"):
        facts |= with_fit(run, model.score(tensor, mask=mask))
    elif not partial:
        facts["deviance"] = explained_deviance(model.weights, model.host_factors, tensor)
    if not (partial or has_link) and all(factor.min(initial=0) >= 0 for factor in model.host_factors):
        total = float(model.weights @ np.prod([f.sum(axis=0, dtype=np.float64) for f in model.host_factors], axis=0))
        facts["sums"] = total, tensor_sum(tensor)
    if isinstance(tensor, SparseTensor):
        facts = {"nonzeros": tensor.nnz, **facts}
    return {"tensor_kind": tensor.kind, **facts}


def with_fit(run: Run, fit: float) -> dict[str, object]:
    """Return the fits of a record with another last one."""
    return {"fits": [*(run.get("fits") or ())[:-1], fit]}


def machine(run: Run) -> str | None:
    """Return a line about the ranks, the device and the time per iteration; None if unknown."""
    if not run.get("device_description"):
        return None
    ranks = run.get("ranks", 1)
    median = run.get("seconds_an_iteration")
    time = f"; median time per iteration: {duration(median)}" if median else ""
    return f"{ranks} rank{'s' * (ranks > 1)}: {run['device_description']}{time}"


def duration(seconds: float) -> str:
    """Return seconds as text in minutes, seconds or milliseconds."""
    if seconds >= 90:
        return f"{seconds / 60:.3g} min"
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


def command(run: Run) -> str | None:
    """Return the command that reproduces the model; None if unknown."""
    return escaped(run["command"]) if run.get("command") else None


def versions(run: Run) -> dict[str, str]:
    """Return the versions of Python and of packages in the run."""
    return {escaped(name): escaped(number) for name, number in run.get("versions", {}).items()}


def _text(value: object) -> str:
    return as_text(str(value), LONGEST)


Series = tuple[str, Sequence[float], bool]
"""A name, a metric after each iteration, and whether its axis is logarithmic."""


def series(run: Run) -> list[Series]:
    """Return the metrics that have more than one iteration, the main one first."""
    metrics = (
        ("fits", "fit", False), ("objectives", "objective", False), ("rmse", "RMSE", False),
        ("loglikelihood", "log-likelihood", False), ("kkt", "KKT violation", True),
    )  # fmt: skip
    return [(title, run[name], logarithmic) for name, title, logarithmic in metrics if len(run.get(name) or ()) > 1]
