"""The benchmark of updates, and OnlineCP in NumPy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from updates import columns_of

from bench.__main__ import main
from bench.online_cp import Elements, OnlineCP


def elements_of(array: np.ndarray) -> Elements:
    return np.array(np.nonzero(array)), array[np.nonzero(array)]


def test_online_cp_adds_up_the_sums_of_slices() -> None:
    rng = np.random.default_rng(0)
    array, factors = rng.random((5, 4, 6)), [rng.random((n, 2)) for n in (5, 4, 3)]
    online = OnlineCP(factors, elements_of(array[:, :, :3]))
    for k in (3, 5):
        online.add(elements_of(array[:, :, k : k + (2 if k == 3 else 1)]), 2 if k == 3 else 1)
    matrices, sums, grams = factors[:2], [0, 0], [0, 0]
    for begin, end in ((0, 3), (3, 5), (5, 6)):
        part, k = array[:, :, begin:end], columns_of([*matrices, factors[2]], 2)
        rows = factors[2] if not begin else np.linalg.lstsq(k, part.reshape(20, -1), rcond=None)[0].T
        now = [*matrices, rows]
        for mode in (0, 1):
            design = columns_of(now, mode)
            sums[mode] = sums[mode] + np.moveaxis(part, mode, 0).reshape(len(now[mode]), -1) @ design
            grams[mode] = grams[mode] + design.T @ design
        if begin:
            matrices = [each @ np.linalg.inv(gram) for each, gram in zip(sums, grams, strict=True)]
    for found, want in zip(online.factors, matrices, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-9)


@pytest.mark.parametrize("case", ["nell2", "amazon4"])
@pytest.mark.exhaustive
def test_small_cases(folder: Path, case: str) -> None:
    sizes = "--slices 2 --slice-nonzeros 500 --rank 2 --long-rank 2 --nonzeros 3000 --days 3 --repeats 1".split()
    main(["updates", "--cases", case, *sizes, "--output", str(folder)])
    (found,) = json.loads((folder / "updates-cpu.json").read_text())["cases"]
    assert found["case"] == case
