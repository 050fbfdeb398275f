"""Fit a linear SVM over a join, with an interval that contains the optimum.

    F(beta) = mean over the join of max(0, 1 - y beta.x) + lam |beta|^2,      lam = 1 / (2 C N)

or the same with the squared hinge over a join that is small enough to be formed, whose Newton steps need no ramp.

    bundle    the default: the descent of `jaxsvm.designs` (Newton steps on a ramp, planes, rows near the margin), with
              sums over formed rows, or from counts; with many hundreds of features it begins by products with the rows
    paper     the paper's: guard eps, counts from below, steps `1 / (lam sqrt(d t))` in the ball of radius
              `sqrt(d) / (2 lam)`, the iterate of the least estimate (docs/papers/relational_gradient_descent.md)
    averaged  its Theorem 1: no guard, steps eight times smaller, the mean of all points

Every result has D and P, `D <= F* <= F(beta) <= P`, from the same sums, with no assumption of stability.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxsvm.designs.descent import Lane
from jaxsvm.errors import ConvergenceWarning, DataError, InputError, require, warn
from jaxsvm.loop.interruption import watching
from jaxsvm.relational.descent.steps import Counted, Descent, Formed, PaperDescent, formed_if_small
from jaxsvm.relational.gradient.engine import Engine, engine_for, scores
from jaxsvm.relational.schema.join import Join, prepared
from jaxsvm.relational.tables.columns import DOUBLE, NUMBERS, TableLike, column, declared, numbers, opened
from jaxsvm.relational.tables.pushdown import Schema, compared, in_memory, quoted
from jaxsvm.results.fit import Certificate, Status, StatusCode
from jaxsvm.results.judge import verdict
from jaxsvm.runtime.arrays import (
    Number,
    checked,
    require_one_of,
    require_positive,
    require_seconds,
    require_whole,
    transfers,
)
from jaxsvm.runtime.files import write_whole


class Term(NamedTuple):
    """A feature in a score."""

    table: str
    name: str
    kind: str  # "number", or that of the values of a category
    coef: list[float]  # of a number one, unscaled, of a category one for each level
    levels: list[str | None] | None = None  # of a category, the missing one too
    fill: float | None = None  # the number that replaces a missing one


@dataclasses.dataclass(frozen=True, eq=False)
class Scorer:
    """A decision function of rows of a join: in the database, as one query, and of joined rows in Python, alike.

    A level that training did not see adds nothing. A missing number counts as its mean if training imputed, else the
    score is NULL (NaN). Numbers count as doubles.
    """

    terms: list[Term]  # the features
    intercept: float
    classes: np.ndarray  # the labels of negative and of positive scores
    schema: Schema

    def to_sql(self, tables: dict[str, str] | None = None, score: str = "score") -> str:
        """Write the query whose column `score` is the decision function of every row of the join.

        Args:
            tables: The SQL that stands for a table in FROM, if not what the join was made from.
            score: The name of that column.

        Raises:
            InputError: If the label's table has a column of that name, in capital letters or not.

        Returns:
            `SELECT fact.*, score FROM ...`, standard SQL; positive scores are of `classes[1]`.
        """
        schema = self.schema
        require_free(schema, score)
        terms = [_number(self.intercept), *(_term(f"{quoted(of.table)}.{quoted(of.name)}", of) for of in self.terms)]
        sources = {name: quoted(name) for name in schema.named} | schema.sources | (tables or {})
        clauses = [f"{sources[schema.label]} AS {quoted(schema.label)}"]
        for at, new in enumerate(schema.order[1:], 1):
            tests = []
            for key, owners in schema.keys.items():
                if new in owners and (before := [name for name in schema.order[:at] if name in owners]):
                    ends = (f"{quoted(name)}.{quoted(owners[name])}" for name in (before[0], new))
                    tests.append(" = ".join(compared(end, schema.casts.get(key)) for end in ends))
            how = "LEFT JOIN" if new in schema.optional else "JOIN"
            clauses.append(f"{how} {sources[new]} AS {quoted(new)} ON {' AND '.join(tests) or 'TRUE'}")
        body = "\n    + ".join(terms)
        return f"SELECT {quoted(schema.label)}.*,\n    {body} AS {quoted(score)}\nFROM " + "\n".join(clauses)

    def decision_function(self, rows: TableLike) -> np.ndarray:
        """Return the scores of joined rows, `(k,)`: NaN where a number is missing that never was in training.

        Args:
            rows: A table (pandas, polars, Arrow, dict of arrays) of joined rows. Its columns have their names in their
                tables, or are called `table.column` if two tables share a name that is no key.

        Raises:
            InputError: On a feature that is absent, of another kind than in training, or whose column could be another.
        """
        given = opened("rows", rows)
        whole, plain = defaultdict(dict), defaultdict(dict)
        equal = {column: key for key, owners in self.schema.keys.items() for column in owners.items()
                 if column[0] not in self.schema.optional}  # those of a key  # fmt: skip
        for table, names in self.schema.named.items():
            for name in names:
                whole[f"{table}.{name}"][table, name] = f"{table}.{name}"
                plain[name].setdefault(equal.get((table, name), (table, name)), f"{table}.{name}")
        values, terms = {}, []
        for term in self.terms:
            table, name = term[:2]
            wanted = f"{table}.{name}" if f"{table}.{name}" in given.names else name
            if wanted not in given.names:
                raise InputError(f"rows has no column {name} or {table}.{name}: every feature is needed.")
            same = (plain[wanted] if wanted == name else {}) | whole[wanted]
            if len(same) > 1:
                which = " or ".join(same.values())
                raise InputError(f"rows has a column {wanted}, which could be {which}: call each by its whole name.")
            at = f"c{len(terms)}"
            values[at] = column("rows", given, wanted)
            terms.append((f"rows.{wanted}", term.kind, f"{_term(at, term)} AS {at}"))
        if not terms:
            raise InputError("the model has no features: every score is its intercept.")
        with in_memory({"given": values}) as database:
            for name, (where, kind, _) in zip(database.types("FROM given")[1], terms, strict=True):
                if declared(name).kind not in ("null", *ALIKE.get(kind, (kind,))):
                    raise InputError(
                        f"column {where} holds {name}: {kind}s are needed, as in training (values of different kinds "
                        "are never equal)."
                    )
            scores = database.ask(f"SELECT {', '.join(term for _, _, term in terms)} FROM given")
        return np.sum([numbers(part, "score") for part in scores.values()], axis=0) + self.intercept

    def predict(self, rows: TableLike) -> np.ndarray:
        """Return the labels of joined rows, `(k,)`.

        Raises:
            InputError: On rows that `decision_function` refuses, or whose score is NaN: a number is missing.
        """
        scores = self.decision_function(rows)
        unknown = np.isnan(scores)
        if unknown.any():
            raise InputError(f"rows has {unknown.sum()} row(s) without a number, the first is row {unknown.argmax()}.")
        return self.classes[(scores >= 0).astype(int)]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what scores, in JSON: `relational.load` reads it where there is neither a database nor the join.

        Raises:
            InputError: If labels are neither texts, numbers nor booleans.
            OSError: If the file cannot be written.
        """
        classes = self.classes.tolist()
        if not all(isinstance(label, str | int | float) for label in classes):
            raise InputError(f"classes are {classes}, which JSON does not hold: make texts of the labels.")
        parts = {"format": FORMAT, "intercept": self.intercept, "classes": classes, "schema": self.schema._asdict()}
        text = json.dumps(parts | {"terms": [term._asdict() for term in self.terms]}, indent=1)
        write_whole(lambda file: file.write(text.encode()), path)


