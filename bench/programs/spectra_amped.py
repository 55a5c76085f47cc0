import sys

import numpy as np

import amped

axes = range(30), np.load("emission.npy"), np.load("excitation.npy")
spectra = amped.DenseTensor(np.load("spectra.npy")).labelled(axes)
scan = amped.scan(spectra, "1-5", starts=5, nonnegative=True)
model = scan.models[scan.suggestion.rank - 1]
print(scan)
model.plot(sys.argv[1])
