"""The verb ``tucker``: Tucker decompositions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from partitioner.flags import flag, modes, real_number

from ..errors import InputError
from ..methods.constraints import modes_of
from ..methods.tucker import RANDOM
from ..methods.tucker_params import METHODS as COMPRESSIONS
from ..methods.tucker_params import Compression, shown
from ..models.tucker import TuckerTensor
from ..operators.sources.protocols import DescribedSource
from ..runs.compression import compressed
from .decompose import decompose
from .job import Job, VerbSession
from .requests import TOLERANCES, core_ranks
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
    rank: tuple[int | None, ...] | None = flag(
        None, "number of columns of each mode's factor matrix; all: the mode stays uncompressed", type=core_ranks,
        metavar="R1,R2,...", group="size",
    )  # fmt: skip
    error: float | None = flag(
        None, "smallest ranks with a relative error of at most E", type=real_number, metavar="E", group="size"
    )
    tol: float | None = flag(
        None, "stop when the fit changes by less than TOL (1e-5); 0 disables the test", type=real_number
    )
    method: str = flag("hooi", "hosvd and sthosvd do not iterate (hooi)", choices=COMPRESSIONS)
    nonnegative: bool = flag(False, "non-negative core and factor matrices")
    fixed_modes: tuple[int | str, ...] | None = flag(
        None, "keep these modes' factor matrices of --init FILE.npz, e.g. 1,2, or by name", type=modes, metavar="MODES"
    )

    def check(self) -> None:
        if self.rank is None and self.error is None:
            raise InputError("--rank R1,R2,... or --error E is required")
        self.compression  # noqa: B018 - raises for invalid parameters
        super().check()

    @property
    def compression(self) -> Compression:
        """The parameters of the compression."""
        accelerate = self.checkpoint is None if self.accelerate is None else self.accelerate
        wanted = Compression(self.method, self.rank, self.error, self.start, self.nonnegative)
        return replace(wanted, accelerate=accelerate)

    @property
    def set_by_checkpoint(self) -> dict[str, object]:
        return {"accelerate": False} if self.nonnegative and self.accelerate is None else {}

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
        if self.rank is None:
            return True
        ranks = rank if isinstance(rank, list) else []
        same = [wanted in (None, found) for wanted, found in zip(self.rank, ranks, strict=False)]
        return len(ranks) == len(self.rank) and all(same)

    def place(self, job: Job, source: DescribedSource) -> PlacedMethod[TuckerTensor]:
        """See `RunRequest`. Code is compiled only now, because it depends on the tensor's order."""
        fixed = modes_of("--fixed-modes", self.fixed_modes or ())
        wanted = self.compression.with_fixed(fixed, job.source.labels, len(source.shape))
        method = compressed(source, job.machine, self.options, wanted, self.first_seed, self.iterations)
        job.display.note(f"ranks {shown(method.operator.ranks)}")
        return PlacedMethod(method)


def tucker(request: TuckerRequest, session: VerbSession) -> int:
    """Compute a Tucker decomposition by HOOI, HOSVD or ST-HOSVD, or a non-negative one."""
    return decompose(request, session)
