"""Results of a rank scan, and the number of components that they suggest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NEAR = 0.02  # a start has reached the best fit if it differs by at most this share of the unexplained rest,
CLOSE = 1e-4  # or by this, where nearly everything is explained
STABLE = 0.9  # least factor match, between starts and between halves, of reproducible components
CONSISTENT = 50.0  # least core consistency in percent of a trilinear model (Bro and Kiers 2003)
GAIN = 0.02  # least share of the unexplained rest that one more component must explain
NOTHING_LEFT = 1e-10  # unexplained rests below this are rounding error


class ScannedRank(NamedTuple):
    """The measurements for one number of components.

    Attributes
    ----------
    rank : int
        The number of components.
    explained : tuple of float
        Of the models of all starts; see `squared`.
    squared : float
        The largest of these values: R squared, ``1 - ||X - M||**2 / ||X||**2``; for losses other than Gaussian the
        share of the deviance that is explained.
    reached : int
        Number of starts that end near the best one.
    match : float or None
        Mean factor match between these starts and the best one, at most 1; None if there is only one.
    halves : float or None
        Factor match between the models of two halves of the tensor; None if skipped.
    consistency : float or None
        Core consistency in percent; None if skipped.
    iterations : int
        Total over all starts.
    seconds : float
        Time of all computations for this number of components; its share where several numbers are computed together.
    holdout : float or None
        Mean error on held-out elements over several random draws of them; None if none were held out.
    holdout_error : float or None
        Standard error of that mean.
    criterion : {"RMSE", "deviance"}
        The error on held-out elements: for losses other than Gaussian the mean deviance.
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
    holdout: float | None = None
    holdout_error: float | None = None
    criterion: str = "RMSE"


class Suggestion(NamedTuple):
    """A suggested number of components, and the reason.

    Attributes
    ----------
    rank : int or None
        The number; None if no number can be recommended.
    reason : str
        A sentence: the tests that the number passes and the test that the next larger number fails; or, without a
        number, the tests that the best compromise fails.
    """

    rank: int | None
    reason: str


def near(explained: Sequence[float]) -> list[int]:
    """Return the numbers of the starts whose fit is close to the best one."""
    best = max(explained)
    return [number for number, each in enumerate(explained) if best - each <= NEAR * (1 - best) + CLOSE]


class Fault(NamedTuple):
    """A test that a number of components does not pass."""

    lack: float  # distance from passing, 0 to 1
    clause: str  # what is wrong, for the reason
    starts: bool = False  # whether more starts may help


def suggestion(tried: Sequence[ScannedRank]) -> Suggestion:
    """Suggest a number of components: by held-out elements if there are any, otherwise by tests.

    The suggestion is the largest number that passes every test; if none does, the reason names the tests that failed.

    The tests: the components are reproducible from other starts and in halves of the tensor, the core is consistent,
    and the model explains clearly more than the next smaller one. Too few components can pass the tests, too; therefore
    the largest number is chosen.
    """
    evaluated = [each for each in tried if each.holdout is not None]
    if evaluated:
        return _best_on_held_out(evaluated)
    faults = {each.rank: _faults(each, tried) for each in tried}
    passing = [each for each in tried if not faults[each.rank]]
    if not passing:
        return Suggestion(None, _nearest(tried, faults))
    best = max(passing, key=lambda each: each.rank)
    after = [each for each in tried if each.rank > best.rank]
    why = "no larger number was tried"
    if after:
        larger = min(after, key=lambda each: each.rank)
        why = f"with {larger.rank}, {faults[larger.rank][0].clause}"
    reason = f"{best.rank} is the largest number of components that passes every test{_passed(best)}; {why}"
    return Suggestion(best.rank, reason)


