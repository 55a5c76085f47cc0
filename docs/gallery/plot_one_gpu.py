"""
Can one GPU decompose 12 x 29010 x 29010?
=========================================

`amped.plan` answers before anything is allocated. The file below has that shape and no content: it takes no space
on the disk.
"""

import tempfile

import numpy as np
from numpy.lib.format import open_memmap

import amped

folder = tempfile.TemporaryDirectory()
cube = f"{folder.name}/cube.npy"
open_memmap(cube, "w+", np.float32, (12, 29010, 29010))

try:
    plan = amped.plan(cube, 16, device="cuda")
except amped.InputError:
    plan = None
    print(
        f"No GPU here. The elements take {12 * 29010**2 * 4 / 2**30:.1f} GiB: they stay on a GPU of 48 GB or more, in"
    )
    print("single precision. A smaller GPU, or a CPU, streams them in slabs; for example with 8 GiB on this CPU:")
    plan = amped.plan(cube, 16, device="cpu", device_memory=8 << 30)
print(plan)
folder.cleanup()
