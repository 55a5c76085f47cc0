"""Sparse tensor decomposition on all the GPUs, or CPUs, of a node or a cluster.

>>> import amped, numpy
>>> model = amped.cp_als(numpy.ones((4, 3, 2)), rank=1)

Each name is imported when it is first used, so that ``import amped`` itself takes little time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from partitioner import __version__ as __version__

if TYPE_CHECKING:
    from partitioner.readers import read as read
    from partitioner.tensors.dense import DenseTensor as DenseTensor
    from partitioner.tensors.sparse import SparseTensor as SparseTensor

    from .api.cp import cp_als as cp_als
    from .api.cp import cp_apr as cp_apr
    from .api.estimators import CP as CP
    from .api.estimators import Tucker as Tucker
    from .api.frames import from_frame as from_frame
    from .api.gcp import cp as cp
    from .api.gcp import objective as objective
    from .api.plan import plan as plan
    from .api.products import mttkrp as mttkrp
    from .api.products import ttm as ttm
    from .api.scan import scan as scan
    from .api.tucker import core_consistency as core_consistency
    from .api.tucker import tucker as tucker
    from .backend.losses import Loss as Loss
    from .errors import InputError as InputError
    from .errors import InputWarning as InputWarning
    from .models.kruskal import KruskalTensor as KruskalTensor
    from .models.loading import load as load
    from .models.semisparse import SemiSparseTensor as SemiSparseTensor
    from .models.tucker import TuckerTensor as TuckerTensor
    from .options import Options as Options

_MODULES = {
    "CP": ".api.estimators",
    "DenseTensor": "partitioner.tensors.dense",
    "InputError": ".errors",
    "InputWarning": ".errors",
    "KruskalTensor": ".models.kruskal",
    "Loss": ".backend.losses",
    "Options": ".options",
    "SemiSparseTensor": ".models.semisparse",
    "SparseTensor": "partitioner.tensors.sparse",
    "Tucker": ".api.estimators",
    "TuckerTensor": ".models.tucker",
    "core_consistency": ".api.tucker",
    "cp": ".api.gcp",
    "cp_als": ".api.cp",
    "cp_apr": ".api.cp",
    "from_frame": ".api.frames",
    "load": ".models.loading",
    "mttkrp": ".api.products",
    "objective": ".api.gcp",
    "plan": ".api.plan",
    "read": "partitioner.readers",
    "scan": ".api.scan",
    "ttm": ".api.products",
    "tucker": ".api.tucker",
}
"""Where each public name is defined: the imports above, which type checkers and editors read."""

__all__ = list(_MODULES)


if not TYPE_CHECKING:  # type checkers would conclude that any name exists

    def __getattr__(name: str) -> object:
        """Import a public name; called for names that this module does not have yet."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name], __name__), name)
        return value


def __dir__() -> list[str]:
    """Return all names, including those that are not imported yet, for completion in editors and notebooks."""
    return sorted({*globals(), *_MODULES})
