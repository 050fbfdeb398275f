"""Fit a linear SVM over a join, with an interval that contains the optimum.

    F(beta) = mean over the join of max(0, 1 - y beta.x) + lam |beta|^2,      lam = 1 / (2 C N)

or the same with the squared hinge, from sums of slacks instead of counts; its planes and its certificate have the same
form, and its Newton steps need no ramp.

There are two methods:

    bundle  the default: the descent of `jaxsvm.designs` (Newton steps on a ramp, planes, rows near the margin), with
            sums over the rows of a join that is small enough to be formed, or from counts of any engine. The hinge of
            a formed join with hundreds of features takes interior points.
    paper   the paper's: guard eps, counts from below, steps `1 / (lam sqrt(d t))` in the ball of radius
            `sqrt(d) / (2 lam)`, the iterate of the least estimate; constants that go together (Theorem 1 has others)

Every result has D and P, `D <= F* <= F(beta) <= P`, from the same sums, with no assumption of stability.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsvm.designs.descent import Lane
from jaxsvm.designs.measured import MEASURED as DESIGNS
from jaxsvm.errors import ConvergenceWarning, InputError, require_part, warn
from jaxsvm.loop.interruption import watching
from jaxsvm.relational.descent.steps import Counted, Descent, Formed, PaperDescent, formed_if_small, kind_for
from jaxsvm.relational.gradient.engine import engine_for
from jaxsvm.relational.gradient.far import Engine
from jaxsvm.relational.schema.join import Join, prepared
from jaxsvm.relational.tables.columns import (
    CATEGORIES,
    DOUBLE,
    TableLike,
    column,
    declared,
    numbers,
    opened,
    present,
    python_values,
)
from jaxsvm.relational.tables.pushdown import common_type, compared, in_memory, quoted
from jaxsvm.results.fit import Certificate, Status, StatusCode
from jaxsvm.results.judge import verdict
from jaxsvm.runtime.arrays import Number, require_one_of, require_positive, require_seconds, require_whole, transfers

if TYPE_CHECKING:
    import pyarrow as pa


@dataclasses.dataclass(frozen=True, eq=False)
class RelationalFit:
    """A linear SVM over a join, which scores in the database, as one query, and joined rows in Python, alike.

    A level of a category that training did not see adds nothing. A missing number counts as its mean if training
    imputed, else the score is NULL (NaN). Numbers count as doubles, as in training.

    Attributes:
        coef: Coefficients of the unscaled features, `(d,)`, in the order of `feature_names`.
        intercept: The constant.
        beta: Coefficients of the scaled features and of the constant, in the order of `join.feature_names`: the
            argument of F.
        certificate: Primal, dual and relative gap of F.
        status: How the fit ended.
        steps: Number of evaluations.
        engine: The engine, and why it was chosen.
        seconds: Duration of the fit.
        history: `(k, 3)`: D, P and the estimate of F after each step; a step with a line search takes several
            evaluations.
        join: The scaled join.
        descent: Its rows and planes: `init` of a fit at another lam goes on from them.
        lam: The strength of the regulariser.
        feature_names: Names of `coef`.
        loss: "hinge" or "squared_hinge".
    """

    coef: np.ndarray
    intercept: float
    beta: np.ndarray
    certificate: Certificate
    status: StatusCode
    steps: int
    engine: str
    seconds: float
    history: np.ndarray
    join: Join
    descent: Descent
    lam: float
    feature_names: list[str]
    loss: str = "hinge"

    def to_sql(self, tables: dict[str, str] | None = None, score: str = "score") -> str:
        """Write the query whose column `score` is the decision function of every row of the join.

        Args:
            tables: The SQL that stands for a table in FROM, if not what the join was made from, such as `main.sales` or
                `read_parquet('sales.parquet')`.
            score: The name of that column.

        Raises:
            InputError: If the label's table has a column of that name, in capital letters or not.

        Returns:
            `SELECT fact.*, score FROM ...`, standard SQL; positive scores are of `classes[1]`. If tables have equal
            rows, each joined row comes once per copy.
        """
        join, names = self.join, self.join.names
        require_free(join, score)
        terms = [_number(self.intercept), *(_term(*feature) for feature in self._features())]
        sources = {name: quoted(name) for name in names} | self.join.sources | (tables or {})
        hub = join.tree.label
        joined, clauses = {hub}, [f"{sources[names[hub]]} AS {quoted(names[hub])}"]
        while len(joined) < len(names):
            i, j = next((i, j) for i, j in join.tree.kid if i in joined and j not in joined)
            pair = (names[i], names[j])
            tests = [
                " = ".join(compared(f"{quoted(n)}.{quoted(owners[n])}", join.casts.get(key)) for n in pair)
                for key, owners in join.keys.items()
                if set(pair) <= set(owners)
            ]
            clauses.append(f"JOIN {sources[names[j]]} AS {quoted(names[j])} ON {' AND '.join(tests) or 'TRUE'}")
            joined.add(j)
        body = "\n    + ".join(terms)
        return f"SELECT {quoted(names[hub])}.*,\n    {body} AS {quoted(score)}\nFROM " + "\n".join(clauses)

    def decision_function(self, rows: TableLike) -> np.ndarray:
        """Return the scores of joined rows.

        Args:
            rows: A table (pandas, polars, Arrow, dict of arrays) of joined rows. Its columns have their names in their
                tables, or are called `table.column` if two tables share a name that is no key.

        Returns:
            `(k,)`; NaN where a number is missing that was never missing in training.

        Raises:
            InputError: On a feature that is absent, that has values of another kind than in training, or whose column
                could be another column of the joined tables.
        """
        given = opened("rows", rows)
        terms, whole, plain = [], defaultdict(dict), defaultdict(dict)
        equal = {column: key for key, owners in self.join.keys.items() for column in owners.items()}  # those of a key
        for table, names in zip(self.join.names, self.join.named, strict=True):
            for name in names:
                whole[f"{table}.{name}"][table, name] = f"{table}.{name}"
                plain[name].setdefault(equal.get((table, name), (table, name)), f"{table}.{name}")
        for table, name, coef, part in self._features():
            wanted = f"{table}.{name}" if f"{table}.{name}" in given.names else name
            if wanted not in given.names:
                raise InputError(f"rows has no column {name} or {table}.{name}: every feature is needed.")
            same = (plain[wanted] if wanted == name else {}) | whole[wanted]
            if len(same) > 1:
                which = " or ".join(same.values())
                raise InputError(f"rows has a column {wanted}, which could be {which}: call each by its whole name.")
            values = column("rows", given, wanted)
            if isinstance(part, float):
                known = numbers(values, f"rows.{wanted}")
                terms.append(coef[0] * np.where(np.isnan(known), part, known))
            else:
                terms.append(_level_scores(part, coef, present(values), f"{table}.{name}"))
        if not terms:
            raise InputError("the model has no features: every score is its intercept.")
        return sum(terms[1:], terms[0]) + self.intercept

    def predict(self, rows: TableLike) -> np.ndarray:
        """Return the labels of joined rows, `(k,)`.

        Raises:
            InputError: On rows that `decision_function` refuses, or whose score is NaN: a number is missing.
        """
        scores = self.decision_function(rows)
        unknown = np.isnan(scores)
        if unknown.any():
            raise InputError(f"rows has {unknown.sum()} row(s) without a number, the first is row {unknown.argmax()}.")
        return self.join.classes[(scores >= 0).astype(int)]

    def _features(self) -> Iterator[tuple[str, str, Any, Any]]:
        """Yield table, name, coefficients, and the fill of a number or the levels of a category, of each feature."""
        at = 0
        for table, block in zip(self.join.names, self.join.blocks, strict=True):
            parts = [(n, 1, float(fill)) for n, fill in zip(block.names, block.fill, strict=True) if n is not None]
            parts += [(name, len(levels), levels) for name, levels in block.categories.items()]
            for name, many, part in parts:
                yield table, name, self.coef[at : at + many], part
                at += many

    def __repr__(self) -> str:
        P, D, gap = (float(part) for part in self.certificate)
        interval = f"F* in [{D:.6g}, {P:.6g}], gap {gap:.1e}"
        return f"RelationalFit({self.status.name}, {interval}, {self.steps} evaluations, {self.engine})"


def require_free(join: Join, score: str) -> None:
    """Refuse a name of the scores that a column of the label's table has: a query of it would read that column."""
    if not (isinstance(score, str) and score):
        raise InputError(f"score is {score!r}: the name of a column is needed.")
    table = join.names[join.tree.label]
    if score.lower() in map(str.lower, join.named[join.tree.label]):
        raise InputError(f"score is {score!r}, a column of {table} as well: give the scores another name.")