FORMAT = "jaxsvm-relational-1"


@checked
def load(path: str | os.PathLike[str]) -> Scorer:
    """Read what `RelationalFit.save` wrote; a query of `to_sql` is to be trusted as much as the file is.

    Raises:
        DataError: If it cannot be read, or is no such file.
    """
    try:
        with open(path, "rb") as file:
            found = json.load(file)
        require(found.pop("format") == FORMAT, f"its format is not {FORMAT}")
        terms, schema, classes = [Term(**term) for term in found["terms"]], Schema(**found["schema"]), found["classes"]
        labels = np.array(classes, object if type(classes[0]) is not type(classes[1]) else None)
        return Scorer(terms, float(found["intercept"]), labels, schema)
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(f"{os.fspath(path)}: no model of a join: {error}") from None


@dataclasses.dataclass(frozen=True, eq=False)
class RelationalFit(Scorer):
    """A linear SVM over a join, which scores as `Scorer` does."""

    coef: np.ndarray  # coefficients of the unscaled features, `(d,)`, in the order of `feature_names`
    beta: np.ndarray  # those of the scaled features and the constant, in the order of `join.feature_names`
    certificate: Certificate  # primal, dual and relative gap of F
    status: StatusCode  # how the fit ended
    steps: int  # number of evaluations
    engine: str  # the engine, and why it was chosen
    seconds: float  # duration of the fit
    history: np.ndarray  # `(k, 3)`: D, P and the estimate of F after each step, of one or more evaluations
    join: Join  # the scaled join
    descent: Descent  # its rows and planes
    lam: float  # the strength of the regulariser
    feature_names: list[str]  # names of `coef`
    loss: str = "hinge"  # or "squared_hinge"

    def margins(self, at: ArrayLike) -> np.ndarray:
        """Return the share of the joined rows whose margin, `y f(x)`, is at most each threshold `at`, `(k,)`.

        Its differences are a histogram of the whole join. Each takes a count; those on a grid are blurred by a bin.
        """
        counter, label = engine_for(self.join)[0], self.join.tree.label
        far = [counter(scores(self.join, self.beta), float(tau)).counts for tau in np.ravel(at)]
        return np.array([sum(part[label].sum() for part in parts) for parts in far]) / float(self.join.size)

    def __repr__(self) -> str:
        P, D, gap = (float(part) for part in self.certificate)
        interval = f"F* in [{D:.6g}, {P:.6g}], gap {gap:.1e}"
        return f"RelationalFit({self.status.name}, {interval}, {self.steps} evaluations, {self.engine})"


