"""An exchange on the host that overlaps with computing, as NCCL's does."""

from __future__ import annotations

from amped.backend.exchange import HostExchange


class EagerExchange(HostExchange):
    """One whose rows are exchanged while others are computed, as NCCL's are."""

    overlaps = True