def _term(table: str, name: str, coef: Any, part: Any) -> str:
    """Write the summand of a feature."""
    value = f"{quoted(table)}.{quoted(name)}"
    if not isinstance(part, float):
        cases = [f"WHEN {test} THEN {_number(c)}" for test, c in zip(_tests(value, part), coef, strict=True)]
        return f"CASE {' '.join(cases)} ELSE 0 END"
    value = compared(value, DOUBLE)
    if not np.isnan(part):
        value = f"COALESCE(NULLIF({value}, CAST('NaN' AS {DOUBLE})), {_number(part)})"
    return f"{_number(coef[0])} * {value}"


def _level_scores(levels: pa.Array, coef: np.ndarray, part: pa.Array, where: str) -> np.ndarray:
    """Return the coefficient of each row's level, `(k,)`; 0 for a level that training did not see."""
    import pyarrow.compute as pc

    kinds = [declared(str(array.type), f"{name}.v") for name, array in (("levels", levels), ("part", part))]
    if kinds[1].kind == "uuid":  # levels are its texts
        kinds[1] = kinds[1]._replace(kind="text")
    if kinds[0].kind == kinds[1].kind and kinds[0].kind in CATEGORIES:
        place = pc.call_function("index_in", [part.cast(levels.type)], pc.SetLookupOptions(levels))
        return np.append(coef, 0.0)[place.fill_null(len(coef)).to_numpy()]
    tables = {"levels": {"v": levels, "coef": coef}, "part": {"v": part, "row": np.arange(len(part))}}
    with in_memory(tables) as ask:
        cast = common_type(ask, {f"{where} in training": ("levels", kinds[0]), "rows": ("part", kinds[1])})
        one, two = (compared(kind.sql, cast) for kind in kinds)
        joined = f"part LEFT JOIN levels ON {one} IS NOT DISTINCT FROM {two}"
        found = ask(f"SELECT COALESCE(coef, 0) AS score FROM {joined} ORDER BY row")
    return numbers(found["score"], where)


