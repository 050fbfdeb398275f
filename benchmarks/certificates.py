"""Whether any certificate lies: random fits over all solvers and problems, and estimators on random kernels.

Usage: python benchmarks/certificates.py [--count N] [--estimators N] [--seed S] [--no-x64] [--only SOLVER ...]

Each fit is judged in NumPy's long double (`tests/judge.py`, which knows no jaxsvm) on the kernel matrix as it is
stored: CONVERGED is false where the true relative gap of the returned numbers is above `tol`, where a sample that is
absent carries weight, or where the matrix is indefinite along the directions that points can move; and a stated gap,
primal or dual value is false on the wrong side of the truth, whatever the status. Sizes are one, so that programs are
few: 16 samples, of which the weights leave some out.

Weights: 1; 0 or 1; 1 or 1e-20; 1 or 1e20; all of these mixed. Kernel matrices: RBF, linear, polynomial, duplicates; one
in eight is indefinite. Estimators (precomputed, callable and sigmoid kernels): 24 samples of two classes or of three,
kernels that are definite, indefinite, semidefinite along `y . a = 0` alone, or asymmetric. Exit code: 1 where anything
was false.
"""

import argparse
import collections
import pathlib
import sys
import time
import warnings

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import adversarial
import judge
from adversarial import Form, Trial
from judge import LONG, Facts, Statement

N, MEMBERS = 16, 24
"""Samples of a fit, and of an estimator's."""
TOLS = (1e-2, 1e-3, 1e-4, 1e-6)
STEPS = 2000
SIMPLEX, REGULARIZED, ANY = ("squared", "ball"), ("regularized", "none"), ("regularized", "none", "free")


def fw(variant, **options):
    """A Frank-Wolfe solver, of the module and a tolerance."""
    return lambda svm, tol: svm.FrankWolfe(variant=variant, tol=tol, max_steps=STEPS, check_every=50, **options)


def core(svm, tol):
    """A Core Vector Machine."""
    return svm.CoreVectorMachine(tol=tol, max_steps=STEPS, check_every=50)


def around(outer, inner, **options):
    """A wrapper around a solver."""
    return lambda svm, tol: getattr(svm, outer)(inner(svm, tol), **options)


def plain(name, **options):
    """A solver by name."""
    return lambda svm, tol: getattr(svm, name)(tol=tol, **options)


def screened(inner):
    """A solver whose known samples leave."""
    return lambda svm, tol: svm.screened(inner(svm, tol))


