import sys

import numpy as np
import xarray as xr

import amped

nm = {"units": "nm"}
axes = {name: (name, np.load(f"{name}.npy"), nm) for name in ("emission", "excitation")}
spectra = xr.DataArray(np.load("gaps.npy"), coords={"sample": range(10), **axes}, dims=["sample", *axes])
scan = amped.scan(spectra, "1-4", starts=3, nonnegative=True, split="sample")
print(scan)
model = amped.cp_als(spectra, scan.suggestion.rank, nonnegative=True)
model.plot(sys.argv[1])