def _tests(value: str, levels: pa.Array) -> list[str]:
    kind = declared(str(levels.type)).kind
    typed = compared(value, {"text": "VARCHAR", "float": DOUBLE}.get(kind))
    return [f"{value} IS NULL" if c is None else f"{typed} = {_literal(kind, c)}" for c in python_values(levels)]


def _literal(kind: str, level: Any) -> str:
    """Write a level of a category as SQL."""
    if kind == "boolean":
        return "TRUE" if level else "FALSE"
    if kind == "text":
        return "'" + level.replace("'", "''") + "'"
    if kind == "float":
        return _number(level)
    precise = "_NS" if len(str(level)) > len("2020-01-01 00:00:00.000000") else ""  # DuckDB's alone
    return f"{kind.upper()}{precise} '{level}'" if kind in ("date", "timestamp") else str(level)


def _number(value: Any) -> str:
    """Write a double as SQL; a literal without an exponent would be a decimal."""
    text = repr(float(value))
    return f"({text})" if "e" in text else f"({text}e0)"


METHODS = ("bundle", "paper")
LOSSES = ("hinge", "squared_hinge")


@transfers
def fit(
    join: Join, lam: float | None = None, eps: float = 0.1, engine: str | Engine = "auto", *, C: float | None = None,
    tol: float = 1e-3, max_steps: int = 200, scale: str = "none", intercept: bool = True, method: str = "bundle",
    loss: str = "hinge", init: RelationalFit | None = None, max_seconds: float | None = None,
    callback: Callable[[int, float, float], Any] | None = None,
) -> RelationalFit:  # fmt: skip
    """Train a linear SVM over a join, and warn (`ConvergenceWarning`) if it is not certified to `tol`.

    Args:
        join: A `Join`.
        lam: The strength of the regulariser in `mean hinge + lam |beta|^2`, > 0; `1 / (2 C N)`.
        eps: The accuracy of the sketch's counts, in (0, 1].
        engine: "auto" (chosen by cost; `fit.engine` says which), "formed", "rows", "merge", "grid" or "sketch".
        C: The penalty of `|beta|^2 / 2 + C sum hinge`, instead of lam.
        tol: The relative gap at which the fit ends.
        max_steps: Cap on evaluations.
        scale: Scaling of numbers: "none", "max" (the paper's) or "standard"; `coef` is for unscaled numbers.
        intercept: Whether there is a constant feature 1, regularised like the others.
        method: "bundle", or "paper", that of the paper; see the module.
        loss: "hinge", or "squared_hinge": `mean max(0, 1 - y beta.x)^2 + lam |beta|^2`, where C is that of
            `|beta|^2 / 2 + C sum hinge^2`.
        init: A fit of the same join, scale, engine and loss at another lam, whose planes are valid for this lam too.
        max_seconds: Start no further evaluation after so many seconds.
        callback: Called with the step, D and P.

    Raises:
        InputError: On arguments that cannot be used.
    """
    if (lam is None) == (C is None):
        raise InputError("lam and C: give one of the two (lam = 1 / (2 C N)).")
    for name, value in (("lam", lam), ("C", C), ("tol", tol), ("eps", eps)):
        if value is not None:
            require_positive(name, value)
    require_whole("max_steps", max_steps, 1)
    require_seconds(max_seconds)
    for name, value, choices in (("method", method, METHODS), ("loss", loss, LOSSES)):
        require_one_of(name, value, choices)
    if loss != "hinge" and method != "bundle":
        raise InputError(f"method is {method!r}, which is for the hinge: leave it out for loss={loss!r}.")
    if init is not None:
        require_part("init", init, "descent", "a fit of the same join is needed")
    if init is not None and init.loss != loss:
        raise InputError(f"init is a fit of the {init.loss}, whose planes are not those of the {loss}.")
    started = time.monotonic()
    scaled = prepared(join, scale, intercept)
    lam = float(lam if C is None else 1 / (2 * float(C) * float(join.size)))  # pyright: ignore
    if method == "paper" and any(np.abs(block.X).max(initial=0) > 1 for block in scaled.blocks):
        raise InputError(f"scale is {scale!r}: method='paper' presumes numbers of size 1 at most; take scale='max'.")
    if init is not None:
        _require_alike(init.join, scaled)
        scaled = init.join
    rows, why = _rows_for(scaled, engine, eps, method)
    kind: Any = kind_for(rows, loss != "hinge")
    if method != "bundle":
        kind = partial(PaperDescent, eps=eps)
    with watching() as stop:
        descent = descent_of(kind, scaled, rows, lam, loss == "squared_hinge")
        descent.tol, descent.max_steps, descent.stop, descent.callback = tol, max_steps, stop, callback
        descent.deadline = np.inf if max_seconds is None else started + max_seconds
        if init is not None:
            descent.go_on_from(init.descent)
        descent.run()
    lane = descent.lane
    if method != "paper" and descent.unit < lane.P:  # stopped early: at 0 every loss is 1
        lane.P, lane.best = descent.unit, np.zeros_like(lane.best)
    fitted = result_of(scaled, descent, lam, tol, why, started)
    warn_of_uncertified([fitted])
    return fitted


