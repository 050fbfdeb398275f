"""Coresets against uniform, leverage and Lewis weight sampling: the error of the trained machine against the size.

    python benchmarks/coresets.py [--sets htru2,pathological,web] [--trials 100] [--sizes 100,200,400,800]
    python benchmarks/coresets.py --variants 1    # samplers of our own beside one another

Data are standardised, C = 1 (the paper's protocol); the error is F(w_S) / F* - 1 with F* to a relative gap of 1e-9, of
the whole data. What a machine that always says the larger class reaches (w = 0) is printed beside it.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxsvm.coresets.construction import ETA, Plan, draw, propose
from jaxsvm.coresets.pilot import solve
from jaxsvm.coresets.sampling import independent

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_compilation_cache_dir", "/tmp/cache_core")
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
SHARED = SHARED if SHARED.exists() else Path("/work/shared/data")


def load(name):
    if name == "pathological":  # two distant clusters of opposite labels, and two close points of different labels
        rng = np.random.default_rng(0)
        y = np.where(np.arange(1000) % 2, 1.0, -1.0)
        x = rng.normal(size=(1000, 2)) * 0.5 + 10.0 * y[:, None]
        x[:2] = [[0.1, -0.1], [-0.1, 0.1]]
        y[:2] = 1, -1
    else:
        with np.load(SHARED / f"{name}.npz") as stored:
            if "X" in stored:
                x = stored["X"].astype(float)
            else:
                from scipy.sparse import csr_array

                parts = (stored["X_data"].astype(float), stored["X_indices"], stored["X_indptr"])
                x = csr_array(parts, shape=tuple(stored["X_shape"])).toarray()
            y = stored["y"].astype(float)
    spread = x.std(axis=0)
    return (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1), y


def leverage(x, weight):
    """Of the rows of `(x, 1)`, with weights, under the root."""
    a = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    gram = (a * weight[:, None]).T @ a
    return weight * np.einsum("ij,jk,ik->i", a, np.linalg.pinv(gram), a)


def lewis(x, rounds=12):
    """l1 Lewis weights: tau_i = (a_i' (A' T^-1 A)^-1 a_i)^(1/2)."""
    tau = np.ones(len(x))
    for _ in range(rounds):
        inverse = 1 / np.maximum(tau, 1e-12)
        tau = np.sqrt(np.maximum(leverage(x, inverse) * tau, 1e-300))
    return tau


def by(q, eta=0.5):
    """Drawn independently by a mixture with the uniform distribution, as the sources of these weights do."""
    q = jnp.asarray(eta * q / q.sum() + (1 - eta) / len(q))
    return lambda key, m: (i := independent(key, q, m), 1 / (m * q[i]))


def methods(x, y, k, variants):
    n, u = len(y), jnp.ones(len(y))

    def coreset(**options):
        plan = Plan(0, counts=(k,), tol=1e-3, **options)
        points = jnp.asarray(x), jnp.asarray(y)

        def prepare(key):
            found = _propose(key, *points, u, 1.0, plan)
            return lambda key, m: _draw(key, found, u, plan._replace(m=m))

        return prepare

    def without(key, m):
        return jax.random.permutation(key, n)[:m], jnp.full(m, n / m)

    def replaced(key, m):
        return jax.random.randint(key, (m,), 0, n), jnp.full(m, n / m)

    ours = {"ours": coreset(), "independent": coreset(sampler="independent")}
    if variants:
        return ours
    ours["printed"] = coreset(sampler="independent", bound="printed", scaled=True)
    lever, lew = by(np.sqrt(leverage(x, np.ones(n)))), by(lewis(x))
    plain = {"uniform": without, "uniform (repl.)": replaced, "leverage": lever, "Lewis": lew}
    return ours | {name: partial(lambda draw, key: draw, draw) for name, draw in plain.items()}


_draw = jax.jit(draw, static_argnames="plan")
_propose = jax.jit(propose, static_argnames="plan")


@partial(jax.jit, static_argnames="m")
def _train(x, y, index, weight, m):
    """(w, b) of the weighted subset; of slots beyond the data none."""
    index = jnp.minimum(index, len(y) - 1)
    at = solve(x[index], y[index], weight, tol=1e-7)
    return jnp.append(at.w, at.b)


@jax.jit
def _objectives(x, y, queries):
    f = x @ queries[:, :-1].T + queries[:, -1]
    return 0.5 * (queries[:, :-1] ** 2).sum(axis=1) + jnp.maximum(0, 1 - y[:, None] * f).sum(axis=0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", default="htru2,pathological,web,credit_default,codrna,skin")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--sizes", default="100,200,400,800,1000")
    parser.add_argument("--clusters", type=int, default=64)
    parser.add_argument("--variants", type=int, default=0)
    given = parser.parse_args()
    sizes = [int(m) for m in given.sizes.split(",")]
    print(f"eta {ETA}, {given.trials} trials, {given.clusters} cells a class", flush=True)
    for name in given.sets.split(","):
        x, y = map(jnp.asarray, load(name))
        best = jax.jit(partial(solve, tol=1e-9))(x, y, jnp.ones(len(y)))
        plain = min(2 * float((y > 0).sum()), 2 * float((y < 0).sum()))
        F = float(best.primal)
        gap = float(best.primal - best.dual) / F
        print(f"\n{name}: {x.shape}, F* {F:.6g} (gap {gap:.1e}), w = 0: {plain / F - 1:.3g}", flush=True)
        print(f"{'m':>6} {'method':>16} {'mean':>9} {'std':>9} {'median':>9} {'uniform / it':>12}   seconds a trial")
        table = {}
        k = min(given.clusters, len(y) // 50)
        for method, prepare in methods(np.asarray(x), np.asarray(y), k, given.variants).items():
            queries, began = {m: [] for m in sizes}, time.perf_counter()
            for trial in range(given.trials):
                key = jax.random.key(trial)
                draw_of = prepare(key)
                for m in sizes:
                    if m < len(y):
                        index, weight = draw_of(jax.random.fold_in(key, m), m)
                        queries[m].append(np.asarray(_train(x, y, index, weight, m)))
            seconds = (time.perf_counter() - began) / given.trials
            for m in sizes:
                if queries[m]:
                    table[m, method] = np.asarray(_objectives(x, y, jnp.asarray(queries[m]))) / F - 1, seconds
        for m in sizes:
            for (size, method), (errors, seconds) in table.items():
                if size == m:
                    baseline = table.get((m, "uniform"), (errors,))[0].mean()
                    figures = (errors.mean(), errors.std(), np.median(errors))
                    shown = " ".join(f"{v:9.3g}" for v in figures)
                    print(f"{m:>6} {method:>16} {shown} {baseline / errors.mean():>12.2f}   {seconds:.2f}", flush=True)


if __name__ == "__main__":
    main()
