"""Descend on linear SVMs of which passes over the rows see sums only, with certificates from planes.

    min over w, b    F(w, b) = w'w / 2 + sum_i c_i max(0, z_i)

Each pass evaluates one trial point: the loss, a plane below it and its Hessian. There are two kinds of steps:

    Newton     A ramp of width mu makes the hinge smooth (`losses.py`). At the optimum of the smooth F one plane proves
               all but what the ramp loses, of order mu^2 while many rows lie on it; so mu shrinks as Newton converges.
    few rows   Once few rows lie on the ramp, rows near the margin are fetched, and the problem with their hinges, all
               others being linear, is solved on the host. Its dual variables make another plane, and if no other row
               crosses the margin the step ends at the optimum.

A trial is accepted if the slope along the step has halved, else the step is shortened to where the slope would be 0.

Planes prove: for weights lambda on the simplex, with `sum lambda_t e_t = 0` if the constant is not regularised,
`D = sum lambda_t s_t - |sum lambda_t pull_t|^2 / 2` is a lower bound of F. The best weights are those of a small
program. Rows keep no state: what a run needs to go on is one `Lane`.

Sources: Chapelle 2007 (Newton's method on the primal); Teo, Vishwanathan, Smola, Le 2010 (planes).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxsvm.designs.contract import Total
from jaxsvm.designs.losses import REACHES
from jaxsvm.designs.measured import MEASURED
from jaxsvm.numerics.hinge_program import hinge_minimum, simplex_maximum, solved
from jaxsvm.numerics.precision import rounding
from jaxsvm.results.fit import Certificate
from jaxsvm.results.judge import judged


@dataclasses.dataclass
class Lane:
    """The descent of one SVM, in arrays and numbers of NumPy."""

    penalty: np.ndarray  # curvature of the regulariser, `(p,)`: 1; for the constant 1, or 0 if it is not regularised
    constant: bool  # whether there is a constant
    square: bool  # whether the hinges are squared
    mu: float  # width of the ramp; of squared hinges, which have none, the unit of `reach`
    w: np.ndarray  # the last accepted point, the constant last, `(p,)`
    step: np.ndarray  # the step from there, `(p,)`
    slope: float = 0.0  # derivative of F along it, with a minus sign
    t: float = 0.0  # part of the step to try next
    tries: int = 0  # how many trials of this step were refused
    idle: int = 0  # passes since P or D last improved
    reach: float = 0.0  # distance to the margin within which rows are to be fetched at w; 0: none
    best: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))  # the point of the least value, `(p,)`
    P: float = np.inf  # its value, an upper bound of the optimum
    D: float = 0.0  # a lower bound of it
    s: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(1))  # constants of planes, `(k,)`; the first 0
    pull: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((1, 0)))  # slopes with a minus sign, `(k, p)`
    off: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(1))  # how much rounding may have raised them
    wide: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((1, 0)))  # and their slopes be off, `(k, p)`

    @staticmethod
    def at(w: np.ndarray, bias: str, square: bool, mu: float) -> "Lane":
        """Return a lane whose first trial is w, `(p,)`."""
        w = np.append(w[:-1], 0.0) if bias == "none" else w  # the start may be a fit with a constant
        penalty = np.ones(len(w))
        penalty[-1] = 0.0 if bias == "free" else 1.0
        return Lane(penalty, bias != "none", square, mu, w, 0 * w, best=w, pull=0 * w[None], wide=0 * w[None])

    @property
    def trial(self) -> np.ndarray:
        """Return the point to evaluate next, `(p,)`."""
        return self.w + self.t * self.step

    def evaluated(self, sums: Total, tol: float, wide: np.ndarray | None = None) -> None:
        """Take the `Sums` at the trial point into account (for the curvature, what solves with it); choose the next."""
        w, loss, before = self.trial, float(sums.loss), (self.P, self.D)
        value = 0.5 * float(self.penalty @ w**2) + loss
        if value < self.P:
            self.P, self.best = value, w
        pull = self.add_plane(float(sums.s), sums.pull, wide=wide)
        self.raise_bound()
        self.idle = 0 if before != (self.P, self.D) else self.idle + 1
        gradient = self.penalty * w - pull
        slope = float(gradient @ self.step)
        if self.t > 0 and slope > 0.5 * self.slope and self.tries < MEASURED.refused_trials:
            self.t *= self.slope / (self.slope + slope)
            self.tries += 1
            return
        short = 0 < self.t < MEASURED.short_step
        self.w = w
        self.go(-self._solved(sums.curvature, gradient), gradient)
        lost, left = loss - (sums.s - float(pull @ w)), max(self.slope / 2, 0.2 * tol * max(self.D, 0.0))
        self.reach = self._reach(sums.near, MEASURED.rows_fetched(len(w)), short)
        if short and self.slope / 2 > lost and not self.square:
            self.mu /= MEASURED.narrowing
        elif lost > left and not self.square:
            self.mu *= float(np.clip(np.sqrt(left / lost), MEASURED.narrowing, 1))

    def _solved(self, curvature: Total, gradient: np.ndarray) -> np.ndarray:
        if callable(curvature):
            return np.asarray(curvature(gradient))
        H = curvature + np.diag(self.penalty)
        if not self.constant:
            H[-1] = H[:, -1] = np.eye(len(H))[-1]
        return solved(H, gradient)

    def _reach(self, near: np.ndarray, most: int, short: bool) -> float:
        """Return the reach within which rows are to be fetched; 0: none.

        They are if few rows have curvature, or a short step showed that others get some, or all rows are few.
        """
        curved = near[0 if self.square else 1]  # rows with curvature
        fits = np.flatnonzero(near <= most)
        few = short or curved < MEASURED.rows_near * len(self.w) or near[-1] <= most
        return REACHES[fits[-1]] * self.mu if few and len(fits) and fits[-1] > 0 else 0.0

    def go(self, step: np.ndarray, gradient: np.ndarray) -> None:
        """Choose a step from w, `(p,)`, with the gradient there."""
        self.step, self.slope, self.t, self.tries = step, -float(gradient @ step), 1.0, 0

    def add_plane(self, s: float, pull: np.ndarray, off: float = 0.0, wide: np.ndarray | None = None) -> np.ndarray:
        """Add a plane, which rounding raised by `off` near the best point at most; return the slopes that count."""
        pull = np.asarray(pull) if self.constant else np.append(pull[:-1], 0.0)
        self.s, self.pull = np.append(self.s, s), np.append(self.pull, pull[None], axis=0)
        self.off, wide = np.append(self.off, off), np.zeros_like(pull) if wide is None else wide
        self.wide = np.append(self.wide, wide[None], axis=0)
        return pull

    def raise_bound(self) -> np.ndarray:
        """Raise D to the best bound of the planes, of which few stay; return the point that they have least, `(p,)`."""
        e = np.where(self.penalty[-1] > 0, 0.0, self.pull[:, -1])  # slopes in a free constant
        weights = self._weights(e)
        alone = (np.arange(len(e)) == len(e) - 1).astype(float)  # near the optimum the last plane proves most
        self.D, least = max(self.D, self._bound(weights, e), self._bound(alone, e)), weights @ self.pull
        if len(self.s) > MEASURED.planes:
            worth = weights.copy()
            worth[[0, 1, 2, -3, -2, -1]] = np.inf
            kept = np.sort(np.argsort(-worth, kind="stable")[: MEASURED.planes // 2])
            self.s, self.pull, self.off, self.wide = (p[kept] for p in (self.s, self.pull, self.off, self.wide))
        return least

    def _bound(self, weights: np.ndarray, e: np.ndarray) -> float:
        """Return the bound that planes of these weights prove, less its rounding; -inf if slopes e cannot cancel."""
        slope = float(weights @ e)
        if slope != 0:  # a little of the plane that falls most the other way
            other = e.argmin() if slope > 0 else e.argmax()
            if not slope * e[other] < 0:
                return -np.inf
            weights = weights + (np.arange(len(e)) == other) * (-slope / e[other])
            weights = weights / weights.sum()
        slopes, sizes = weights @ self.pull, weights @ np.abs(self.pull)
        size = weights @ np.abs(self.s) + self.penalty * np.abs(slopes) @ sizes
        size = size + np.abs(self.best[-1]) * (weights @ np.abs(e))
        rounded = weights @ self.off + np.finfo(float).eps * size
        return float(weights @ self.s - 0.5 * self.penalty @ (np.abs(slopes) + weights @ self.wide) ** 2 - rounded)

    def _weights(self, e: np.ndarray) -> np.ndarray:
        """Return the best weights of the planes whose slopes e cancel, `(k,)`."""
        both = e.min() < 0 < e.max()
        usable = np.ones(len(e), bool) if both else e == 0
        pull, weights = (self.pull * np.sqrt(self.penalty))[usable], np.zeros(len(e))
        weights[usable] = simplex_maximum(self.s[usable], pull @ pull.T, e if both else None)
        return weights

    def solve_near(self, rows: "Hinges", sums: Total) -> None:
        """Step to the optimum of the problem in which only these rows near the margin of w have hinges."""
        pull, constant, eps = sums.pull, rows.constant(rows.a, self.square), np.finfo(float).eps
        pull = pull if self.constant else np.append(pull[:-1], 0.0)
        linear, rest = pull - rows.a @ rows.X, float(sums.s) - constant
        off = eps * (abs(sums.s) + abs(constant) + 2 * np.abs(pull) @ np.abs(self.best))
        w, a = hinge_minimum(rows.X, rows.q, rows.c, linear, self.penalty, self.square)
        gradient = self.penalty * self.w - linear - rows.a @ rows.X
        self.add_plane(rest + rows.constant(a, self.square), linear + a @ rows.X, off)
        self.raise_bound()
        if gradient @ (w - self.w) < 0:
            self.go(w - self.w, gradient)
        self.reach = 0.0

    def certificate(self, n: int, C: float, sizes: np.ndarray) -> Certificate:
        """Return the certificate of `best`, with allowances for the rounding of scores and of sums of n terms.

        A hinge is off by what its z is, a squared one by z times that, and so are planes, whose loss is that of D at
        most. `sizes`, of `Run`, bound such sums as the roots of sums of squares do.
        """
        P, D = np.float64(self.P), np.float64(self.D)
        terms, each = rounding(n, np.float64), rounding(len(self.best), np.float64)
        unit = 2 * (terms + each) * (np.abs(np.append(self.best, 1.0)) @ sizes)
        loss = np.maximum(P - 0.5 * self.penalty @ self.best**2, 0)
        losses = np.stack([loss, np.minimum(loss, D)])
        off = unit * (np.sqrt(2 * losses * C) + C * unit if self.square else np.full(2, C * sizes[-2])) * (P > 0)
        P, D = P + off[0] + 4 * terms * P, np.maximum(D - off[1], 0)
        return judged(P, D, abs(P - D) if 1e-9 * D >= D - P else P - D, D, rounding=1e-9 * D)


@dataclasses.dataclass(frozen=True)
class Hinges:
    """Hinges of fetched rows, for one lane."""

    X: np.ndarray  # `sigma (x, 1)`, `(m, p)`
    q: np.ndarray  # where they begin, `(m,)`
    c: np.ndarray  # their factors, > 0, `(m,)`
    a: np.ndarray  # dual variables at the lane's point, `(m,)`

    def constant(self, a: np.ndarray, square: bool) -> float:
        """Return the constant of the plane of dual variables, `(m,)`."""
        return float(self.q @ a - (a @ (a / self.c) / 2 if square else 0))
