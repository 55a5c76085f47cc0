"""Sparse tensor decomposition on all the GPUs, or CPUs, of a node or a cluster.

>>> import amped, numpy
>>> model = amped.cp_als(numpy.ones((4, 3, 2)), rank=1)
"""

from __future__ import annotations

from partitioner import __version__ as __version__
from partitioner.readers import read
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor

from .api.cp import cp_als, cp_apr
from .api.estimators import CP, Tucker
from .api.frames import from_frame
from .api.gcp import cp, objective
from .api.plan import plan
from .api.products import mttkrp, ttm
from .api.scan import scan
from .api.tucker import core_consistency, tucker
from .backend.losses import Loss
from .errors import InputError, InputWarning
from .models.kruskal import KruskalTensor
from .models.loading import load
from .models.semisparse import SemiSparseTensor
from .models.tucker import TuckerTensor
from .options import Options

__all__ = [
    "CP",
    "DenseTensor",
    "InputError",
    "InputWarning",
    "KruskalTensor",
    "Loss",
    "Options",
    "SemiSparseTensor",
    "SparseTensor",
    "Tucker",
    "TuckerTensor",
    "core_consistency",
    "cp",
    "cp_als",
    "cp_apr",
    "from_frame",
    "load",
    "mttkrp",
    "objective",
    "plan",
    "read",
    "scan",
    "ttm",
    "tucker",
]
