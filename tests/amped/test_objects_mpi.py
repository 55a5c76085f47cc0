"""Every kind of object under mpirun: as the NumPy array, or refused on all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forms import exhaustive
from objects import CASES, array, check, outcome

# Kinds that rank 0 turns into arrays as it does others, before ranks take part.
ALIKE = (
    "read-only fortran", "single", "integers", "small integers", "masked, no mask", "scipy csc matrix", "sparse GCXS",
    "pyttb tensor", "torch sparse", "xarray, some coordinates", "xarray, no coordinates", "xarray of sparse",
    "pandas wide, nullable", "polars lazy", "pyarrow batch",
)  # fmt: skip


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Any]]:
    """What the NumPy array gives, and its first slice."""
    folder = tmp_path_factory.mktemp("wanted")
    whole, matrix = array(), array()[:, :, 0].copy()
    return {False: outcome(whole, whole, folder), True: outcome(matrix, matrix, folder)}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", [exhaustive(name) if name in ALIKE else name for name in CASES])
def test_all_functions_agree_with_the_array(name: str, wanted: dict[bool, dict[str, Any]], tmp_path: Path) -> None:
    check(name, wanted, tmp_path)
