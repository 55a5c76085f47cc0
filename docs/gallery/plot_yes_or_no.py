"""
How likely is a yes?
====================

Answers of 40 people to 30 questions in 12 weeks are 0 or 1. The Bernoulli loss models the odds of a yes, so that
predictions are probabilities.
"""

import matplotlib.pyplot as plt
import numpy as np

import amped

rng = np.random.default_rng(0)
log_odds = np.einsum("ir,jr,kr->ijk", *[1.3 * rng.standard_normal((length, 2)) for length in (40, 30, 12)])
chance = 1 / (1 + np.exp(-log_odds))
answers = rng.random(chance.shape) < chance

model = amped.cp(answers, 2, loss="bernoulli-logit", max_iters=100)
predicted = 1 / (1 + np.exp(-model.full()))
print(f"explained deviance: {model.score(answers):.2f}")

# %%
# Where the model says 80 %, 80 % of the answers are yes.

bins = np.linspace(0, 1, 11)
place = np.digitize(predicted, bins[1:-1])
shares = [answers[place == n].mean() for n in range(10)]
figure, axes = plt.subplots(figsize=(4, 4))
axes.plot([0, 1], [0, 1], color="0.7")
axes.plot((bins[1:] + bins[:-1]) / 2, shares, "o")
axes.set(xlabel="predicted probability", ylabel="share of yes")
