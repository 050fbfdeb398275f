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
import tempfile
from pathlib import Path

import duckdb
import matplotlib.pyplot as plt
import numpy as np

from jaxsvm import InputError, relational

# %% [markdown]
# Orders, customers and products, in DuckDB (of PostgreSQL pass `ibis.postgres.connect(...)`). Every tenth order is a
# guest's, who is no customer, and a returned parcel costs what its weight says.

# %%
connection = duckdb.connect()
connection.execute("""
    CREATE TABLE customers AS SELECT i AS customer, 18 + i % 62 AS age,
        CASE WHEN i % 3 = 0 THEN 'south' ELSE 'north' END AS region FROM range(200) t(i);
    CREATE TABLE products AS SELECT i AS product, round(20 + 15 * sin(2.3 * i), 2) AS price FROM range(50) t(i);
    CREATE TABLE parcels AS SELECT i AS "order", CASE WHEN i % 10 > 0 THEN (i * i * 7 + i) % 200 END AS customer,
        (i // 7) % 50 AS product, round(1 + 7 * abs(sin(1.7 * i)), 1) AS amount, 0.5 + i % 4 AS weight
        FROM range(5000) t(i);
    CREATE TABLE orders AS SELECT p.customer, p.product, p.amount, p.weight, CASE WHEN 0.3 * p.amount + 0.05 * d.price
        - 0.04 * COALESCE(c.age, 45) + 0.7 * sin(12.9 * p."order") > 0.5 THEN 'yes' ELSE 'no' END AS returned
        FROM parcels p JOIN products d USING (product) LEFT JOIN customers c USING (customer)
""")
tables, label = ["orders", "customers", "products"], ("orders", "returned")

# %% [markdown]
# ## Fit: LEFT JOIN, weights, a certificate
#
# Keys are found by equal names, and each table brings its other columns as features. An inner join would lose the
# guests; `optional` keeps them, with the mean age and a region of their own. `join.notes` says what becomes of rows.

# %%
options = {"optional": ["customers"], "missing": "impute", "weights": {"orders": "weight"}, "positive": "yes"}
join = relational.from_database(connection, tables, label, **options)
fit = relational.fit(join, C=1.0, scale="standard")
print(join.notes[0])
print(fit)
print(dict(zip(fit.feature_names, fit.coef.round(3).tolist(), strict=True)))
assert fit.status.name == "CONVERGED" and float(join.size) == 5000 * 2.0
assert float(fit.certificate.dual) <= float(fit.certificate.primal)

# %% [markdown]
# F\*, the least value that any coefficients reach, is between the two bounds: no other solver finds a better model.
#
# ## Score where the data are
#
# The model is one query, with the LEFT JOIN in it. A saved model writes the same query where there are no tables.

# %%
with tempfile.TemporaryDirectory() as folder:
    fit.save(Path(folder) / "returns.json")
    model = relational.load(Path(folder) / "returns.json")
query = model.to_sql(score="risk")
print(query[:160], "...", query[query.index("FROM") :], sep="\n")
connection.execute(f"CREATE VIEW scored AS {query}")
print(connection.sql("SELECT returned, count(*) AS orders, avg(risk) AS risk FROM scored GROUP BY returned"))
((right,),) = connection.sql("SELECT avg(((risk >= 0) = (returned = 'yes'))::INT) FROM scored").fetchall()
print(f"{right:.1%} of the orders are right")
assert query == fit.to_sql(score="risk") and right > 0.8

# %% [markdown]
# ## Tables larger than memory
#
# `streamed=True`, which large tables choose by themselves, leaves the tables where they are. Each evaluation of the fit
# is a query that sums over the joined rows: no row comes here, and memory does not grow. Scores are counted there, too.

# %%
streamed = relational.fit(relational.from_database(connection, tables, label, streamed=True, **options), C=1.0)
plain = relational.fit(join, C=1.0)
print(streamed)
print(f"{streamed.score(streamed.join):.1%} of the orders are right")
lower, upper = (np.array([float(of.certificate[k]) for of in (streamed, plain)]) for k in (1, 0))
assert lower.max() <= upper.min()  # the intervals of both hold the optimum

# %% [markdown]
# ## Keys that lead round a cycle
#
# Who follows whom, and back to the start: three tables of edges are joined to triangles. That costs a table of keys,
# whose size the error says before it is made.

# %%
connection.execute("""CREATE TABLE edges AS SELECT i // 10 AS a, (i * i + 17 * i) % 89 AS b,
    sin(i) AS trust FROM range(900) t(i)""")
