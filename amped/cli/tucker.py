"""The verb ``tucker``: Tucker decompositions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from partitioner.flags import flag, real_number, whole_numbers

from ..errors import InputError
from ..methods.hosvd import METHODS as COMPRESSIONS
from ..methods.hosvd import Compression
from ..methods.tucker import RANDOM, shown
from ..models.tucker import TuckerTensor
from ..operators.sources.protocols import DescribedSource
from ..runs.compression import compressed
from .decompose import decompose
from .job import Job, VerbSession
from .requests import TOLERANCES
from .run_requests import PlacedMethod, RunRequest


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TuckerRequest(RunRequest[TuckerTensor]):
    """The flags of ``tucker``."""

    NAME: ClassVar[str] = "tucker"
    random: ClassVar[str | None] = RANDOM
    named_starts: ClassVar[tuple[str | None, ...]] = None, "nvecs", RANDOM
    init: str | None = flag(
        None,
        "start hooi from a file, hosvd, or random matrices (random)",
        metavar="FILE.npz|nvecs|random",
        group="start",
    )
    rank: tuple[int, ...] | None = flag(
        None, "number of columns of each mode's factor matrix", type=whole_numbers, metavar="R1,R2,...", group="size"
    )
    error: float | None = flag(
        None, "smallest ranks with a relative error of at most E", type=real_number, metavar="E", group="size"
    )
    tol: float | None = flag(
        None, "stop when the fit changes by less than TOL (1e-5); 0 disables the test", type=real_number
    )
    method: str = flag("hooi", "hosvd and sthosvd do not iterate (hooi)", choices=COMPRESSIONS)

    def check(self) -> None:
        if self.rank is None and self.error is None:
            raise InputError("--rank R1,R2,... or --error E is required")
        self.compression  # noqa: B018 - raises for invalid parameters
        super().check()

    @property
    def compression(self) -> Compression:
        """The parameters of the compression."""
        return Compression(self.method, self.rank, self.error, self.start)

    @property
    def tolerance(self) -> float:
        return TOLERANCES["als"] if self.tol is None else self.tol

    @property
    def iterations(self) -> int:
        return super().iterations if self.method == "hooi" else 1

    @property
    def size(self) -> str:
        return "tucker"

    @property
    def facts_of_verb(self) -> dict[str, object]:
        return {"error": self.error}

    def has_rank(self, rank: object) -> bool:
        return self.rank is None or rank == list(self.rank)

    def place(self, job: Job, source: DescribedSource) -> PlacedMethod[TuckerTensor]:
        """See `RunRequest`. Code is compiled only now, because it depends on the tensor's order."""
        method = compressed(source, job.machine, self.options, self.compression, self.first_seed, self.iterations)
        job.display.note(f"ranks {shown(method.operator.ranks)}")
        return PlacedMethod(method)


def tucker(request: TuckerRequest, session: VerbSession) -> int:
    """Compute a Tucker decomposition by HOOI, HOSVD or ST-HOSVD."""
    return decompose(request, session)
