"""Test error against kernel evaluations: the paper's figure 2, ten seeds as lanes of one computation.

Usage: python benchmarks/hinge_figure.py [--data reuters adult mnist] [--seeds 10] [--epochs 2] [--json FILE]

No bias, C = 1 (lambda = 1/n), widths of the paper's table 2. Kernel evaluations are counted eagerly: n for
each row that is computed, none for a draw that changes nothing (the paper's cost model charges those too).
SBP takes batches of 16 (the paper's 1, of which fewer rows are as good) and runs with the nu of the exact solution (the
oracle) and with one chosen on a tenth of the samples; its curve is the mean of its iterates, as that of ball-SGD (whose
radius is the oracle's |w|); all others draw single samples and are judged at their current iterate. Pegasos takes the
paper's steps, `1 / (lambda t)`. The stored curves called "Pegasos, gentle steps" are of an earlier run with the
package's default schedule, which is behind at C = 1: nothing follows from them about the paper's comparison. MNIST is
its first 20,000 rows. Writes results/hinge_figure.png.
"""

import argparse
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from sbp_time import SHARED, load

import jaxsvm
from jaxsvm.kernels import RBF
from jaxsvm.problems.slack import equivalent_nu, squared_norm

RESULTS = pathlib.Path(__file__).parent / "results"
SETS = {"reuters": ("reuters_moneyfx", 1.0, None), "adult": ("adult", 1 / 20, None), "mnist": ("mnist", 1 / 50, 20_000)}
BATCH = 16
NUS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
CHECKPOINTS = 14
# `offset=0.0`: the paper's steps.
PEGASOS = jaxsvm.Pegasos(steps=10**9, batch=1, projection=False, average="last", order="random", offset=0.0)


@jax.jit
def advance(problem, solver, states, count):
    def one(state):
        return lax.fori_loop(0, count, lambda _, state: solver.step(problem, state), state)

    return jax.vmap(one)(states)


@jax.jit
def begin(problem, solver, keys):
    return jax.vmap(lambda key: solver.init(problem, key))(keys)


def coefficients(name, state):
    """Of w, up to a factor, `(seeds, n)`."""
    if name.startswith("SBP"):
        return state.mean.a
    if name.startswith("Pegasos"):
        return state.sums.s[:, None] * state.sums.columns[:, :, 0]
    if name == "ball-SGD":
        return jax.vmap(lambda sums: sums.mean)(state.sums)
    return state.h if name == "Perceptron" else state.a


def curve(name, problem, solver, keys, rows):
    """Coefficients and kernel evaluations at checkpoints, for all seeds; `rows` rows of n values at the most."""
    steps = rows // (BATCH if name.startswith("SBP") else 1)
    states, done, found = begin(problem, solver, keys), 0, []
    for count in np.unique(np.geomspace(max(steps / 2000, 8), steps, CHECKPOINTS).astype(int)).tolist():
        states = advance(problem, solver, states, count - done)
        done = count
        limbs = np.asarray(states.counters.evaluations, np.int64)
        found.append((np.asarray(coefficients(name, states)), limbs[:, 0] * 2**20 + limbs[:, 1]))
    return found


def chosen_nu(gram, y, steps, key):
    held = np.random.default_rng(0).random(len(y)) < 0.1
    weight, solver = np.where(held, 0.0, 1.0), jaxsvm.StochasticBatchPerceptron(steps=10**9, batch=BATCH)

    @jax.jit
    def margins(gram, nus):
        def one(nu):
            problem = jaxsvm.slack_problem(gram, y, nu, bias="none", sample_weight=weight)
            start = solver.init(problem, key)
            return lax.fori_loop(0, steps, lambda _, state: solver.step(problem, state), start).mean.c

        return jax.vmap(one)(nus)

    errors = (np.asarray(margins(gram, jnp.asarray(NUS, jnp.float32)))[:, held] <= 0).mean(axis=1)
    return NUS[int(errors.argmin())], errors.tolist()