three = {name: f"(SELECT a AS {name[0]}, b AS {name[1]}, trust AS {name} FROM edges)" for name in ("uv", "vw", "wu")}
three["uv"] = "(SELECT a AS u, b AS v, trust AS uv, trust > 0 AS mutual FROM edges)"
try:
    relational.from_database(connection, three, ("uv", "mutual"))
except InputError as error:
    print(error)
triangles = relational.from_database(connection, three, ("uv", "mutual"), cyclic=100_000)
print(triangles)
query = "SELECT count(*) FROM edges x JOIN edges y ON x.b = y.a JOIN edges z ON y.b = z.a AND z.b = x.a"
assert triangles.size == connection.sql(query).fetchall()[0][0]

# %% [markdown]
# ## A join that nobody could form
#
# Three tables of 6,000 rows that share one key of three values: 24 billion joined rows. Nothing is formed, so the time
# is that of the tables. How the model does on all those rows is a count as well: the share of the rows whose margin is
# at most a threshold.

# %%
rng, rows = np.random.default_rng(0), 6000
parts = {name: {"key": rng.integers(0, 3, rows), f"x{name}": rng.normal(size=rows)} for name in "abc"}
parts["a"]["label"] = np.where(parts["a"]["xa"] + 0.5 * rng.normal(size=rows) > 0, 1, -1)
huge = relational.Join(parts, ("a", "label"))
found = relational.fit(huge, 1e-2, scale="standard", tol=2e-2, engine="grid")
print(f"{float(huge.size):.2g} joined rows of {3 * rows:,} in {found.seconds:.1f} s: {found}")
assert float(huge.size) > 1e10 and found.status.name == "CONVERGED"

thresholds = np.linspace(-2, 5, 36)
share, (wrong,) = found.margins(thresholds), found.margins(0.0)
print(f"median margin {np.interp(0.5, share, thresholds):.2f}")
figure, axes = plt.subplots(figsize=(6.5, 3), layout="constrained")
axes.stairs(np.diff(share), thresholds, fill=True)
axes.axvline(0, color="0.3", linewidth=1)
axes.set(xlabel="margin", ylabel="share of the rows", title=f"{float(huge.size):.2g} rows, {wrong:.1%} of them wrong")
plt.show()
assert (np.diff(share) >= 0).all() and 0.05 < wrong < 0.25

# %% [markdown]
# ## What nobody can know
#
# The counts are to a factor: exact ones would count knapsacks. Of ten weights, how many choices weigh at most a third
# of all? Each weight is a table of two rows (take it, or not), so a joined row is a choice, and a light choice is a row
# inside the margin. One more row carries k on the wrong side: the derivative along `Value` is (k - count) / N, and its
# sign tells whether more than k choices are light. The interval holds the truth, and claims a sign where 0 is outside.

# %%
weights = np.random.default_rng(3).integers(1, 20, 10)
limit = weights.sum() // 3
light = int(((np.arange(2**10)[:, None] >> np.arange(10) & 1) @ weights <= limit).sum())
for k in (light // 2, light - 1, light, light + 1, 2 * light):
    items = {f"t{i}": {"key": [1, 1, 0], f"e{i}": [0, w / (limit + 0.5), 0]} for i, w in enumerate(weights.tolist())}
    items["v"] = {"key": [1, 0, 1], "Value": [1.0, -float(k), 0.0], "y": [1, 1, -1]}
    gadget = relational.Join({name: {c: np.array(v) for c, v in t.items()} for name, t in items.items()}, ("v", "y"))
    at = gadget.feature_names.index("v.Value")
    beta = np.array([float(name != "v.Value") for name in gadget.feature_names])
    bounds = (relational.pseudo_gradient(gadget, beta, 0.0, 0.1, mode=mode) for mode in ("lower", "upper"))
    low, high = (-float(gadget.size) * end[at] for end in reversed(relational.gradient_interval(*bounds)))
    sign = "more" if low > 0 else "fewer" if high < 0 else "nobody knows"
    print(f"light choices {light}, k = {k}: count - k in [{low:.2f}, {high:.2f}] ({sign})")
    assert low <= light - k <= high

# %% [markdown]
# **Learned.** The gradient of an SVM over a join needs counts and sums of the rows on the wrong side of the margin, and
# these can be passed along the join tree like messages. So the cost is that of the tables, the answer comes with an
# interval that holds the optimum, and prediction is a query that runs where the data are. Forming the join is faster
# only while it is small. What the paper behind these counts claims, and what of it holds, is on
# [its page](../docs/papers/relational_gradient_descent.md).