def _best_on_held_out(tried: Sequence[ScannedRank]) -> Suggestion:
    """Suggest the smallest number whose held-out error is within one standard error of the lowest (Breiman 1984)."""
    errors = {each.rank: (each.holdout or 0.0, each.holdout_error or 0.0) for each in tried}
    lowest = min(sorted(errors), key=lambda rank: errors[rank][0])
    limit = sum(errors[lowest])
    best = min(rank for rank, (mean, _) in errors.items() if mean <= limit)
    (mean, _), (least, error) = errors[best], errors[lowest]
    chosen = next(each for each in tried if each.rank == best)
    passed, error_name = _passed(chosen), f"held-out {chosen.criterion}"
    if best == lowest:
        why = f"has the lowest {error_name}, {least:.4g} (standard error {error:.1g})"
        return Suggestion(best, f"{best} {why}{passed}, and no smaller number is within one standard error")
    why = f"is the smallest number whose {error_name}, {mean:.4g}, is within one standard error, {error:.1g},"
    return Suggestion(best, f"{best} {why} of the lowest, {least:.4g} with {lowest}{passed}")


def _nearest(tried: Sequence[ScannedRank], faults: dict[int, list[Fault]]) -> str:
    """Describe the best compromise: the fewest failed tests, then the smallest total distance from passing."""
    best = min(tried, key=lambda each: (len(faults[each.rank]), sum(f.lack for f in faults[each.rank]), each.rank))
    failed = " and ".join(fault.clause for fault in faults[best.rank])
    advice = "; more starts may help" if any(fault.starts for fault in faults[best.rank]) else ""
    choice = f"the best trade-off is {best.rank}{_passed(best)}"
    return f"no number of components passes every test; {choice}, but {failed}{advice}"


def _passed(result: ScannedRank) -> str:
    """Return the reproducibility tests that a number of components passes, in parentheses."""
    passed = list[str]()
    if result.match is not None and result.match >= STABLE:
        passed.append(f"match {result.match:.2f} from {result.reached} of {len(result.explained)} starts")
    if result.halves is not None and result.halves >= STABLE:
        passed.append(f"match {result.halves:.2f} in halves of the tensor")
    if result.consistency is not None and result.consistency >= CONSISTENT:
        passed.append(f"core consistency {result.consistency:.0f} %")
    return f" ({', '.join(passed)})" if passed else ""


def _faults(result: ScannedRank, every: Sequence[ScannedRank]) -> list[Fault]:
    """Return the tests that a number of components fails."""
    faults, gain = list[Fault](), _gain(result, every)
    if not gain > GAIN:
        faults.append(
            Fault(
                1 - max(0.0, gain) / GAIN, f"hardly more is explained than with {_before(result, every).rank or 'none'}"
            )
        )
    if len(result.explained) > 1 and result.match is None:
        faults.append(Fault(1.0, "only one start reaches the best fit", True))
    if result.match is not None and not result.match >= STABLE:
        what = f"components differ between starts (match {result.match:.2f}; at least {STABLE:g} is needed)"
        faults.append(Fault(STABLE - result.match, what, True))
    if result.halves is not None and not result.halves >= STABLE:
        what = (
            f"components differ between halves of the tensor (match {result.halves:.2f}; at least {STABLE:g} is needed)"
        )
        faults.append(Fault(STABLE - result.halves, what))
    if result.consistency is not None and not result.consistency >= CONSISTENT:
        what = f"core consistency is {result.consistency:.0f} % (at least {CONSISTENT:g} % is needed)"
        faults.append(Fault(min(1.0, (CONSISTENT - result.consistency) / 100), what))
    return faults


def _before(result: ScannedRank, every: Sequence[ScannedRank]) -> ScannedRank:
    """Return the next smaller number of components of the scan."""
    return max((each for each in (NOTHING, *every) if each.rank < result.rank), key=lambda each: each.rank)


def _gain(result: ScannedRank, every: Sequence[ScannedRank]) -> float:
    """Return the share of what the next smaller number leaves unexplained that this number explains."""
    rest = 1 - _before(result, every).squared
    return (result.squared - (1 - rest)) / rest if rest > NOTHING_LEFT else 0.0


NOTHING = ScannedRank(0, (), 0.0, 0, None, None, None, 0, 0.0)
