"""
How many components?
====================

`amped.scan` decomposes the data with 1, 2, ... components from several starts. The number to choose explains much,
comes back from other starts and in both halves of the data, and has a consistent core.
"""

import numpy as np

import amped

rng = np.random.default_rng(1)
factors = [rng.random((length, 3)) ** 2 for length in (30, 20, 16)]
X = np.einsum("ir,jr,kr->ijk", *factors)
X += 0.02 * rng.standard_normal(X.shape)

found = amped.scan(X, "1-5", starts=3, max_iters=200)
found

# %%
# The reason of the suggestion is a text.

print(found.suggestion.reason)

# %%
# The same as curves.

found.plot()
