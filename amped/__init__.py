"""Sparse tensor decomposition on all the GPUs, or CPUs, of a node or a cluster.

>>> import amped
>>> model = amped.cp_als(amped.read("nell-2.tns"), rank=32)  # doctest: +SKIP
"""

from __future__ import annotations

from partitioner import __version__ as __version__
from partitioner.coo import SparseTensor
from partitioner.dense import DenseTensor
from partitioner.readers import read

from .errors import InputError, InputWarning
from .functions.cp import cp_als, cp_apr, mttkrp
from .functions.estimators import CP, Tucker
from .functions.frames import from_frame
from .functions.projection import transformed as _transformed  # noqa: F401 - models' transform calls it
from .functions.scan import scan
from .functions.ttm import ttm
from .functions.tucker import core_consistency, tucker
from .models.kruskal import KruskalTensor
from .models.loading import load
from .models.semisparse import SemiSparseTensor
from .models.tucker import TuckerTensor
from .options import Options
from .report.page import write as _report  # noqa: F401 - KruskalTensor.report calls it
from .report.pictures import draw as _draw  # noqa: F401 - KruskalTensor.plot calls it

__all__ = [
    "CP",
    "DenseTensor",
    "InputError",
    "InputWarning",
    "KruskalTensor",
    "Options",
    "SemiSparseTensor",
    "SparseTensor",
    "Tucker",
    "TuckerTensor",
    "core_consistency",
    "cp_als",
    "cp_apr",
    "from_frame",
    "load",
    "mttkrp",
    "read",
    "scan",
    "ttm",
    "tucker",
]
