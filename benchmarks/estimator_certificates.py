"""Estimators on random kernels, and what each says of its machines' problems, for `benchmarks/certificates.py`.

    python benchmarks/estimator_certificates.py --count 400 --seed 0

runs classifiers of 60 to 2,500 samples alone. There the judge is projected ascent in float64: CONVERGED is false where
a feasible dual point lies above the primal value that is said, or the gap of the returned numbers is above `tol`.
"""

import argparse
import collections
import functools
import pathlib
import sys
import time
import warnings

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import judge
from judge import LONG, Facts, Statement

MEMBERS = 24
"""Samples of an estimator's fit."""
KERNELS = ("definite", "definite", "indefinite", "nearly", "along the equality", "asymmetric", "sigmoid", "callable")
NAMES = ("SVC", "SVC none", "SVC regularized", "SVC of three", "NuSVC", "SVR", "NuSVR", "OneClassSVM", "SVCPath")


def estimator_case(number, seed):
    """A fitted estimator or its refusal: how it ended, what it says of its problems, and what is false at once."""
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
    given = {"SVR": target, "NuSVR": target, "OneClassSVM": None}.get(name, labels)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            made.fit(X, given)
        except ValueError as refusal:
            symmetric = np.abs(K - K.T).max() <= 1e-12 * np.abs(K).max()
            false = "" if not symmetric or "infeasible" in str(refusal) else f"refused: {refusal}"
            return "REFUSED", [], false
    warned = any("ConvergenceWarning" in type(warning.message).__mro__[0].__name__ for warning in told)
    false = "" if warned or made.fit_status_ == 0 else "fit_status_ is 1, and nothing warned"
    if kind == "asymmetric":
        false = false or "an asymmetric matrix was taken"
    status = "CONVERGED" if made.fit_status_ == 0 else "warned"
    return status, machines(made, name, K, labels, target, C, nu), false


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
            return judge.indefinite(facts) or ("" if small else "a gap near an optimum of 0")
    return found.lie or found.understated


SIZES = (60, 200, 600, 1100, 1500, 2200, 2500)
LARGE_KERNELS = ("rbf", "sigmoid", "sigmoid", "object", "callable", "hidden", "precomputed", "asymmetric")


def projected(a, y, C):
    """The nearest point with `0 <= a <= C` and `y.a = 0`: a bisection of the multiplier."""
    low, high = -np.abs(a).max() - C, np.abs(a).max() + C
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if y @ np.clip(a - middle * y, 0, C) > 0 else (low, middle)
    return np.clip(a - low * y, 0, C)


def ascended(Q, y, C, a, steps=60):
    """The largest dual value that projected ascent finds from some starts, the given point among them."""
    step, best, downward, values = 1 / np.abs(Q).sum(axis=1).max(), -np.inf, [], np.zeros(1)
    try:
        np.linalg.cholesky(Q + 1e-9 * np.eye(len(y)))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(Q)
        downward = [sign * C * np.sqrt(len(y)) * vectors[:, k] for k in range(2) for sign in (1, -1)]
    for start in (0, *downward):
        point = projected(a + start, y, C)
        for _ in range(steps):
            point = projected(point + step * (1 - Q @ point), y, C)
        best = max(best, point.sum() - point @ Q @ point / 2)
    return best, values[0]


def hyperbolic(gamma, shift, a, b):
    """Kernel values of a sigmoid, as a function of two sets."""
    return np.tanh(gamma * a @ b.T + shift)


