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
# # The Stochastic Batch Perceptron against Pegasos
#
# Ways to a good kernel classifier without solving the SVM to the end, with the settings of [the paper of the Stochastic
# Batch Perceptron](https://arxiv.org/abs/1204.0566). Pegasos takes a subgradient step for one sample at a time, and the
# Perceptron adds each sample that it gets wrong. The Stochastic Batch Perceptron (SBP) works on the other form of the
# problem, a budget of slack in place of C: each step looks at the responses of all samples, and moves toward one of
# those that most need it. What they pay for is rows of the kernel matrix; so that is what they are compared by.

# %%
import warnings

import jax
import matplotlib.pyplot as plt
import numpy as np

import jaxsvm
from jaxsvm.kernels import RBF

rng = np.random.default_rng(0)
n, m = 6000, 2000


def sample(count):
    """Two interleaved spirals, with noise."""
    turn, side = rng.uniform(0.25, 1.6, count) * 2 * np.pi, rng.integers(0, 2, count)
    angle = turn + np.pi * side
    x = np.stack([turn * np.cos(angle), turn * np.sin(angle)], 1) / 4 + 0.16 * rng.normal(size=(count, 2))
    return x.astype(np.float32), np.where(side == 1, 1.0, -1.0).astype(np.float32)


(x, y), (x_new, y_new) = sample(n), sample(m)
gram = jaxsvm.gram(RBF(2.0), x)

# %% [markdown]
# The exact solution first: what both approach. It too computes only some rows, those of its working sets. Its slack, as
# the SBP counts it, is nu.

# %%
C = 1.0
hinge = jaxsvm.hinge_problem(gram, y, C)
exact = jaxsvm.fit(hinge, tol=1e-3)


def accuracy(fit, problem):
    return float(np.mean(np.where(np.asarray(jaxsvm.decision_function(fit, problem, x_new)) >= 0, 1, -1) == y_new))


best = accuracy(exact, hinge)
nu = jaxsvm.slack.equivalent_nu(hinge, exact)
slack = jaxsvm.slack_problem(gram, y, nu)
exact_rows = float(exact.kernel_evaluations) / n
print(
    f"exact: accuracy {best:.3f} by {exact_rows:.0f} rows of {n}, {len(exact.support)} support vectors, "
    f"nu = {float(nu):.4f}"
)
assert best > 0.9

# %% [markdown]
# Each may take the same number of steps, for a few seeds. A step of the SBP asks for one row. One of Pegasos or of the
# Perceptron whose sample is right asks for none. The SBP and the Perceptron give back the mean of their iterates.

# %%
steps, seeds = (32, 64, 128, 256, 512, 1024, 2048), 5
solvers = {
    "SBP": lambda count: (slack, jaxsvm.StochasticBatchPerceptron(count)),
    "Pegasos": lambda count: (hinge, jaxsvm.Pegasos(count, batch=1, projection=False, average="last", offset=0.0)),
    "Perceptron": lambda count: (hinge, jaxsvm.Perceptron(count, output="average")),
}
scores, rows = ({name: np.zeros((seeds, len(steps))) for name in solvers} for _ in range(2))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # none is asked to converge
    for name, make in solvers.items():
        for place, count in enumerate(steps):
            for seed in range(seeds):
                problem, solver = make(count)
                fit = jaxsvm.fit(problem, solver, key=jax.random.key(seed))
                scores[name][seed, place] = accuracy(fit, problem)
                drawn = fit.counters.toward if name != "SBP" else fit.steps
                rows[name][seed, place] = float(drawn)

for name, values in scores.items():
    cells = zip(steps, rows[name].mean(0), values.mean(0), strict=True)
    print(f"{name:10}", "  ".join(f"{count}: {value:.3f} ({row:.0f} rows)" for count, row, value in cells))

# %%
figure, axes = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
for name, values in scores.items():
    axes.errorbar(rows[name].mean(0), values.mean(0), values.std(0), fmt="o-", markersize=4, capsize=3, label=name)
axes.plot([exact_rows], [best], "k*", markersize=11, label="exact")
axes.axhline(best, color="0.45", linestyle=":")
axes.set_xscale("log")
axes.set_xlabel("kernel rows")
axes.set_ylabel("accuracy on new samples")
axes.legend()
axes.grid(alpha=0.3)
plt.show()
assert scores["SBP"].mean(0)[2] > best - 0.03  # 128 rows, an eighth of what the exact solution took
assert scores["Perceptron"].mean(0)[-1] > best - 0.03 and scores["Pegasos"].mean(0)[-1] > best - 0.05

# %% [markdown]
# The SBP has a gap too. Its exact form (`batch=None`) ends with a proof.

# %%
certified = jaxsvm.fit(slack, jaxsvm.StochasticBatchPerceptron(steps=20_000, batch=None, tol=2e-2, average="linear"))
print(certified.status.name, f"relative gap {float(certified.certificate.relative_gap):.1e}")
assert certified.status.name == "CONVERGED"

# %% [markdown]
# **Learned.** No method needs the optimum for a good classifier: on this set 128 kernel rows of 6,000 bring the SBP to
# within a point of the exact solution, which took about a thousand. By steps, as the paper counts, it is far ahead. By
# rows that are asked for it is not: 2,048 draws cost Pegasos and the Perceptron less than 160 rows, since a sample that
# is right costs nothing, and the mean of the Perceptron's iterates is then as good as the SBP after as many rows. Sets
# differ (the page of the paper has three more): measure on yours. Where an answer has to be *proved*, use the exact
# solver, or the SBP's own certificate; a subgradient method has none that is worth waiting for.
