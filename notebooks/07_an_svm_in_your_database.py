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
# # An SVM in your database
#
# Data live in tables, and learning wants one: so people join, and the join has many times the rows of its tables.
# `jaxsvm.relational` trains on the join without forming it, proves how good the answer is, and scores by a SQL query.

# %%
import duckdb
import matplotlib.pyplot as plt
import numpy as np

from jaxsvm import relational

# %% [markdown]
# Orders, customers and products, in DuckDB.

# %%
rng = np.random.default_rng(0)
customers, products, orders = 200, 50, 5000
age, price = rng.uniform(18, 80, customers), rng.lognormal(3, 0.6, products)
who, what, amount = rng.integers(0, customers, orders), rng.integers(0, products, orders), rng.integers(1, 9, orders)
region = rng.choice(["north", "south"], customers)
score = -0.04 * (age[who] - 45) + 0.05 * (price[what] - 22) + 0.3 * (amount - 4) + (region[who] == "south")
returned = np.where(score + rng.normal(0, 0.7, orders) > 0.5, "yes", "no")

connection = duckdb.connect()
tables = {
    "customers": {"customer": np.arange(customers), "age": age, "region": region},
    "products": {"product": np.arange(products), "price": price},
    "orders": {"customer": who, "product": what, "amount": amount, "returned": returned},
}
for name, columns in tables.items():
    kinds = {"f": "DOUBLE", "i": "BIGINT", "U": "VARCHAR"}
    declared = ", ".join(f"{column} {kinds[values.dtype.kind]}" for column, values in columns.items())
    connection.execute(f"CREATE TABLE {name} ({declared})")
    rows = list(zip(*(values.tolist() for values in columns.values()), strict=True))
    connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", rows)

# %% [markdown]
# ## Fit
#
# Keys are found by equal names; each table brings its other columns as features.

# %%
join = relational.from_database(connection, ["orders", "customers", "products"], ("orders", "returned"), positive="yes")
fit = relational.fit(join, C=1.0, scale="standard", tol=1e-3)
print(fit)
print(dict(zip(fit.feature_names, fit.coef.round(3).tolist(), strict=True)))
assert fit.status.name == "CONVERGED"
assert float(fit.certificate.dual) <= float(fit.certificate.primal)

# %%
figure, axes = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
lower, upper = np.asarray(fit.history)[:, :2].T
axes.plot(upper, "o-", markersize=3, label="upper bound: the best F reached")
axes.plot(lower, "o-", markersize=3, label="lower bound: what planes prove")
axes.set(xlabel="step", ylabel="objective F")
axes.legend()
plt.show()

# %% [markdown]
# ## Score where the data are
#
# The model is one query.

# %%
query = fit.to_sql()
print(query[:400], "...")
scored = connection.execute(f"SELECT returned, score FROM ({query})").fetchall()
right = np.mean([(label == "yes") == (value >= 0) for label, value in scored])
print(f"{len(scored)} orders scored in the database, {right:.1%} right")
assert len(scored) == orders and right > 0.83

# %% [markdown]
# ## A join that nobody could form
#
# Three tables that share one key: 600 rows each, three values of the key, so 24 million joined rows. Then a thousand
# times as many, of ten times the rows: nothing is formed, so the time is that of the tables.

# %%


def star(rows, values):
    key = {name: rng.integers(0, values, rows) for name in "abc"}
    x = {name: rng.normal(size=rows) for name in "abc"}
    label = np.where(x["a"] + 0.5 * rng.normal(size=rows) > 0, 1, -1)
    return relational.Join(
        {
            "a": {"key": key["a"], "u": x["a"], "label": label},
            "b": {"key": key["b"], "v": x["b"]},
            "c": {"key": key["c"], "w": x["c"]},
        },
        label=("a", "label"),
    )


for rows in (600, 6000):
    huge = star(rows, 3)
    found = relational.fit(huge, 1e-2, scale="standard", tol=2e-2, engine="grid")
    print(f"{float(huge.size):.2g} joined rows of {3 * rows:,} in {found.seconds:.1f} s: {found}")
    assert float(huge.size) > 1e7 and found.status.name == "CONVERGED"
    assert abs(found.coef[0]) > 5 * max(abs(found.coef[1:]))  # the one feature that matters

# %% [markdown]
# How the model does on all those rows is a count as well: the share of the rows whose margin is at most a threshold.

# %%
thresholds = np.linspace(-2, 5, 36)
share, (wrong,) = found.margins(thresholds), found.margins(0.0)
figure, axes = plt.subplots(figsize=(6.5, 3), layout="constrained")
axes.stairs(np.diff(share), thresholds, fill=True)
axes.axvline(0, color="0.3", linewidth=1)
axes.set(xlabel="margin", ylabel="share of the rows", title=f"{float(huge.size):.2g} rows, {wrong:.1%} of them wrong")
plt.show()
assert (np.diff(share) >= 0).all() and 0.05 < wrong < 0.25

# %% [markdown]
# ## What nobody can know
#
# Thirty tables hold an item each: take it or leave it. So a joined row is a subset, of 2^30. It violates the margin if
# it weighs little enough; one more table adds 1 for such a row, and -k for an extra row. One coordinate of the gradient
# is then k minus the number of light subsets. Whoever knew its sign at every k would have counted them, which is
# #P-hard. So counts within a factor 1 + eps give an interval, and where it holds 0 no sign is claimed.

# %%
weights = rng.integers(1, 1000, 30)
limit = int(weights.sum() // 3)
ways = np.eye(1, limit + 1)[0]  # the number of subsets of each weight, which takes as many steps as the limit is large
for weight in weights:
    ways[weight:] += ways[:-weight].copy()
light = int(ways.sum())
items = {f"t{i}": {"key": [1, 1, 0], f"e{i}": [0, w / (limit + 0.5), 0.0]} for i, w in enumerate(weights)}
for k in (light, 2 * light):
    last = {"key": [1, 0, 1], "value": [1.0, -k, 0.0], "label": [1, 1, -1]}
    gadget = relational.Join(items | {"last": last}, label=("last", "label"))
    beta = np.array([float(name != "last.value") for name in gadget.feature_names])
    at = gadget.feature_names.index("last.value")
    modes = (relational.pseudo_gradient(gadget, beta, 0.0, mode=mode) for mode in ("lower", "upper"))
    low, high = (end[at] * float(gadget.size) for end in relational.gradient_interval(*modes))
    sign = "unknown" if low <= 0 <= high else "known"
    print(f"k - light = {k - light:,} in [{low:,.0f}, {high:,.0f}]: the sign is {sign}")
    assert low <= k - light <= high and (sign == "known") == (k != light)

# %% [markdown]
# **Learned.** The gradient of an SVM over a join needs counts and sums of the rows on the wrong side of the margin, and
# these can be passed along the join tree like messages. So the cost is that of the tables, the answer comes with an
# interval that holds the optimum, and prediction is a query that runs where the data are. Forming the join is faster
# only while it is small. What the paper behind these counts claims, and what of it holds, is on
# [its page](../docs/papers/relational_gradient_descent.md).