SMO = plain("SMO", max_steps=STEPS)
SOLVERS = {
    "fw classic": (SIMPLEX, REGULARIZED, fw("classic")),
    "fw away": (SIMPLEX, REGULARIZED, fw("away")),
    "fw pairwise": (SIMPLEX, REGULARIZED, fw("pairwise")),
    "fw smo": (SIMPLEX, REGULARIZED, fw("smo")),
    "fw classic, paper's rule": (SIMPLEX, REGULARIZED, fw("classic", stop="paper", start="two-point")),
    "fw away, relative rule": (("squared",), REGULARIZED, fw("away", stop="relative_fw", start="uniform")),
    "core vectors": (SIMPLEX, REGULARIZED, core),
    "sampled classic": (SIMPLEX, REGULARIZED, around("sampled", fw("classic"), r=5)),
    "sampled away, unchecked": (("squared",), REGULARIZED, around("sampled", fw("away"), r=5, final_check="none")),
    "sampled core vectors": (("squared",), REGULARIZED, around("sampled", core, r=5)),
    "polished classic": (SIMPLEX, REGULARIZED, around("polished", fw("classic"))),
    "polished sampled away": (("squared",), REGULARIZED, around("polished", around("sampled", fw("away"), r=5))),
    "screened classic": (("squared",), REGULARIZED, screened(fw("classic"))),
    "screened smo": (("hinge",), REGULARIZED, screened(SMO)),
    "polished screened": (("squared",), REGULARIZED, around("polished", screened(fw("smo")))),
    "newton": (("squared",), ANY, plain("Newton", max_steps=60)),
    "working set, squared": (("squared",), REGULARIZED, plain("WorkingSet", size=8, fresh=4, max_steps=200)),
    "working set": (("hinge", "box"), ANY, plain("WorkingSet", size=8, fresh=4, max_steps=200)),
    "smo": (("hinge", "box"), ANY, SMO),
    "smo of one": (("hinge", "box"), REGULARIZED, plain("SMO", variables=1, max_steps=STEPS)),
    "sdca": (("hinge", "box"), REGULARIZED, plain("SDCA", max_steps=STEPS)),
    "interior point": (("hinge", "box"), ANY, plain("InteriorPoint", max_steps=60)),
    "pegasos": (("hinge",), REGULARIZED, plain("Pegasos", steps=500, batch=4)),
    "ball sgd": (("hinge",), REGULARIZED, lambda svm, tol: svm.BallSGD(1.0, steps=500, batch=4, tol=tol)),
    "perceptron": (("hinge",), REGULARIZED, lambda svm, tol: svm.Perceptron(500, output="average", tol=tol)),
    "sbp": (("slack",), ANY, plain("StochasticBatchPerceptron", steps=500, batch=4)),
    "sbp exact": (("slack",), ANY, plain("StochasticBatchPerceptron", steps=500, batch=None, average="linear")),
    "chosen": (("squared", "hinge", "box", "ball"), ANY, None),
    "path": (("squared", "hinge"), ANY, None),
    "folds": (("squared", "hinge"), ANY, None),
}
WAYS = [
    (name, kind, bias)
    for name, (kinds, biases, _) in SOLVERS.items()
    for kind in kinds
    for bias in (("none",) if kind == "ball" else biases)
]