def _rows_for(join: Join, engine: Any, eps: float, method: str) -> tuple[Formed | Counted, str]:
    """Return what evaluates points of a scaled join, and the reason of the choice."""
    if isinstance(engine, Formed | Counted):  # of a fit before
        return engine, engine.name
    if method == "bundle" and isinstance(engine, str) and engine in ("auto", "rows", "formed"):
        rows = formed_if_small(join, wanted=engine != "auto")
        if rows is not None:
            return rows, f"formed: the join has {float(join.size):,.0f} rows, each kept with its features, exact"
    if isinstance(engine, str) and engine == "formed":
        raise InputError(f"engine is 'formed': {float(join.size):.3g} rows do not fit, or {method=}; take 'auto'.")
    counter, why = engine_for(join, engine, eps)
    return Counted(join, counter), why


def descent_of(kind: Any, join: Join, rows: Formed | Counted, lam: float, squared: bool) -> Any:
    """Return a descent that begins at 0."""
    lane = Lane.at(np.zeros(join.d + 1), "none", squared, 1.0 if squared else DESIGNS.first_ramp)
    squares = np.append(join.transposed(join.counts(), lambda X: X * X), 0.0) / float(join.size)
    terms = sum(len(block.X) for block in join.blocks) + (len(rows.y) if isinstance(rows, Formed) else 0)
    return kind(rows, lane, 1 / (2 * lam), sizes=np.sqrt(np.append(squares, [1.0])), terms=terms)