def compare(label, options):
    name, gamma, first = SETS[label]
    if not (SHARED / f"{name}.npz").exists():
        print(f"skipped: {SHARED / f'{name}.npz'} is absent")
        return None
    x, y, xt, yt = load(name)
    x, y = x[:first], y[:first].astype(np.float32)
    start, n = time.perf_counter(), len(y)
    gram = jax.block_until_ready(jaxsvm.gram(RBF(gamma), x, memory=5 * 2**30))
    hinge = jaxsvm.hinge_problem(gram, y, 1.0, bias="none")
    exact = jaxsvm.fit(hinge, jaxsvm.SMO(tol=1e-3))
    nu, radius = float(equivalent_nu(hinge, exact)), float(jnp.sqrt(squared_norm(hinge, exact)))
    picked, errors = chosen_nu(gram, y, max(n // BATCH // 4, 50), jax.random.key(1))
    print(
        f"{label}: n = {n}, exact solution {exact.status.name} in {int(exact.steps)} steps, |w| = {radius:.3g}, "
        f"oracle nu {nu:.3g}, chosen nu {picked:.3g} ({time.perf_counter() - start:.0f} s)",
        flush=True,
    )
    keys, never = jax.random.split(jax.random.key(0), options.seeds), 10**9
    perceptron_steps = jaxsvm.StochasticBatchPerceptron(steps=never, batch=BATCH)
    solvers = {
        f"SBP, batches of {BATCH}": (jaxsvm.slack_problem(gram, y, nu, bias="none"), perceptron_steps),
        f"SBP, batches of {BATCH}, chosen nu": (jaxsvm.slack_problem(gram, y, picked, bias="none"), perceptron_steps),
        "Pegasos": (hinge, PEGASOS),
        "ball-SGD": (hinge, jaxsvm.BallSGD(radius, steps=never, batch=1, order="random")),
        "SDCA": (hinge, jaxsvm.SDCA()),
        "SMO": (hinge, jaxsvm.SMO(variables=1)),
        "Perceptron": (hinge, jaxsvm.Perceptron(never)),
    }
    found = {}
    for solver_name, (problem, solver) in solvers.items():
        start = time.perf_counter()
        here = keys[:1] if solver_name == "SMO" else keys  # it draws nothing
        found[solver_name] = curve(solver_name, problem, solver, here, options.epochs * n)
        print(f"  {solver_name}: {time.perf_counter() - start:.1f} s, compilation included", flush=True)
    stacked = np.concatenate([c for points in found.values() for c, _ in points] + [np.asarray(exact.alpha)[None]])
    weights = jnp.asarray((y * stacked).T)
    product = jax.jit(lambda part, points, weights: RBF(gamma).matrix(part, points) @ weights)
    scores = np.concatenate(
        [np.asarray(product(part, x, weights)) for part in np.array_split(xt, max(len(xt) // 500, 1))]
    )
    wrong = (np.where(scores > 0, 1, -1) != yt[:, None]).mean(axis=0)
    print(f"  exact solution: test error {wrong[-1]:.3%}")
    row, at = {"data": label, "n": n, "exact_error": float(wrong[-1]), "nu": nu, "chosen_nu": picked, "curves": {}}, 0
    for solver_name, points in found.items():
        seeds = len(points[0][0])
        errors = wrong[at : at + seeds * len(points)].reshape(len(points), seeds)
        at += seeds * len(points)
        evaluations = np.array([e for _, e in points], float) / n**2
        row["curves"][solver_name] = {
            "evaluations": evaluations.mean(axis=1).tolist(),
            "error": errors.mean(axis=1).tolist(),
            "spread": errors.std(axis=1).tolist(),
        }
        some = zip(evaluations.mean(axis=1)[::4], errors.mean(axis=1)[::4], strict=True)
        told = ", ".join(f"{e:.2g} n^2: {error:.2%}" for e, error in some)
        print(f"  {solver_name}: {told}; last {errors[-1].mean():.2%}")
    return row


def plot(rows, path):
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(rows), figsize=(5.2 * len(rows), 4.2), squeeze=False)
    for axis, row in zip(axes[0], rows, strict=True):
        for name, line in row["curves"].items():
            e, mean, spread = (np.array(line[key]) for key in ("evaluations", "error", "spread"))
            (drawn,) = axis.semilogx(e, 100 * mean, label=name, linestyle="--" if "chosen" in name else "-")
            axis.fill_between(e, 100 * (mean - spread), 100 * (mean + spread), alpha=0.15, color=drawn.get_color())
        axis.axhline(100 * row["exact_error"], color="black", linewidth=0.7, linestyle=":")
        top = 100 * max(3 * row["exact_error"], row["exact_error"] + 0.02)
        axis.set(title=f"{row['data']}, n = {row['n']:,}", xlabel="kernel evaluations / n²", ylabel="test error, %")
        lowest = min(row["exact_error"], *(min(line["error"]) for line in row["curves"].values()))
        axis.set_ylim(95 * lowest, top)
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=list(SETS), choices=list(SETS), help="none: only the picture")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--json", type=pathlib.Path, default=RESULTS / "hinge_figure.json")
    options = parser.parse_args()
    rows = json.loads(options.json.read_text()) if options.json.exists() else []
    for label in options.data:
        row = compare(label, options)
        if row is not None:
            rows = [other for other in rows if other["data"] != label] + [row]
            options.json.write_text(json.dumps(rows, indent=1))
    if rows:
        rows = sorted(rows, key=lambda row: list(SETS).index(row["data"]))
        plot(rows, RESULTS / "hinge_figure.png")


if __name__ == "__main__":
    main()