def require_free(schema: Schema, score: str) -> None:
    """Refuse a name of the scores that a column of the label's table has: a query of it would read that column."""
    if not (isinstance(score, str) and score):
        raise InputError(f"score is {score!r}: the name of a column is needed.")
    if score.lower() in map(str.lower, schema.named[schema.label]):
        raise InputError(f"score is {score!r}, a column of {schema.label} as well: give the scores another name.")


def _term(value: str, term: Term) -> str:
    if term.levels is not None:
        texts = [level if level is None else level.replace("'", "''") for level in term.levels]
        tests = [f"{value} IS NULL" if c is None else f"CAST({value} AS VARCHAR) = '{c}'" for c in texts]
        cases = [f"WHEN {test} THEN {_number(c)}" for test, c in zip(tests, term.coef, strict=True)]
        return f"CASE {' '.join(cases)} ELSE 0 END"
    value = compared(value, DOUBLE)
    if term.fill is not None:
        value = f"COALESCE(NULLIF({value}, CAST('NaN' AS {DOUBLE})), {_number(term.fill)})"
    return f"{_number(term.coef[0])} * {value}"


ALIKE = {"number": NUMBERS, "text": ("text", "uuid"), "uuid": ("text", "uuid")}
"""For kinds of features the kinds of values that are scored as theirs, if others than their own."""


def _number(value: Any) -> str:
    """Write a double as SQL; a literal without an exponent would be a decimal."""
    text = repr(float(value))
    return f"({text})" if "e" in text else f"({text}e0)"


