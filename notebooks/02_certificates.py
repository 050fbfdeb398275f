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
# # Certificates, and why they matter
#
# Most solvers stop when they stop moving, and call that convergence. A duality gap is something else: a number `dual`
# that no decision function can get below, and a number `primal` that this one reaches. The optimum lies between the
# two, whoever computed them.

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification
from sklearn.svm import LinearSVC

import jaxsvm
from jaxsvm import plots
from jaxsvm.kernels import RBF, Linear

x, labels = make_classification(600, 10, n_informative=4, flip_y=0.1, random_state=0)
x = x.astype(np.float32)
y = np.where(labels == 1, 1.0, -1.0).astype(np.float32)

# %% [markdown]
# ## Anybody can check it
#
# The primal value of a fit is an objective that ten lines of NumPy compute, without any of jaxsvm.

# %%
C, gamma = 1.0, 0.1
problem = jaxsvm.svm_problem(jaxsvm.gram(RBF(gamma), x), y, C)
fit = jaxsvm.fit(problem, tol=1e-5)

X, s = x.astype(np.float64), y.astype(np.float64)
K = np.exp(-gamma * ((X[:, None] - X[None]) ** 2).sum(axis=2))
coef, bias = np.asarray(fit.dual_coef, float), float(fit.bias)
slack = np.maximum(0, 1 - s * (K @ coef + bias))
by_hand = (coef @ K @ coef + bias**2) / 2 + C / 2 * (slack**2).sum()
print(f"by hand {by_hand:.6f}, certified {float(fit.certificate.primal):.6f}, {fit.status.name}")
assert abs(by_hand / float(fit.certificate.primal) - 1) < 1e-4

# %% [markdown]
# And the dual value bounds what *any* function can do: those of a thousand random changes of this one are all above it.

# %%
rng = np.random.default_rng(0)


def objective(coef, bias):
    slack = np.maximum(0, 1 - s * (K @ coef + bias))
    return (coef @ K @ coef + bias**2) / 2 + C / 2 * (slack**2).sum()


scales = 10 ** rng.uniform(-6, 0, 1000)
tried = [objective(coef * (1 + t * rng.normal(size=len(coef))), bias + t * rng.normal()) for t in scales]
assert min(tried) >= float(fit.certificate.dual)

# %% [markdown]
# ## Stopping is not converging
#
# Give a first-order solver too few steps, and it says so: MAX_STEPS, with the gap that it reached. Compare that with a
# solver whose answer is a warning and a set of coefficients.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    short = jaxsvm.fit(problem, jaxsvm.FrankWolfe(variant="classic", tol=1e-5, max_steps=200))
print(
    f"{short.status.name}: the optimum lies in [{float(short.certificate.dual):.2f}, "
    f"{float(short.certificate.primal):.2f}], {float(short.certificate.relative_gap):.1%} apart"
)
assert short.status.name == "MAX_STEPS" and float(short.certificate.relative_gap) > 1e-3
# What it claims holds: the optimum is between its two values.
assert float(short.certificate.dual) <= by_hand * (1 + 1e-5) <= float(short.certificate.primal) * (1 + 2e-5)

# %% [markdown]
# The same problem with a linear kernel by scikit-learn's `LinearSVC` (its C is half of ours), stopped early. The
# objective tells how far off it is; the solver itself could not.

# %%
linear = jaxsvm.fit(jaxsvm.svm_problem(jaxsvm.gram(Linear(), x), y, 2 * 100.0))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    theirs = LinearSVC(C=100.0, max_iter=20, dual=True, random_state=0).fit(X, s)
w = np.append(theirs.coef_[0], theirs.intercept_)
slack = np.maximum(0, 1 - s * (X @ w[:-1] + w[-1]))
reached = w @ w / 2 + 100.0 * (slack**2).sum()
print(f"LinearSVC after 20 passes is {reached / float(linear.certificate.primal) - 1:.2%} above the certified optimum")
assert reached >= float(linear.certificate.dual)

# %% [markdown]
# ## The floor of the numbers
#
# In float32 there is a gap that no solver can get below. Asked for more, a fit says STALLED; it never claims what it
# cannot prove.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    impossible = jaxsvm.fit(problem.at(1000.0), jaxsvm.FrankWolfe(tol=1e-12, max_steps=200_000))
print(impossible.status.name, f"at a gap of {float(impossible.certificate.relative_gap):.1e}")
assert impossible.status.name in ("STALLED", "MAX_STEPS") and float(impossible.certificate.relative_gap) > 1e-12

# %% [markdown]
# ## How the interval closes
#
# `History` is a callback that keeps what a fit knew on its way. To the left is what it knew of SDCA, a slow solver, on
# the hinge: the interval that holds the optimum, and the optimum as another solver finds it. To the right are gaps
# against steps, each certified for the callback after `check_every` steps: pairs, the Frank-Wolfe method with away
# steps, and Newton's method, whose steps cost the most. SDCA was stopped after 60,000 steps, above the line.

# %%
histories = {}
for name, solver in {
    "pairs (smo)": jaxsvm.FrankWolfe(tol=1e-4, check_every=50),
    "away steps": jaxsvm.FrankWolfe(variant="away", tol=1e-4, check_every=100),
    "Newton": jaxsvm.Newton(tol=1e-4),
}.items():
    histories[name] = jaxsvm.History()
    jaxsvm.fit(problem.at(10.0), solver, callback=histories[name])
    assert histories[name].relative_gap[-1] <= 1e-4

hinge = jaxsvm.hinge_problem(problem.gram, y, 10.0)
histories["SDCA, of the hinge"] = slow = jaxsvm.History()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    jaxsvm.fit(hinge, jaxsvm.SDCA(tol=1e-4, max_steps=60_000), callback=slow)
optimum = float(jaxsvm.fit(hinge, jaxsvm.WorkingSet(tol=1e-5)).certificate.primal)
looked = np.isfinite(slow.primal)
low, high = slow.dual[looked], slow.primal[looked]
assert (low <= optimum * (1 + 1e-5)).all() and (high >= optimum * (1 - 1e-5)).all()

figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
plots.bracket(slow, ax=axes[0]).axhline(optimum, color="0.15", linestyle=":")
plots.convergence(histories, tol=1e-4, against="steps", ax=axes[1])
plt.show()

# %% [markdown]
# **Learned.** A certificate turns "it stopped" into "the optimum is between these two numbers", and anybody can check
# it with a few lines. A solver that was cut short says by how much it may be off; one that reached the floor of its
# numbers says that. Comparing two solvers without one is comparing their patience.
