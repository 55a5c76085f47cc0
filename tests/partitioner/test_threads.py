"""Work in threads."""

from __future__ import annotations

import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from partitioner.threads import submit


class Slow(ThreadPoolExecutor):
    """A pool whose threads hold on to what they were given."""

    def submit(self, work: Any, /, *args: Any, **named: Any) -> Future[Any]:
        self.given = work, args, named
        return super().submit(work, *args, **named)


def test_a_pool_holds_no_arguments_once_their_result_is_there() -> None:
    """The memory that they take is free then."""
    with Slow(1) as pool:
        array = np.ones(3)
        held = weakref.ref(array)
        found = submit(pool, np.sum, array)
        del array
        assert found.result() == 3
        assert held() is None
