"""What trying several numbers of components has told, and which number it suggests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NEAR = 0.02  # of what is left to explain: starts that end so near to the best one have reached the same fit
CLOSE = 1e-4  # or so near, where nearly all is explained
STABLE = 0.9  # of the match between starts, and between halves, from which components count as the same
CONSISTENT = 50.0  # percent of core consistency: above, a model is near a trilinear one (Bro and Kiers 2003)
GAIN = 0.02  # of what is left to explain, that one component more has to
NOTHING_LEFT = 1e-10  # to explain: less is rounding


class Tried(NamedTuple):
    """What a number of components has reached.

    Attributes
    ----------
    rank : int
        The number of components.
    explained : tuple of float
        By the models of all starts; see `squared`.
    squared : float
        The largest: R squared, ``1 - ||X - M||**2 / ||X||**2``; with a Poisson model that of deviances.
    reached : int
        Starts that end near the best one.
    match : float or None
        The mean factor match of these with the best one, at most 1; None if there is one alone.
    halves : float or None
        The factor match of models of two halves of the tensor; None if it was skipped.
    consistency : float or None
        Core consistency in percent; None if it was skipped.
    iterations : int
        Of all starts.
    seconds : float
        Of its runs and those of halves, their share where they are computed side by side, and of the rest.
    """

    rank: int
    explained: tuple[float, ...]
    squared: float
    reached: int
    match: float | None
    halves: float | None
    consistency: float | None
    iterations: int
    seconds: float


class Suggestion(NamedTuple):
    """A number of components, and why.

    Attributes
    ----------
    rank : int or None
        The number; None if none can be recommended.
    reason : str
        A sentence.
    """

    rank: int | None
    reason: str


def near(explained: Sequence[float]) -> list[int]:
    """Return which starts have about reached the best one, in what they leave to be explained."""
    best = max(explained)
    return [number for number, each in enumerate(explained) if best - each <= NEAR * (1 - best) + CLOSE]


def suggested(tried: Sequence[Tried]) -> Suggestion:
    """Return the largest number of components that is found again, is consistent, and explains more than a smaller one.

    Too many components are told by starts that end in different ones, by halves of the tensor that have different ones,
    and by a core that is no superdiagonal. Too few may be found again, too: so the largest number counts.
    """
    good = [each for each in tried if _found_again(each) and _consistent(each) and _gains(each, tried)]
    if not good:
        return Suggestion(None, "no number of components is found again from other starts: more starts may tell")
    best = max(good, key=lambda each: each.rank)
    told = [f"{best.rank} is the largest number of components that is found again"]
    told += [f"from {best.reached} of {len(best.explained)} starts (match {best.match:.2f})"] if best.match else []
    told += [f"in halves of the tensor ({best.halves:.2f})"] if best.halves is not None else []
    told += [f"with a core consistency of {best.consistency:.0f} %"] if best.consistency is not None else []
    after = [each for each in tried if each.rank > best.rank]
    why = _why_not(min(after, key=lambda each: each.rank), tried) if after else "no larger one was tried"
    return Suggestion(best.rank, f"{', '.join(told)}; {why}")


def _found_again(tried: Tried) -> bool:
    alone = len(tried.explained) > 1 and tried.match is None
    return not alone and all(each is None or each >= STABLE for each in (tried.match, tried.halves))


def _consistent(tried: Tried) -> bool:
    return tried.consistency is None or tried.consistency >= CONSISTENT


def _gains(tried: Tried, every: Sequence[Tried]) -> bool:
    """Return whether a number of components explains clearly more than the next smaller one that was tried."""
    before = max((each.rank, each.squared) for each in (*every, NOTHING) if each.rank < tried.rank)[1]
    return 1 - before > NOTHING_LEFT and tried.squared - before > GAIN * (1 - before)


def _why_not(tried: Tried, every: Sequence[Tried]) -> str:
    """Return what speaks against a number of components."""
    if not _gains(tried, every):
        return f"{tried.rank} explain hardly more"
    if len(tried.explained) > 1 and tried.match is None:
        return f"of {tried.rank}, one start alone has reached the best fit"
    if tried.match is not None and tried.match < STABLE:
        return f"of {tried.rank}, starts end in different ones (match {tried.match:.2f})"
    if tried.halves is not None and tried.halves < STABLE:
        return f"of {tried.rank}, halves of the tensor have different ones (match {tried.halves:.2f})"
    return f"of {tried.rank}, core consistency falls to {tried.consistency:.0f} %"


NOTHING = Tried(0, (), 0.0, 0, None, None, None, 0, 0.0)
