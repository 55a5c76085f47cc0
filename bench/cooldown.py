"""Cooldown between measurements."""

from __future__ import annotations

import time

BURST = 0.1  # seconds of work without a pause
PAUSE = 2.0  # length of a pause, relative to that work


class Cooldown:
    """Rests after bursts of work, so that a measurement does not depend on the one before.

    After half a second of MTTKRPs a GPU reaches its power limit (an H200: 700 W), and its clock varies between a third
    and the whole of its rate: sweeps of the same nonzeros took 1.0 to 1.3 times as long.
    """

    def __init__(self) -> None:
        self._worked = 0.0

    def after(self, seconds: float) -> None:
        """Add `seconds` of work; rest if the work since the last rest makes a burst."""
        self._worked += seconds
        if self._worked >= BURST:
            time.sleep(PAUSE * self._worked)
            self._worked = 0.0
