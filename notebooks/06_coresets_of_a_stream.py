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
# # Coresets of a stream
#
# A coreset is a small weighted set of points on which the objective of a linear SVM is nearly what it is on all
# points, for *every* decision function. So whatever is trained on it is nearly optimal on everything. Here 200,000
# points go by, chunk by chunk, and little more than a thousand weighted ones remain.

# %%
import matplotlib.pyplot as plt
import numpy as np

from jaxsvm import coresets
from jaxsvm.coresets.summary import solution

d, chunk, chunks = 5, 10_000, 20
truth = np.array([2.0, -1.0, 0.5, 0.0, 0.0])


def arrive(number):
    """Chunk `number` of the stream: unbalanced, and with a few far points that uniform samples mostly miss."""
    rng = np.random.default_rng(number)
    x = rng.normal(size=(chunk, d))
    x[rng.random(chunk) < 0.001] *= 30
    y = np.where(x @ truth - 3.5 + rng.normal(size=chunk) > 0, 1.0, -1.0)
    return x, y


# %% [markdown]
# ## Merge and reduce
#
# A buffer that is full becomes a coreset; two coresets of one level become one of the next. After n points there are
# about log n of them, whatever n is.

# %%
stream = coresets.Stream(C=1.0, size=200, total_weight=float(chunk * chunks))
state, held = stream.init(0), []
for number in range(chunks):
    state = stream.update(state, *arrive(number))
    held.append(state.filled + sum(len(node.y) for node in state.levels if node is not None))
small = stream.finalize(state)
print(f"{state.rows} points went by; at most {max(held)} were held; the coreset has {len(small)}")
assert state.rows == chunk * chunks and max(held) < 0.03 * state.rows

# %% [markdown]
# The stream is small enough to be kept here for once, so that the answer can be judged.

# %%
parts = [arrive(number) for number in range(chunks)]
x, y = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def objective(w, b):
    return w @ w / 2 + np.maximum(0, 1 - y * (x @ w + b)).sum()


w, b = solution(x, y, 1.0)
best, reached = objective(w, b), objective(*small.solution())
print(f"trained on the coreset: {reached / best - 1:.2%} above the optimum of all {len(y)} points")
assert reached / best - 1 < 0.05

# %% [markdown]
# ## Against uniform samples of the same size
#
# In memory, several sizes and a few draws of each. A uniform sample misses the rare class and the far points.

# %%
rng = np.random.default_rng(0)
part_x, part_y = x[:40_000], y[:40_000]


def excess(w, b):
    value = w @ w / 2 + np.maximum(0, 1 - part_y * (part_x @ w + b)).sum()
    return value / of_part - 1


w, b = solution(part_x, part_y, 1.0)
of_part = w @ w / 2 + np.maximum(0, 1 - part_y * (part_x @ w + b)).sum()
sizes, draws = (100, 400), 4
errors = {"coreset": np.zeros((draws, len(sizes))), "uniform sample": np.zeros((draws, len(sizes)))}
for place, m in enumerate(sizes):
    for draw in range(draws):
        errors["coreset"][draw, place] = excess(*coresets.coreset(part_x, part_y, 1.0, m, draw).solution())
        rows = rng.choice(len(part_y), m, replace=False)
        weight = np.full(m, len(part_y) / m)
        errors["uniform sample"][draw, place] = excess(*solution(part_x[rows], part_y[rows], 1.0, weight))

figure, axes = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
for name, values in errors.items():
    axes.loglog(sizes, np.median(values, axis=0), "o-", label=name)
axes.set(xlabel="points of the coreset", ylabel="above the optimum, relative")
axes.legend()
plt.show()
medians = {name: np.median(values, axis=0) for name, values in errors.items()}
print({name: values.round(4).tolist() for name, values in medians.items()})
assert (medians["coreset"] < medians["uniform sample"]).all()

# %% [markdown]
# **Learned.** What a linear SVM needs of 200,000 points fits into a thousand weighted ones, found in one pass with
# bounded memory. Sampling by sensitivity, with weights that meet known totals, is here some thirty to seventy times as
# exact as a uniform sample of the same size, which misses the far points and has too few of the rare class. Where all
# points fit into memory, a linear fit on all of them is as fast: coresets are for those that do not.