def matrix(rng, dtype):
    """A kernel matrix, and what it is."""
    x = rng.normal(size=(N, 2))
    family = str(rng.choice(["rbf", "rbf", "linear", "poly", "duplicates", "far", "indefinite", "nearly"]))
    if family == "duplicates":
        x = x[np.arange(N) // 2]
    distances = ((x[:, None] - x) ** 2).sum(axis=2)
    K = np.exp(-(10 ** rng.uniform(-1, 1)) * distances)
    if family == "linear":
        K = x @ x.T
    elif family == "poly":
        K = (x @ x.T / 2 + 1) ** 3
    elif family == "far":
        K = (x + 30) @ (x + 30).T
    elif family == "indefinite":
        K = rng.normal(size=(N, N))
        np.fill_diagonal(K, abs(np.diagonal(K)) + 1)
    elif family == "nearly":
        K[0, 0] -= 10 ** rng.uniform(-2, 0.5)
    return ((K + K.T) / 2 * 10 ** rng.uniform(-2, 2)).astype(dtype), family


def weights(rng, y, dtype):
    """Sample weights, both classes among the present, and what they are."""
    kind = str(rng.choice(["1", "0", "1e-20", "1e20", "mixed"]))
    values = {"1": [1.0], "0": [0.0, 1.0], "1e-20": [1e-20, 1.0], "1e20": [1.0, 1e20]}.get(kind, [0, 1e-20, 1, 1e20])
    share = rng.uniform(0.1, 0.9)
    weight = np.where(rng.random(N) < share, values[0], rng.choice(values, N))
    for sign in (-1, 1):
        if not weight[y == sign].any():
            weight[rng.choice(np.flatnonzero(y == sign))] = values[-1]
    return weight.astype(dtype), kind


def trial(number, seed, x64, ways):
    """Random fit `number`: ways take turns, each in the dtype that its place and the seed have; all else is drawn."""
    rng = np.random.default_rng([seed, number])
    place = number % len(ways)
    name, kind, bias = ways[place]
    dtype = "float64" if x64 and (place + seed) % 2 else "float32"
    K, family = matrix(rng, dtype)
    y = rng.permutation(np.where(np.arange(N) < rng.integers(1, N), 1.0, -1.0))
    weight, weighted = weights(rng, y, dtype)
    scale, tol = float(np.abs(np.diagonal(K)).mean()), float(rng.choice(TOLS))
    how = {"path": "path", "folds": "folds"}.get(name, "fw smo")
    form = Form(how, kind, N, 2, "precomputed", "dense", False, dtype, dtype, bias, True)
    values = tuple(float(10 ** rng.uniform(-2, 4) / scale) for _ in range(1 if how == "fw smo" else 3))
    if kind == "slack":
        values = (float(rng.choice([0.0, 10 ** rng.uniform(-3, 0)])) * scale**0.5,)
    box = adversarial._box(rng, form, y, values[0], weight) if kind == "box" else None
    make = SOLVERS[name][2]
    solver = (lambda svm: None) if make is None else (lambda svm: make(svm, tol))
    words = f"{number}/{seed} {name}: {kind}, bias {bias}, {dtype}, {family}, weights {weighted}, tol {tol:g}"
    return name, Trial(words, form, K, None, y, weight, values, tol, 1.0, box, solver, None, family)


# ----------------------------------------------------------------------------------------------------------------------
# Estimators
# ----------------------------------------------------------------------------------------------------------------------

KERNELS = ("definite", "definite", "indefinite", "nearly", "along the equality", "asymmetric", "sigmoid", "callable")
NAMES = ("SVC", "SVC none", "SVC regularized", "SVC of three", "NuSVC", "SVR", "NuSVR", "OneClassSVM", "SVCPath")


def estimator_case(number, seed):
    """A fitted estimator or its refusal, and the problems that it says it has solved: (status, [(facts, said)])."""
    from jaxsvm import estimators

    rng = np.random.default_rng([seed, 1, number])
    name, kind = NAMES[number % len(NAMES)], KERNELS[number // len(NAMES) % len(KERNELS)]
    x = rng.normal(size=(MEMBERS, 2))
    K = x @ x.T + (1 if rng.random() < 0.5 else 0)
    if rng.random() < 0.5:
        K = np.exp(-rng.uniform(0.1, 3) * ((x[:, None] - x) ** 2).sum(axis=2))
    options = {"kernel": "precomputed", "tol": float(rng.choice([1e-3, 1e-5]))}
    X = K
    if kind == "indefinite":
        X = K = (K + np.diag(rng.normal(size=MEMBERS))) * 10 ** rng.uniform(-1, 1)
    elif kind == "nearly":
        K[0, 0] -= 10 ** rng.uniform(-3, 0)
    elif kind == "along the equality":
        X = K = -np.sqrt(((x[:, None] - x) ** 2).sum(axis=2))
    elif kind == "asymmetric":
        K[0, 1] += 10 ** rng.uniform(-3, 0)
    elif kind == "sigmoid":
        gamma, shift = float(rng.uniform(0.1, 2)), float(rng.uniform(-1, 1))
        X, K = x, np.tanh(gamma * x @ x.T + shift)
        options |= {"kernel": "sigmoid", "gamma": gamma, "coef0": shift}
    elif kind == "callable":
        sign, sharp = float(rng.choice([-1, 1])), float(rng.uniform(0.1, 1))
        K = sign * (x @ x.T) + sharp
        X, options["kernel"] = x, lambda a, b: sign * (a @ b.T) + sharp
    C, nu = float(10 ** rng.uniform(-2, 2)), float(rng.uniform(0.1, 0.4))
    y = (
        np.where(np.arange(MEMBERS) % 2 == 0, 1, -1)
        if rng.random() < 0.3
        else np.where(x[:, 0] > np.median(x[:, 0]), 1, -1)
    )
    labels = y if name != "SVC of three" else np.where(x[:, 1] > np.quantile(x[:, 1], 2 / 3), 2, y)
    target = x[:, 0] + 0.3 * rng.normal(size=MEMBERS)
    made = {
        "SVC": lambda: estimators.SVC(C=C, **options),
        "SVC none": lambda: estimators.SVC(C=C, bias="none", **options),
        "SVC regularized": lambda: estimators.SVC(C=C, bias="regularized", **options),
        "SVC of three": lambda: estimators.SVC(C=C, **options),
        "NuSVC": lambda: estimators.NuSVC(nu=nu, **options),
        "SVR": lambda: estimators.SVR(C=C, **options),
        "NuSVR": lambda: estimators.NuSVR(nu=nu, C=C, **options),
        "OneClassSVM": lambda: estimators.OneClassSVM(nu=nu, **options),
        "SVCPath": lambda: estimators.SVCPath(Cs=[0.1, 1.0, 10.0], cv=3, **options),
    }[name]()
    words = f"{number}/{seed} {name} on a kernel that is {kind}"
    given = {"SVR": target, "NuSVR": target, "OneClassSVM": None}.get(name, labels)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            made.fit(X, given)
        except ValueError as refusal:
            symmetric = np.abs(K - K.T).max() <= 1e-12 * np.abs(K).max()
            false = "" if not symmetric or "infeasible" in str(refusal) else f"refused: {refusal}"
            return words, "REFUSED", [], false
    warned = any("ConvergenceWarning" in type(warning.message).__mro__[0].__name__ for warning in told)
    false = "" if warned or made.fit_status_ == 0 else "fit_status_ is 1, and nothing warned"
    if kind == "asymmetric":
        false = false or "an asymmetric matrix was taken"
    return (
        words,
        "CONVERGED" if made.fit_status_ == 0 else "warned",
        machines(made, name, K, labels, target, C, nu),
        false,
    )


def machines(made, name, K, labels, target, C, nu):
    """What an estimator says of each machine's problem, and the problem, for the judge."""
    whole = np.zeros((made.dual_coef_.shape[0], MEMBERS))
    whole[:, made.support_] = made.dual_coef_
    gaps = [np.ravel(np.asarray(values)) for values in made.certificate_]
    ends = "CONVERGED" if made.fit_status_ == 0 else "STALLED"

    def told(facts, alpha, coef, bias, place=0):
        primal, dual, gap = (float(values[place]) for values in gaps)
        status = ends if len(gaps[0]) == 1 else "CONVERGED" if gap <= made.tol else "STALLED"
        return facts, Statement(status, made.tol, gap, primal, dual, alpha, coef, float(bias))

    def facts_of(K, y, costs, c, q, e=0.0, offset=0.0):
        ground = [judge.stored_ground(np.asarray(K, float))]
        return Facts(
            "box", ground, [], np.dtype(float), y.astype(LONG), costs.astype(LONG), offset, c, q.astype(LONG), e
        )

    ones = np.ones(MEMBERS)
    if name in ("SVR", "NuSVR"):
        epsilon = made.epsilon if name == "SVR" else made.epsilon_
        y, coef = np.repeat([1.0, -1.0], MEMBERS), whole[0]
        a = np.concatenate([np.maximum(coef, 0), np.maximum(-coef, 0)])
        q = np.concatenate([target, -target]) - epsilon
        facts = facts_of(np.tile(K, (2, 2)), y, np.full(2 * MEMBERS, C), y.astype(LONG), q)
        return [told(facts, a, y * a, made.intercept_[0])]
    if name == "OneClassSVM":
        facts = facts_of(K, ones, ones, ones.astype(LONG), 0 * ones, nu * MEMBERS)
        return [told(facts, whole[0], whole[0], made.intercept_[0])]
    if name == "SVC of three":  # pairs in scikit-learn's layout
        from jaxsvm.estimators.multiclass import decisions_of_pairs

        del decisions_of_pairs
        return pairs(made, K, labels, C, whole, told, facts_of)
    C = {"NuSVC": lambda: float(made.C_[0]), "SVCPath": lambda: made.C_}.get(name, lambda: C)()
    bias = getattr(made, "bias", "free")
    y = np.where(labels == made.classes_[1], 1.0, -1.0)
    c = y.astype(LONG) if bias == "free" else None
    facts = facts_of(K, y, C * ones, c, ones, offset=float(bias == "regularized"))
    return [told(facts, y * whole[0], whole[0], made.intercept_[0])]


def pairs(made, K, labels, C, whole, told, facts_of):
    """The machines of all pairs of classes: class i's coefficients against j stand in row j - 1, class j's in row i."""
    found, place = [], 0
    for i in range(3):
        for j in range(i + 1, 3):
            first, second = (labels == made.classes_[k] for k in (i, j))
            here = first | second
            coef = np.where(first, whole[j - 1], whole[i])[here]
            y = np.where(first, 1.0, -1.0)[here]
            facts = facts_of(K[np.ix_(here, here)], y, np.full(here.sum(), C), y.astype(LONG), np.ones(here.sum()))
            found.append(told(facts, y * coef, coef, made.intercept_[place], place))
            place += 1
    return found


def verdict(facts, said):
    """What is false; empty where nothing is. An optimum of 0, of a one-class machine, has no relative gap."""
    found = judge.judge(facts, said)
    if facts.kind == "box" and facts.c is not None and (facts.q == 0).all() and said.status == "CONVERGED":
        value = judge.value_of(facts, said, facts.accept[0])
        scale = 1e-6 * facts.e * float(np.abs(np.diagonal(facts.accept[0].K)).max())
        if abs(value.lower) <= scale:
            small = float(value.upper - value.lower) <= 1.1 * said.tol * scale
            return judge.indefinite(facts, said) or ("" if small else "a gap near an optimum of 0")
    return found.lie or found.understated


# ----------------------------------------------------------------------------------------------------------------------
# Counts
# ----------------------------------------------------------------------------------------------------------------------


def main():
    """Run, count and print; 1 where anything was false."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000, help="random fits")
    parser.add_argument("--estimators", type=int, default=300, help="estimators on random kernels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-x64", action="store_true", help="float32 alone, with JAX's default of 32 bits")
    parser.add_argument("--only", nargs="+", default=[], help="solvers, by the names that the table has")
    options = parser.parse_args()
    adversarial.prepare(not options.no_x64)
    import jax

    jax.config.update("jax_disable_most_optimizations", True)  # half of the time would be theirs
    started, rows, false = time.monotonic(), collections.Counter(), []
    ways = [way for way in WAYS if not options.only or way[0] in options.only]
    # One way after another, so that programs are used while they are there.
    for number in sorted(range(options.count), key=lambda number: (number % len(ways), number)):
        name, one = trial(number, options.seed, not options.no_x64, ways)
        if number < len(ways):
            print(f"{time.monotonic() - started:6.0f} s, {len(false)} false; {one.name}", file=sys.stderr, flush=True)
            adversarial.drop_programs()
        for outcome in adversarial.run(one):
            wrong = outcome.verdict.lie or outcome.verdict.understated
            rows[name, outcome.status] += 1
            rows["all fits", outcome.status] += 1
            rows["all fits", "false"] += bool(wrong)
            rows[name, "false"] += bool(wrong)
            if wrong:
                false.append(f"{one.name}\n    {outcome.status}: {wrong}")
    for number in range(options.estimators):
        words, status, told, wrong = estimator_case(number, options.seed)
        with np.errstate(all="ignore"):
            wrong = wrong or next((found for found in (verdict(*one) for one in told) if found), "")
        for key in (NAMES[number % len(NAMES)], "all estimators"):
            rows[key, status] += 1
            rows[key, "false"] += bool(wrong)
        if wrong:
            false.append(f"{words}\n    {status}: {wrong}")
    statuses = [status for status in dict.fromkeys(status for _, status in rows) if status != "false"] + ["false"]
    print(f"{'':28}" + "".join(f"{status:>13}" for status in statuses))
    for name in dict.fromkeys(name for name, _ in rows):
        print(f"{name:28}" + "".join(f"{rows[name, status]:13}" for status in statuses))
    print("\n".join(false))
    print(f"seed {options.seed}: {len(false)} false, {time.monotonic() - started:.0f} s")
    return int(bool(false))


if __name__ == "__main__":
    sys.exit(main())
