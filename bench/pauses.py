"""Pauses between measurements."""

from __future__ import annotations

import time

BURST = 0.1  # seconds of work without a pause
PAUSE = 2.0  # times as long as that work


class Pauses:
    """Rests after bursts of work, so that what is measured does not depend on what was measured before it.

    A GPU reaches its limit of power after half a second of MTTKRPs (an H200 at 700 W), and from then on its clock goes
    up and down between a third of its rate and the whole: sweeps of the same nonzeros took 1.0 to 1.3 times as long.
    """

    def __init__(self) -> None:
        self._worked = 0.0

    def after(self, seconds: float) -> None:
        """Rest if the work since the last rest, with `seconds` more of it, was a burst."""
        self._worked += seconds
        if self._worked >= BURST:
            time.sleep(PAUSE * self._worked)
            self._worked = 0.0
