"""Coresets against uniform, leverage and Lewis weight sampling: the error of the trained machine against the size.

    python benchmarks/coresets.py [--sets htru2,pathological,web] [--trials 100] [--sizes 100,200,400,800]
    python benchmarks/coresets.py --variants 1     # samplers of our own beside one another
    python benchmarks/coresets.py --plot 1         # the picture of what is in results/coresets.json

Data are standardised, C = 1 (the paper's protocol); the error is F(w_S) / F* - 1 with F* to a relative gap of 1e-9, of
the whole data. What a machine that always says the larger class reaches (w = 0) is printed beside it. A *proposal* is
all that a construction computes but the draw; trials share proposals on large sets (`--proposals`), each has a draw of
its own. `--share 0.1` trains at a tenth of the C that the coresets were made for.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxsvm.coresets.construction import Plan, choose, draw, propose
from jaxsvm.coresets.measured import MEASURED
from jaxsvm.coresets.pilot import solve
from jaxsvm.coresets.sampling import independent

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_compilation_cache_dir", "/tmp/cache_cs")
RESULTS = Path(__file__).parent / "results" / "coresets.json"
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
    return weight * ((a @ np.linalg.pinv(gram)) * a).sum(axis=1)


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


def methods(x, y, k, variants, wanted):
    """Of each method: a proposal from a key, and a draw of so many points from a proposal and a key."""
    n, u = len(y), jnp.ones(len(y))
    points = jnp.asarray(x), jnp.asarray(y)

    def ours(sampler="mixture", **options):
        plan = Plan(0, counts=(k,), tol=1e-3, sampler=sampler, **options)

        def draw_of(found, key, m):
            if sampler == "mixture" and m < MEASURED.points_per_feature_for_one_draw * x.shape[1]:
                return _choose(key, found, *points, u, 1.0, m, plan._replace(m=m))[:2]
            return _draw(key, found, *points, u, m, plan._replace(m=m))[:2]

        return (sampler == "independent", plan.bound), lambda key: _propose(key, *points, u, 1.0, plan), draw_of

    def plain(draw_of):
        return None, lambda key: None, lambda found, key, m: draw_of(key, m)

    table = {"ours": ours(), "not calibrated": ours("systematic")}
    if variants:
        return table | {"independent": ours("independent")}
    table["printed"] = ours("independent", bound="printed", scaled=True)
    table["uniform"] = plain(lambda key, m: (jax.random.permutation(key, n)[:m], jnp.full(m, n / m)))
    table["uniform (repl.)"] = plain(lambda key, m: (jax.random.randint(key, (m,), 0, n), jnp.full(m, n / m)))
    if not wanted or "leverage" in wanted:
        table["leverage"] = plain(by(np.sqrt(leverage(x, np.ones(n)))))
    if not wanted or "Lewis" in wanted:
        table["Lewis"] = plain(by(lewis(x)))
    return {name: of for name, of in table.items() if not wanted or name in wanted}


_draw = jax.jit(draw, static_argnames="plan")
_choose = jax.jit(choose, static_argnames="plan")
_propose = jax.jit(propose, static_argnames="plan")


@partial(jax.jit, static_argnames="m")
def _train(x, y, index, weight, C, m):
    """(w, b) of the weighted subset; of slots beyond the data none."""
    index = jnp.minimum(index, len(y) - 1)
    at = solve(x[index], y[index], C * weight, tol=1e-7)
    return jnp.append(at.w, at.b)


@jax.jit
def _objectives(x, y, queries, C):
    f = x @ queries[:, :-1].T + queries[:, -1]
    return 0.5 * (queries[:, :-1] ** 2).sum(axis=1) + C * jnp.maximum(0, 1 - y[:, None] * f).sum(axis=0)


def measure(name, sizes, given):
    x, y = map(jnp.asarray, load(name))
    C = given.share
    best = jax.jit(partial(solve, tol=1e-9))(x, y, C * jnp.ones(len(y)))
    F, plain = float(best.primal), 2 * C * float(min((y > 0).sum(), (y < 0).sum()))
    gap = float(best.primal - best.dual) / F
    print(f"\n{name}: {x.shape}, F* {F:.6g} (gap {gap:.1e}), w = 0: {plain / F - 1:.3g}", flush=True)
    print(f"{'m':>6} {'method':>16} {'mean':>9} {'std':>9} {'median':>9} {'uniform / it':>12}", flush=True)
    wanted = [method for method in given.methods.split(",") if method]
    clusters = min(given.clusters, len(y) // 50)
    known = methods(np.asarray(x), np.asarray(y), clusters, given.variants, wanted)
    found, rows = {}, []
    proposals = min(given.proposals, given.trials)
    began = time.process_time()
    for trial in range(proposals):
        for kind, propose_by, _ in known.values():
            if (kind, trial) not in found:
                found[kind, trial] = jax.block_until_ready(propose_by(jax.random.key(trial)))
        if not trial:
            print(f"the first proposals: {time.process_time() - began:.1f} s of processor", flush=True)
    for m in (m for m in sizes if m < len(y)):
        table = {}
        for method, (kind, _, draw_of) in known.items():
            queries = []
            for trial in range(given.trials):
                key = jax.random.fold_in(jax.random.key(trial), m)
                index, weight = draw_of(found[kind, trial % proposals], key, m)
                queries.append(np.asarray(_train(x, y, index, weight, C, m)))
            table[method] = np.asarray(_objectives(x, y, jnp.asarray(queries), C)) / F - 1
        base = table["uniform" if "uniform" in table else next(iter(table))].mean()
        for method, errors in table.items():
            values = errors.mean(), errors.std(), np.median(errors), base / errors.mean()
            print(f"{m:>6} {method:>16} {' '.join(f'{v:9.3g}' for v in values)}", flush=True)
            rows.append(dict(zip(("mean", "std", "median", "gain"), values, strict=True)) | {"m": m, "method": method})
    counts = {"trials": given.trials, "proposals": proposals}
    return {"n": len(y), "d": x.shape[1], "optimum": F, "at_zero": plain / F - 1, "C": C, **counts, "rows": rows}


def plot():
    import matplotlib.pyplot as plt

    sets = json.loads(RESULTS.read_text())
    sets = {name: of for name, of in sets.items() if of["C"] == 1}
    figure, axes = plt.subplots(2, 3, figsize=(13, 7.5), layout="constrained")
    colors = {
        name: f"C{i}" for i, name in enumerate(dict.fromkeys(r["method"] for of in sets.values() for r in of["rows"]))
    }
    for ax, (name, of) in zip(axes.flat, sets.items(), strict=False):
        for method in dict.fromkeys(row["method"] for row in of["rows"]):
            m, mean, std = np.array(
                [[r[k] for k in ("m", "mean", "std")] for r in of["rows"] if r["method"] == method]
            ).T
            ax.loglog(m, mean, "o-", ms=3, label=method, color=colors[method])
            ax.fill_between(m, np.maximum(mean - std, mean / 10), mean + std, color=colors[method], alpha=0.08)
        ax.set(title=f"{name}: {of['n']} x {of['d']}, {of['trials']} trials", xlabel="points", ylabel="F(w_S) / F* - 1")
    axes[0, 0].legend(fontsize=7)
    figure.savefig(RESULTS.with_suffix(".png"), dpi=110)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", default="htru2,pathological,web,credit_default,codrna,skin")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--proposals", type=int, default=100)
    parser.add_argument("--sizes", default="100,200,400,800,1000")
    parser.add_argument("--clusters", type=int, default=64)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--variants", type=int, default=0)
    parser.add_argument("--methods", default="", help="some of them, by name")
    parser.add_argument("--plot", type=int, default=0)
    given = parser.parse_args()
    if given.plot:
        return plot()
    sizes = [int(m) for m in given.sizes.split(",")]
    print(f"eta {MEASURED.share_of_bounds}, {given.trials} trials, {given.clusters} cells a class", flush=True)
    for name in given.sets.split(","):
        measured = measure(name, sizes, given)
        if not given.variants:
            kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            label = name if given.share == 1 else f"{name}, C = {given.share:g}"
            RESULTS.write_text(json.dumps(kept | {label: measured}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
