"""The statements of the safe-screening paper on random problems, beside exact solutions by NumPy; with x64 on.

`benchmarks/papers/safe_sample_screening.py` says of many problems what `theorems` finds on one.
"""

from itertools import product

import jax
import numpy as np
from oracle_hinge import box_solution
from references import disturbed, fit_of, published_balls, published_dome, published_intersection

import jaxsvm
from jaxsvm import screening
from jaxsvm.kernels import Precomputed

RULES = {"BT1": screening.ball_test_1, "BT2": screening.ball_test_2, "IT": screening.intersection_test}


def random_problem(seed, n=60):
    """A generator, labels, K, Q, `z_i` (linear) or None, C_min, C_ref, C of a random problem."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    x = rng.normal(size=(n, 4)) + rng.choice([0.2, 0.7, 2.0]) * y[:, None]
    K = np.exp(-rng.choice([0.1, 1.0, 10.0]) / 4 * ((x[:, None] - x) ** 2).sum(-1)) if seed % 2 else x @ x.T
    Q = np.outer(y, y) * K
    least = 1 / Q.sum(1).max()
    C_ref = least * 10 ** rng.uniform(0, 4)
    return rng, y, K, Q, None if seed % 2 else y[:, None] * x, least, C_ref, C_ref * rng.choice([1.02, 1.1, 1.5, 0.9])


def exact(Q, C):
    return box_solution(Q, np.ones(len(Q)), np.full(len(Q), C), accuracy=np.inf).a


def screened(K, y, a, Q, C_ref, C, w=None):
    """The three rules from a dual point, and a w of its own, by the library."""
    problem = jaxsvm.hinge_problem(jaxsvm.gram(Precomputed(), K), y, C, bias="none")
    fit = fit_of(y, a, Q, offset=0.0, dtype="float64", hinge=True, w=w)
    return {name: jax.tree.map(np.asarray, rule(problem, fit, C_ref)) for name, rule in RULES.items()}


def wrong_by(low, high, p):
    return int(((low > 1) & (p < 1 + 1e-9) | (high < 1) & (p > 1 - 1e-9)).sum())


def theorems(seed):
    """By how much each statement of the paper is off on one random problem."""
    rng, y, K, Q, Z, least, C_ref, C = random_problem(seed)
    a, b, rho, size = exact(Q, C_ref), exact(Q, C), C / C_ref, np.sqrt(Q.diagonal())
    p, p_new = Q @ a, Q @ b
    loss, loss_new = np.maximum(1 - p, 0).sum(), np.maximum(1 - p_new, 0).sum()
    row = {"T1": max(np.where(p_new > 1 + 1e-6, b, 0).max(), np.where(p_new < 1 - 1e-6, C - b, 0).max()) / C}
    v, cut = a + 0.1 * C * rng.normal(size=60), rng.random(60) < 0.5  # of Lemmas 2 to 5: a w, and a cut
    lost = np.maximum(1 - Q @ v, 0).sum()
    cuts = b @ p_new / 2 + C * loss_new - v @ Q @ v / 2 - C * lost, a @ p + C_ref * (loss - loss_new) - a @ p_new
    row["T6"] = max(*cuts, cut @ (1 - p_new) - loss_new) / (1 + C * loss_new + b @ p_new)
    found = screened(K, y, a, Q, C_ref, C)
    first, second, _ = published_balls(Q, a, C_ref, C)
    for number, name, (centre, square) in (("T5", "BT1", first), ("T9", "BT2", second)):
        row[number] = np.abs(found[name].lower - centre + np.sqrt(max(square, 0)) * size).max() / (1 + C * size.max())
    reach = size * np.sqrt((v + rho * a) @ Q @ (v + rho * a) / 4 - rho * (a @ p) + C * (lost - loss))
    pair = screened(K, y, a, Q, C_ref, C, v)["BT1"]
    row["T7"] = np.abs(pair.lower - (Q @ v + rho * p) / 2 + reach).max() / reach.max()
    best, weaker = found["IT"], [(one.lower, one.upper) for one in found.values()]
    row["T11"] = max(np.maximum(low - best.lower, best.upper - high).max() for low, high in weaker)
    sides = [((1 + rho) / 2 * p < 1).astype(float), (rng.random(60) < 0.5).astype(float)]
    two = [(rho * a - C * s, a + C * s, C * s.sum()) for s in sides]
    apart = [phi @ Q @ phi / 4 - centre @ Q @ centre / 4 + cut for phi, centre, cut in two]
    row["T12"] = apart[1] - apart[0]
    row["T13"] = np.abs(exact(Q, 0.99 * least) / least / 0.99 - 1).max() + (exact(Q, 1.01 * least).min() > least)
    features = second[0] if Z is None else Z @ (Z.T @ a + C * Z[sides[0] > 0].sum(0)) / 2
    row["T14"] = np.abs(features - second[0]).max() / (1 + C)
    dvi = (1 + rho) / 2 * p + abs(rho - 1) / 2 * size * np.sqrt(a @ p)
    row["T15"] = np.abs(found["BT1"].upper - dvi).max() / (1 + C)
    kept, inside = np.abs(p_new - 1) < 0.2, p_new < 0.8
    for name, d in (("T3", C * Q[:, inside].sum(1)), ("T3 printed", C * (y[:, None] * Q)[:, inside].sum(1))):
        c = np.where(inside, C, 0.0)
        if kept.any():
            c[kept] = box_solution(Q[np.ix_(kept, kept)], (1 - d)[kept], np.full(kept.sum(), C), accuracy=np.inf).a
        row[name] = np.sqrt(max((c - b) @ Q @ (c - b), 0) / (b @ p_new))
    row |= dict.fromkeys(("T8", "T8 printed", "T10", "T10 printed"), 0)
    for gap in (1e-1, 1e-2, 1e-3, 1e-4, 1e-6):  # inexact references
        c = disturbed(Q, a, np.full(60, C_ref), gap, rng.normal(size=60), dtype="float64", hinge=True)
        centre, square = published_balls(Q, c, C_ref, C)[0]
        row["T8 printed"] += wrong_by(centre - np.sqrt(square) * size, centre + np.sqrt(square) * size, p_new)
        row["T8"] += sum(wrong_by(one.lower, one.upper, p_new) for one in screened(K, y, c, Q, C_ref, C).values())
    sharp = np.outer(y, y) * K**8 if seed % 2 else Q
    c = exact(sharp, 1e3)
    if (sharp @ c).min() > 1 - 1e-9:  # no sample has a loss
        with np.errstate(all="ignore"):
            row["T10 printed"] = wrong_by(*published_intersection(sharp, c, 1e3, 1.1e3), sharp @ c)
        row["T10"] = wrong_by(*screened(np.outer(y, y) * sharp, y, c, sharp, 1e3, 1.1e3)["IT"][:2], sharp @ c)
    below = exact(Q, min(C, C_ref))
    for factor, name in product((1.02, 1.3, 5.0, 100.0), ("T16", "T16 printed")):
        above = exact(Q, factor * max(C, C_ref))
        low, high = published_dome(Q @ below, size, below @ Q @ below, above @ Q @ above, name != "T16")
        row[name] = row.get(name, 0) + int((low > p_new + 1e-6).sum() + (high < p_new - 1e-6).sum())
    return row
