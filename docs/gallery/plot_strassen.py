"""
How many products does a 2 x 2 matrix product need?
===================================================

Eight, as taught at school; Strassen found seven in 1969. A matrix product is a tensor of ones and zeros, and each
component of its decomposition is one product: a fit of 1 with seven components is an algorithm with seven products.
"""

import matplotlib.pyplot as plt
import numpy as np

import amped

product = np.zeros((4, 4, 4))
for i, j, k in np.ndindex(2, 2, 2):
    product[2 * i + j, 2 * j + k, 2 * i + k] = 1  # C[i, k] += A[i, j] * B[j, k]

ranks, fits = range(4, 9), []
for rank in ranks:
    start = amped.cp_als(product, rank, starts=8, ridge=1e-3, max_iters=300, precision="fp64")  # keeps entries small
    fits.append(amped.cp_als(product, rank, init=start, max_iters=300, precision="fp64").fits[-1])
    print(f"{rank} products: fit {fits[-1]:.3f}")

figure, axes = plt.subplots(figsize=(5, 3))
axes.bar(ranks, fits)
axes.set(xlabel="products", ylabel="fit")
