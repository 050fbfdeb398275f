# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Screening seen
#
# Most samples end up far on the right side of the margin, and have no say in the solution. Safe screening knows
# some of them *before* the problem is solved: from a solution at another C nearby, it draws a ball that holds the new
# solution, and whoever is far from the margin for every point of the ball is settled.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxsvm
from jaxsvm import plots, screening
from jaxsvm.kernels import RBF

signs, noise = jax.random.split(jax.random.key(0))
y = jax.random.permutation(signs, jnp.where(jnp.arange(500) < 250, -1.0, 1.0))
x = y[:, None] * (3 / 8**0.5) + jax.random.normal(noise, (500, 2))  # two round clouds
x, y = np.asarray(x), np.asarray(y)
problem = jaxsvm.hinge_problem(jaxsvm.gram(RBF(0.5), x), y)

# %% [markdown]
# ## From C = 1 to a little more
#
# The solution at C = 1 is at hand. What is known at C = 1.05?

# %%
before = jaxsvm.fit(problem.at(1.0), jaxsvm.SMO(tol=1e-5))
known = screening.intersection_test(problem.at(1.05), before, 1.0)
inactive, at_bound = np.asarray(known.inactive), np.asarray(known.at_bound)
print(f"{inactive.sum()} samples are known to have no say, {at_bound.sum()} to be at their bound, of {len(y)}")
assert (inactive | at_bound).mean() > 0.3

# %% [markdown]
# Safe means: every one of these claims holds of the solution itself.

# %%
after = jaxsvm.fit(problem.at(1.05), jaxsvm.SMO(tol=1e-6))
alpha = np.asarray(after.alpha)
assert (alpha[inactive] <= 1e-4).all() and (alpha[at_bound] >= 1.05 * (1 - 1e-4)).all()

# %%
figure, axes = plt.subplots(1, 2, figsize=(12, 4.4), layout="constrained")
model = jaxsvm.compact(before, problem.at(1.0))
plots.decision_boundary(model, x, np.where(y > 0, 1, -1), ax=axes[0])
rest = ~(inactive | at_bound)
axes[0].scatter(*x[rest].T, s=60, facecolors="none", edgecolors="black", label="still to be found")
axes[0].set_title("what is known at C = 1.05 from C = 1: all but the ringed", fontsize=9)
axes[0].legend(fontsize=8)
Cs = np.geomspace(0.5, 1.5, 24)
path = jaxsvm.solve_path(problem, Cs, tol=1e-5)
rules = (screening.ball_test_1, screening.ball_test_2, screening.intersection_test)
found = np.asarray([[rule(problem.at(C), path[k], Cs[k]).screened for k, C in enumerate(Cs[1:])] for rule in rules])
alphas = np.asarray(path.alphas)[1:]
off = (alphas <= 0) | (alphas >= Cs[1:, None] * (1 - 1e-6)) | found.any(axis=0)
for rule, share in zip(rules, found.mean(axis=2), strict=True):
    axes[1].semilogx(Cs[1:], share, "o-", markersize=3, label=rule.__name__.replace("_", " "))
axes[1].semilogx(Cs[1:], off.mean(axis=1), "--", color="0.45", label="at most: off the margin")
axes[1].set(xlabel="C", ylabel="share of the samples")
axes[1].legend(fontsize=8)
plt.show()

# %% [markdown]
# To the right: how much each rule knows on a path of 24 values, each from the solution before. The Intersection Test
# looks at where two balls overlap, so it is never weaker than either ball alone. The second ball alone knows nothing
# here; it still cuts off a part of the first.

# %%
shares = found.mean(axis=2)  # (rules, values of C)
assert (shares[2] >= shares[0] - 1e-12).all() and (shares[2] >= shares[1] - 1e-12).all()
print(np.round(shares.mean(axis=1), 3), "of the samples by each rule, of", np.round(off.mean(), 3))

# %% [markdown]
# ## A path that chooses its own values
#
# The same bounds say how far a solution reaches: within 5 % of the optimum for every C up to the next value.

# %%
path = screening.epsilon_path(problem, 0.05, 0.1, 10.0)
print(f"{len(path)} solved values answer every C from 0.1 to 10 within 5 %")
for C in (0.15, 0.9, 7.7):
    answer = path.at(C)
    margins = y * (np.asarray(jaxsvm.decision_function(answer, problem.at(C), x)))
    coef, bias = np.asarray(answer.dual_coef, float), float(answer.bias)
    norm = coef @ (y * margins - bias) + bias**2
    objective = norm / 2 + C * np.maximum(0, 1 - margins).sum()
    optimum = float(jaxsvm.fit(problem.at(C), jaxsvm.SMO(tol=1e-5)).certificate.dual)
    assert objective <= 1.0501 * optimum, (C, objective, optimum)

# %% [markdown]
# **Learned.** Between neighbouring values of C most of the solution is settled before anything is computed, and what
# the rules claim holds of the solution, sample by sample. The closer the values and the better the reference, the more
# is known; far apart, nothing is. It is a statement about the data that saves steps, and not always time:
# two timed paths say which, and on most data that we measured a rule costs more than it saves.