def large_case(number, seed):
    """A classifier of many samples: how it ended, and what is false of each machine that is CONVERGED."""
    from jaxsvm import estimators, kernels

    rng = np.random.default_rng([seed, 2, number])
    n, kind = SIZES[number % len(SIZES)], LARGE_KERNELS[number // len(SIZES) % len(LARGE_KERNELS)]
    name, dtype = str(rng.choice(["SVC", "three", "SVCPath"])), rng.choice([np.float64, np.float32])
    x = rng.normal(size=(n, 5)).astype(dtype)
    gamma, shift, C = float(10 ** rng.uniform(-2, 0.5)), float(rng.uniform(-1, 1)), float(10 ** rng.uniform(-2, 1))
    wide = x.astype(float)
    tanh, distances = np.tanh(gamma * wide @ wide.T + shift), np.square(wide).sum(axis=1)
    rbf = np.exp(-gamma * (distances[:, None] + distances - 2 * wide @ wide.T))
    given, K, kernel = x, tanh, "sigmoid"
    if kind in ("rbf", "asymmetric", "hidden", "precomputed"):
        K, kernel = rbf, "rbf" if kind == "rbf" else "precomputed"
    if kind == "hidden":
        K = rbf - np.diag(np.where(np.arange(n) == 0, 10 ** rng.uniform(-3, 0), 0))
    elif kind == "precomputed":
        K = tanh if rng.random() < 0.5 else rbf
    elif kind == "asymmetric":
        K = rbf + np.triu(10 ** rng.uniform(-3, 0) * rng.normal(size=(n, n)), 1)
    elif kind == "object":
        kernel = kernels.Sigmoid(gamma, shift)
    elif kind == "callable":
        kernel = functools.partial(hyperbolic, gamma, shift)
    given, K = (K.astype(dtype), K.astype(dtype).astype(float)) if kernel == "precomputed" else (x, K)
    y = np.where(x[:, 0] + 0.5 * rng.normal(size=n) > 0, 1, -1)
    y = np.where(x[:, 1] > 0.7, 2, y) if name == "three" else y
    options = {"kernel": kernel, "gamma": gamma, "coef0": shift}
    made = estimators.SVCPath(Cs=[C, 3 * C], cv=2, **options) if name == "SVCPath" else estimators.SVC(C=C, **options)
    told = f"{number}: {name} {kind} n={n} {dtype.__name__} gamma={gamma:.3g} coef0={shift:.3g} C={C:.3g}"
    try:
        made.fit(given, y)
    except ValueError as refusal:
        return "REFUSED", told, "" if kind == "asymmetric" else f"refused: {refusal}"
    C, whole = getattr(made, "C_", C), np.zeros((made.dual_coef_.shape[0], n))
    whole[:, made.support_] = made.dual_coef_
    false, place, k = "", 0, len(made.classes_)
    for i in range(k):
        for j in range(i + 1, k):
            first, second = (y == made.classes_[c] for c in (i, j))
            here, primal, tol = first | second, float(made.certificate_.primal[place]), made.tol
            coef, signs = np.where(first, whole[j - 1], whole[i])[here], np.where(first, 1.0, -1.0)[here]
            signs = -signs if k == 2 else signs  # the second of two classes is the positive one
            if made._statuses[place].name == "CONVERGED":
                part = K[np.ix_(here, here)]
                a, f = signs * coef, part @ coef + made.intercept_[place]
                best, least = ascended(signs[:, None] * part * signs, signs, C, a)
                true = coef @ part @ coef / 2 + C * np.maximum(0, 1 - signs * f).sum()
                wrong = best > primal * (1 + 1e-6) or true / (a.sum() - coef @ part @ coef / 2) - 1 > 1.01 * tol
                wrong = wrong or kind == "asymmetric"
                false = f"best {best}, primal {primal}, true {true}, least {least:.2g}" if wrong else false
            place += 1
    return "/".join(sorted({status.name for status in made._statuses})), told, false


def main():
    """Run the large cases; return how many are false."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=np.inf, help="begin none after so many seconds")
    options = parser.parse_args()
    counts, lies, started = collections.Counter(), 0, time.monotonic()
    warnings.simplefilter("ignore")
    for number in range(options.count):
        if time.monotonic() - started > options.seconds:
            break
        status, told, false = large_case(number, options.seed)
        counts[status] += 1
        lies += bool(false)
        if false:
            print(f"FALSE {told}: {status}, {false}", flush=True)
    print(f"{sum(counts.values())} estimators, {dict(counts)}, {lies} false")
    return lies


if __name__ == "__main__":
    sys.exit(min(main(), 255))