def _require_alike(known: Join, join: Join) -> None:
    """Refuse planes of another join, or of other features of this one: they prove nothing here."""

    def described(join: Join) -> list[Any]:
        parts = [part for block in join.blocks for part in (block.X, block.codes)]
        return [join.feature_names, join.classes, float(join.size), join.tree.y, *parts]

    if not all(np.array_equal(*pair) for pair in zip_longest(described(known), described(join), fillvalue=np.zeros(0))):
        raise InputError("init is a fit of another join, scale or intercept: give those of that fit, or leave it out.")


@transfers
def fit_path(
    join: Join, lams: Iterable[Number], eps: float = 0.1, engine: str | Engine = "auto", **options: Any
) -> list[RelationalFit]:
    """Fit at several lam; each fit starts from the planes of the one before, which are below the hinge for any lam.

    Args:
        join: A `Join`.
        lams: The values, > 0; they are fitted from the largest to the smallest.
        eps: The accuracy of the sketch's counts, in (0, 1].
        engine: As in `fit`.
        options: Other arguments of `fit`.

    Returns:
        The fits, in the order of `lams`.

    Raises:
        InputError: On arguments that cannot be used.
    """
    if not isinstance(lams, Iterable):
        raise InputError(f"lams is {lams!r}: several values are needed.")
    values, fits, before = [float(lam) for lam in lams], {}, None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for lam in sorted(set(values), reverse=True):
            rows: Any = engine if before is None else before.descent.rows
            before = fits[lam] = fit(join, lam, eps, rows, init=before, **options)
    warn_of_uncertified(list(fits.values()))
    return [fits[lam] for lam in values]


def result_of(join: Join, descent: Descent, lam: float, tol: float, why: str, started: float) -> RelationalFit:
    """Return the fit at the best point of a descent."""
    certificate, best = descent.certificate(), descent.lane.best[:-1]
    ended = Status.INTERRUPTED if descent.stopped else Status.MAX_STEPS if descent.going else Status.STALLED
    code = StatusCode(verdict(certificate, tol, finite=descent.finite, definite=True, otherwise=ended))
    coef, constant = [], 0.0
    for block, part in zip(join.blocks, join.split(best), strict=True):
        p = len(block.names)
        numbers = part[:p] / block.scale
        constant -= float(numbers @ block.mean)
        real = np.array([name is not None for name in block.names], bool)
        constant += float(numbers[~real].sum())
        coef += [numbers[real], part[p:]]
    names = [name for name in join.feature_names if name != "(intercept)"]
    return RelationalFit(
        np.concatenate(coef), constant, best, certificate, code, descent.taken, why,
        time.monotonic() - started, np.array(descent.history).reshape(-1, 3), join, descent, lam, names,
        "squared_hinge" if descent.lane.square else "hinge",
    )  # fmt: skip


def warn_of_uncertified(fits: list[RelationalFit]) -> None:
    """Warn once of the fits over joins that are not certified."""
    failed = [fitted for fitted in fits if fitted.status != Status.CONVERGED]
    if failed:
        gap, status = max(float(fitted.certificate.relative_gap) for fitted in failed), failed[0].status.name
        scale = "Scale the numbers (scale='standard')"
        easier = f"{scale}, take a larger lam (a smaller C), another engine or a larger tol"
        further = {
            "MAX_STEPS": f"{easier}; or more `max_steps`, `init=fit`, or `designs.fit` of `relational.design(join)`.",
            "STALLED": f"{easier}.",
            "INTERRUPTED": "Allow more time, or pass the fit as `init` to go on.",
            "NOT_FINITE": f"{scale}.",
        }[status]
        warn(
            f"{len(failed)} of {len(fits)} fits over a join ended as {status}, with a relative gap of up to {gap:.2g}. "
            f"{further}",
            ConvergenceWarning,
        )