@transfers
def fit(
    join: Join, lam: float | None = None, eps: float = 0.1, engine: str | Engine = "auto", *, C: float | None = None,
    tol: float = 1e-3, max_steps: int = 200, scale: str = "none", intercept: bool = True, method: str = "bundle",
    loss: str = "hinge", max_seconds: float | None = None, callback: Callable[[int, float, float], Any] | None = None,
    delta: float | None = None, alpha: float = 1.0, class_weight: Mapping[Any, float] | str | None = None,
) -> RelationalFit:  # fmt: skip
    """Train a linear SVM over a join, and warn (`ConvergenceWarning`) if it is not certified to `tol`.

    Args:
        join: A `Join`.
        lam: The strength of the regulariser in `mean hinge + lam |beta|^2`, > 0; `1 / (2 C N)`.
        eps: The accuracy of the sketch's counts, in (0, 1].
        engine: "auto" (chosen by cost; `fit.engine` says which), "formed", "merge", "grid" or "sketch".
        C: The penalty of `|beta|^2 / 2 + C sum hinge`, instead of lam.
        tol: The relative gap at which the fit ends.
        max_steps: Cap on evaluations.
        scale: Scaling of numbers: "none", "max" (the paper's) or "standard"; `coef` is for unscaled numbers.
        intercept: Whether there is a constant feature 1, regularised like the others.
        method: "bundle", "paper" or "averaged"; see the module.
        loss: "hinge", or of a join that can be formed "squared_hinge": `mean max(0, 1 - y beta.x)^2 + lam |beta|^2`,
            where C is that of `|beta|^2 / 2 + C sum hinge^2`.
        max_seconds: Start no further evaluation after so many seconds.
        callback: Called with the step, D and P.
        delta: Of the paper's method: eps is `min(delta / 8, alpha)`, and the end is after the steps of Theorem 2.
        alpha: The perturbation that the join withstands, in (0, 1]: `stability` computes it.
        class_weight: Factors of the losses by label, above 0, or "balanced": the same total for both.

    Raises:
        InputError: On arguments that cannot be used.
    """
    if (lam is None) == (C is None):
        raise InputError("lam and C: give one of the two (lam = 1 / (2 C N)).")
    for name, value in (("lam", lam), ("C", C), ("tol", tol), ("eps", eps), ("delta", delta), ("alpha", alpha)):
        if value is not None:
            require_positive(name, value)
    require_whole("max_steps", max_steps, 1)
    require_seconds(max_seconds)
    require_one_of("method", method, ("bundle", "paper", "averaged"))
    require_one_of("loss", loss, ("hinge", "squared_hinge"))
    if loss != "hinge" and method != "bundle":
        raise InputError(f"method is {method!r}, which is for the hinge: leave it out for loss={loss!r}.")
    if delta is not None and (delta > 1 or method != "paper"):
        raise InputError(f"delta is {delta} and method {method!r}: at most 1, and 'paper', are needed.")
    started, eps = time.monotonic(), eps if delta is None else min(delta / 8, alpha)
    scaled = prepared(join, scale, intercept, class_weight)
    lam = float(lam if C is None else 1 / (2 * float(C) * float(scaled.size)))  # pyright: ignore
    if method != "bundle" and any(np.abs(block.X).max(initial=0) > 1 for block in scaled.blocks):
        raise InputError(f"scale is {scale!r}: {method=} presumes numbers of size 1 at most; take scale='max'.")
    rows, why = _rows_for(scaled, "formed" if loss != "hinge" and engine == "auto" else engine, eps, method)
    if loss != "hinge" and not isinstance(rows, Formed):
        raise InputError(f"engine is {engine!r}, which counts rows: loss={loss!r} takes the rows themselves, 'formed'.")
    mean = method == "averaged"
    paper: Any = partial(PaperDescent, eps=0.0 if mean else eps, delta=delta or 0.0, mean=mean)
    with watching() as stop:
        squares = np.append(scaled.transposed(scaled.counts(), lambda X: X * X) / float(scaled.size), [0.0, 1.0])
        lane = Lane.at(np.zeros(scaled.d + 1), "none", loss == "squared_hinge")
        descent = (Descent if method == "bundle" else paper)(rows, lane, 1 / (2 * lam), sizes=np.sqrt(squares))
        descent.terms = sum(map(len, scaled.rows)) + (len(rows.y) if isinstance(rows, Formed) else 0)
        descent.tol, descent.max_steps, descent.stop, descent.callback = tol, max_steps, stop, callback
        descent.deadline = np.inf if max_seconds is None else started + max_seconds
        descent.run()
    if method == "bundle" and descent.unit < lane.P:  # stopped early: at 0 every loss is 1
        lane.P, lane.best = descent.unit, np.zeros_like(lane.best)
    fitted = result_of(scaled, descent, lam, tol, why, started)
    warn_of_uncertified([fitted])
    return fitted


def _rows_for(join: Join, engine: Any, eps: float, method: str) -> tuple[Formed | Counted, str]:
    """Return what evaluates points of a scaled join, and the reason of the choice."""
    if method == "bundle" and isinstance(engine, str) and engine in ("auto", "formed"):
        rows = formed_if_small(join, wanted=engine == "formed")
        if rows is not None:
            return rows, f"formed: the join has {float(join.size):,.0f} rows, each kept with its features, exact"
    if isinstance(engine, str) and engine == "formed":
        many = f"{float(join.size):.3g}"
        raise InputError(f"engine is 'formed': {many} rows do not fit, or {method=}; take 'auto' with the hinge.")
    counter, why = engine_for(join, engine, eps)
    return Counted(join, counter), why


@transfers
def fit_path(
    join: Join, lams: Iterable[Number], eps: float = 0.1, engine: str | Engine = "auto", **options: Any
) -> list[RelationalFit]:
    """Fit at several lam, in their order, and warn once; after Ctrl-C at no further one: the fits so far are returned.

    All other arguments are those of `fit`: `callback` is called on the way of each.

    Raises:
        InputError: On arguments that cannot be used.
    """
    if not isinstance(lams, Iterable):
        raise InputError(f"lams is {lams!r}: several values are needed.")
    with watching() as stop, warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        given = takewhile(lambda _: not stop.seen, lams)
        fits = [fit(join, float(lam), eps, engine, **options) for lam in given]
    warn_of_uncertified(fits)
    return fits


