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


class ScannedRank(NamedTuple):
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
        The mean factor match of these with the best one, at most 1; None if there is only one.
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
        A sentence: which tests the number passes, and which one the next larger number fails; without a number, which
        tests the best trade-off fails.
    """

    rank: int | None
    reason: str


def near(explained: Sequence[float]) -> list[int]:
    """Return which starts have about reached the best one, in what they leave to be explained."""
    best = max(explained)
    return [number for number, each in enumerate(explained) if best - each <= NEAR * (1 - best) + CLOSE]


class Fault(NamedTuple):
    """A test that a number of components fails."""

    lack: float  # how far it is from passing, from 0 to 1
    clause: str
    starts: bool = False  # whether other starts may change it


def suggested(tried: Sequence[ScannedRank]) -> Suggestion:
    """Return the largest number of components that passes every test; without one, name the tests that failed.

    Its components are found again from other starts and in halves of the tensor, its core is consistent, and it
    explains clearly more than the next smaller number. Too few components may be found again, too: so the largest
    number counts.
    """
    faults = {each.rank: _faults(each, tried) for each in tried}
    good = [each for each in tried if not faults[each.rank]]
    if not good:
        return Suggestion(None, _nearest(tried, faults))
    best = max(good, key=lambda each: each.rank)
    after = [each for each in tried if each.rank > best.rank]
    why = "no larger number was tried"
    if after:
        larger = min(after, key=lambda each: each.rank)
        why = f"with {larger.rank}, {faults[larger.rank][0].clause}"
    reason = f"{best.rank} is the largest number of components that passes every test{_passed(best)}; {why}"
    return Suggestion(best.rank, reason)


def _nearest(tried: Sequence[ScannedRank], faults: dict[int, list[Fault]]) -> str:
    """Return which tests the best trade-off fails: that of the fewest faults, then of those that lack least."""
    best = min(tried, key=lambda each: (len(faults[each.rank]), sum(f.lack for f in faults[each.rank]), each.rank))
    failed = " and ".join(fault.clause for fault in faults[best.rank])
    advice = "; more starts may help" if any(fault.starts for fault in faults[best.rank]) else ""
    choice = f"the best trade-off is {best.rank}{_passed(best)}"
    return f"no number of components passes every test; {choice}, but {failed}{advice}"


def _passed(tried: ScannedRank) -> str:
    """Return the tests of its components that a number of them passes, in parentheses."""
    found = list[str]()
    if tried.match is not None and tried.match >= STABLE:
        found.append(f"match {tried.match:.2f} from {tried.reached} of {len(tried.explained)} starts")
    if tried.halves is not None and tried.halves >= STABLE:
        found.append(f"match {tried.halves:.2f} in halves of the tensor")
    if tried.consistency is not None and tried.consistency >= CONSISTENT:
        found.append(f"core consistency {tried.consistency:.0f} %")
    return f" ({', '.join(found)})" if found else ""


def _faults(tried: ScannedRank, every: Sequence[ScannedRank]) -> list[Fault]:
    """Return the tests that a number of components fails."""
    found, gain = list[Fault](), _gain(tried, every)
    if not gain > GAIN:
        found.append(
            Fault(
                1 - max(0.0, gain) / GAIN, f"hardly more is explained than with {_before(tried, every).rank or 'none'}"
            )
        )
    if len(tried.explained) > 1 and tried.match is None:
        found.append(Fault(1.0, "only one start reaches the best fit", True))
    if tried.match is not None and not tried.match >= STABLE:
        what = f"components differ between starts (match {tried.match:.2f}; at least {STABLE:g} is needed)"
        found.append(Fault(STABLE - tried.match, what, True))
    if tried.halves is not None and not tried.halves >= STABLE:
        what = (
            f"components differ between halves of the tensor (match {tried.halves:.2f}; at least {STABLE:g} is needed)"
        )
        found.append(Fault(STABLE - tried.halves, what))
    if tried.consistency is not None and not tried.consistency >= CONSISTENT:
        what = f"core consistency is {tried.consistency:.0f} % (at least {CONSISTENT:g} % is needed)"
        found.append(Fault(min(1.0, (CONSISTENT - tried.consistency) / 100), what))
    return found


def _before(tried: ScannedRank, every: Sequence[ScannedRank]) -> ScannedRank:
    """Return the next smaller number of components that was tried."""
    return max((each for each in (NOTHING, *every) if each.rank < tried.rank), key=lambda each: each.rank)


def _gain(tried: ScannedRank, every: Sequence[ScannedRank]) -> float:
    """Return what a number of components explains of that which the next smaller one leaves."""
    left = 1 - _before(tried, every).squared
    return (tried.squared - (1 - left)) / left if left > NOTHING_LEFT else 0.0


NOTHING = ScannedRank(0, (), 0.0, 0, None, None, None, 0, 0.0)
