"""Estimators on random kernels, and what each says of its machines' problems, for `benchmarks/certificates.py`."""

import warnings

import judge
import numpy as np
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
            return judge.indefinite(facts, said) or ("" if small else "a gap near an optimum of 0")
    return found.lie or found.understated