def result_of(join: Join, descent: Descent, lam: float, tol: float, why: str, started: float) -> RelationalFit:
    """Return the fit at the best point of a descent."""
    certificate, best = descent.certificate(), descent.lane.best[:-1]
    ended = Status.INTERRUPTED if descent.stopped else Status.MAX_STEPS if descent.going else Status.STALLED
    code = StatusCode(verdict(certificate, tol, finite=descent.finite, definite=True, otherwise=ended))
    terms, constant = [], 0.0
    for table, block, part in zip(join.names, join.blocks, join.split(best), strict=True):
        at = len(block.names)
        numbers = part[:at] / block.scale
        constant -= float(numbers @ block.mean)
        for name, value, fill in zip(block.names, numbers.tolist(), block.fill.tolist(), strict=True):
            if name is None:
                constant += value
            else:
                terms.append(Term(table, name, "number", [value], None, None if np.isnan(fill) else fill))
        for name, levels in block.categories.items():
            terms.append(Term(table, name, block.kinds[name], part[at : at + len(levels)].tolist(), levels))
            at += len(levels)
    coef = np.array([c for term in terms for c in term.coef])
    names = [name for name in join.feature_names if name != "(intercept)"]
    return RelationalFit(
        terms, constant, join.classes, join.schema, coef, best, certificate, code, descent.taken, why,
        time.monotonic() - started, np.array(descent.history).reshape(-1, 3), join, descent, lam, names,
        "squared_hinge" if descent.lane.square else "hinge",
    )  # fmt: skip


def warn_of_uncertified(fits: list[RelationalFit]) -> None:
    """Warn once of the fits over joins that are not certified."""
    failed = [fitted for fitted in fits if fitted.status != Status.CONVERGED]
    if failed:
        gap = max(float(fitted.certificate.relative_gap) for fitted in failed)
        warn(
            f"{len(failed)} of {len(fits)} fits over a join ended as {failed[0].status.name}, with a relative gap of "
            f"up to {gap:.2g}. Scale the numbers (scale='standard'), take a larger lam (a smaller C), another engine, "
            "a larger tol, more `max_steps`, more time, or `designs.fit` of `relational.design(join)`.",
            ConvergenceWarning,
        )


class Stability(NamedTuple):
    """How stable a join is (the paper's Definition 12), and what its Theorem 2 takes for that; see `stability`."""

    alpha: float  # how far features may be perturbed, by factors of `1 +- alpha`
    gamma: float  # what is within `1 + 2 delta` of the optimum of one perturbation is within `1 + gamma` of another's
    eps: float  # the accuracy of counts, `min(delta / 8, alpha)`
    steps: float  # the steps after which `fit(method="paper", eps=eps)` is within `1 + gamma` of the optimum


@transfers
def stability(join: Join, lam: float, delta: float = 0.1, *, scale: str = "max", intercept: bool = True) -> Stability:
    """Compute alpha and gamma such that a join is (alpha, delta, gamma)-stable, from one fit and the means of |x|.

    A perturbation moves F by at most `alpha mean|x|.|beta|`, so every join is stable for some alpha. The minima of two
    are within `1 + delta / 8`, too, which the proof of Theorem 2 needs. The arguments are those of `fit`.

    Raises:
        InputError: On a delta that is not in (0, 1].
    """
    require_positive("delta", delta)
    if delta > 1:
        raise InputError(f"delta is {delta}: at most 1 is needed.")
    scaled = prepared(join, scale, intercept)
    fitted = fit(scaled, lam, intercept=False)
    P, D, _ = map(float, fitted.certificate)
    A = scaled.transposed(scaled.counts(), abs) / float(scaled.size)
    a, drift, alpha, most, r, least = float(np.linalg.norm(A)), float(A @ np.abs(fitted.beta)), 0.0, P, 1.0, D
    for _ in range(50):  # to a fixed point
        most = P + alpha * drift  # of all minima
        r = min(np.sqrt(most / lam), (1 + alpha) * a / (2 * lam))  # and of the norms of their points
        least = max(D - alpha * a * r, 1e-100)
        alpha = min(float(delta * least / (16 * a * r)), 1.0)
    near = np.sqrt((1 + 2 * delta) * most / lam)
    gamma = 2 * delta + 2 * alpha * a * ((1 + 2 * delta) * r + near) / least
    steps = (256 * scaled.d**1.5 / (lam * delta * least)) ** 2
    return Stability(alpha, float(gamma), min(delta / 8, alpha), steps)
