"""Use the rows of a join as a design matrix, for `jaxsvm.designs` and all other solvers; score them by a linear SVM.

    rows = relational.design(join)
    fit = jaxsvm.designs.fit(rows, C=1.0)                                 # passes over the tables
    gram = jaxsvm.gram(jaxsvm.kernels.Linear(), rows.x)                           # all rows in memory
    fit = jaxsvm.fit(jaxsvm.svm_problem(gram, rows.y, C, sample_weight=rows.weight), jaxsvm.Newton())

Designs are for joins whose rows can be counted one by one. A pass forms some at a time: memory holds row numbers only.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array  # jax depends on SciPy

from jaxsvm.designs.contract import Chunk
from jaxsvm.designs.places.arrays import OfChunks
from jaxsvm.errors import DataError, InputError, require, require_part
from jaxsvm.points.rows import CSR
from jaxsvm.relational.gradient.engine import Engine, engine_for
from jaxsvm.relational.schema.join import Join, Streamed, singles
from jaxsvm.relational.schema.tree import drawn
from jaxsvm.relational.tables.columns import DOUBLE, NUMBERS, TableLike, column, declared, numbers, opened
from jaxsvm.relational.tables.pushdown import Schema, double, in_memory, is_level, literal, number_of, quoted
from jaxsvm.runtime.arrays import checked, in_a_line, require_whole, transfers
from jaxsvm.runtime.files import write_whole

ENTRIES_OF_A_CHUNK = 1 << 23  # numbers of a join's rows that are formed at a time: 64 MiB
BIN = 1 / 256  # of scores: margins and labels that are counted by bins are blurred by one
MOST_ROWS = 1 << 27  # merged rows of a join for which vectors are formed


@dataclasses.dataclass(frozen=True, eq=False)
class Design(OfChunks):
    """Rows of a join, as a problem needs them: all, equal ones once, or drawn ones."""

    __repr__ = in_a_line

    join: Join
    place: list[np.ndarray]  # the row of each table, as the join keeps them, `(N,)`; `join.rows` maps to given ones
    y: np.ndarray  # signs, `(N,)`; numbers of several classes, or those to be predicted
    weight: np.ndarray  # the number (weight) of equal rows that each row stands for, `(N,)`: `sample_weight`
    names: list[str]  # of the coefficients
    classes: tuple[Any, ...] | None  # the labels; None of numbers

    @property
    def n(self) -> int:
        """Return the number of distinct rows of the join."""
        return len(self.y)

    @property
    def d(self) -> int:
        """Return the number of features."""
        return self.join.d

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows in chunks of one size; the last one is filled up with rows of weight 0."""
        size = min(self.n, max(ENTRIES_OF_A_CHUNK // max(self.join.entries, 1), 1))
        for first in range(0, self.n, size):
            index = np.minimum(np.arange(first, first + size), self.n - 1)
            weight = np.where(np.arange(first, first + size) < self.n, self.weight[index], 0.0)
            x: Any = self.join.features([place[index] for place in self.place])
            if not isinstance(x, np.ndarray):
                x = CSR(x.data, x.indices, x.indptr, self.d, x.nnz // size)
            y = self.y[index] > 0 if len(self.classes or ()) == 2 else self.y[index]
            yield Chunk(x, y.astype(float), weight, np.int64(first))

    @property
    def x(self) -> np.ndarray | csr_array:
        """Return the features of all rows, formed, `(N, d)`."""
        return self.join.features(self.place)


def _design(join: Join, place: list[np.ndarray], weight: np.ndarray) -> Design:
    labels = tuple(join.classes.tolist())
    y = join.tree.y if len(labels) == 2 else join.codes
    return Design(join, place, y[place[join.tree.label]], weight, join.feature_names, labels)


def rows_of(join: Any, most: float) -> Design | None:
    """Return the different rows of a join; None if there are more than `most`."""
    tree = join.tree.within(1, most) if join.tree.rows <= most else None
    if tree is None:
        return None
    live = np.flatnonzero(tree.weight[0])  # rows of an optional table may weigh nothing
    return _design(join, [tree.members[0][t][live] for t in range(len(join.names))], tree.weight[0][live])


@transfers
def design(join: Join, regression: bool = False) -> Design:
    """Return a join, or `fit.join`, which is scaled, as a design matrix; of `regression` labels are numbers.

    Raises:
        InputError: On a join of more than `MOST_ROWS` merged rows, too many for vectors with an entry for each.
    """
    require_part("join", join, "aggregate", "a `relational.Join` is needed")
    if (found := rows_of(join, MOST_ROWS)) is None:
        raise InputError(f"join has {float(join.size):.3g} rows, too many for vectors of them; take relational.fit.")
    label = found.place[join.tree.label]
    return dataclasses.replace(found, y=join.targets[label], classes=None) if regression else found


@transfers
def sample(join: Join, n: int, key: int) -> Design:
    """Draw n rows of the join, independent, each in proportion to its weight; `key` is the seed."""
    require_part("join", join, "aggregate", "a `relational.Join` is needed")
    require_whole("n", n, 1)
    require_whole("key", key, 0)
    return _design(join, drawn(join.tree, n, np.random.default_rng(key)), np.ones(n))


class Term(NamedTuple):
    """A feature in a score."""

    table: str
    name: str
    kind: str  # "number", or that of the values of a category
    coef: list[float]  # of a number one, unscaled, of a category one for each level; those of several classes in turn
    levels: list[str | None] | None = None  # of a category, the missing one too
    fill: float | None = None  # the number that replaces a missing one


@dataclasses.dataclass(frozen=True, eq=False)
class Scorer:
    """A decision function of rows of a join: in the database, as one query, and of joined rows in Python, alike.

    Of several classes each has a score against the rest, and the greatest one, the first of equal ones, decides. A
    level that training did not see adds nothing. A missing number counts as its mean if training imputed, else the
    score is NULL (NaN). Numbers count as doubles.
    """

    terms: list[Term]  # the features
    intercept: float | np.ndarray  # of several classes one for each, `(k,)`
    classes: np.ndarray  # the labels of negative and of positive scores, or several; none: a score is a number
    schema: Schema

    def to_sql(self, tables: dict[str, str] | None = None, score: str = "score", label: str | None = None) -> str:
        """Write the query of every row of the join with its score: `SELECT fact.*, score FROM ...`, standard SQL.

        `tables` has the SQL that stands for a table in FROM, if not what the join was made from. Positive scores are of
        `classes[1]`; several classes have `score_0`, `score_1`, ... `label` names one more column, of predicted labels.

        Raises:
            InputError: If the label's table has a column of such a name, in capital letters or not.
        """
        schema, constants = self.schema, np.ravel(self.intercept)
        names = [score] if len(constants) == 1 else [f"{score}_{k}" for k in range(len(constants))]
        for at, name in enumerate(names if label is None else [*names, label]):
            require_free(schema, name, names[:at])
        bodies = []
        for k, (name, constant) in enumerate(zip(names, constants, strict=True)):
            terms = [_term(f"{quoted(of.table)}.{quoted(of.name)}", of, self.coef_of(of)[k]) for of in self.terms]
            bodies.append("\n    + ".join([double(constant), *terms]) + f" AS {quoted(name)}")
        query = ",\n    ".join([f"SELECT {quoted(schema.label)}.*", *bodies]) + f"\nFROM {schema.joined(tables or {})}"
        if label is None:
            return query
        require(len(self.classes) > 0, "the model predicts numbers, by its score: leave label out.")
        rules = _rules([quoted(name) for name in names], self.classes.tolist())
        return f"SELECT scored.*,\n    CASE {rules} END AS {quoted(label)}\nFROM ({query}) AS scored"

    def decision_function(self, rows: TableLike) -> np.ndarray:
        """Return the scores of joined rows, `(m,)`, of several classes `(m, k)`: NaN without a number nor its mean.

        Rows are a table (pandas, polars, Arrow, dict of arrays), whose columns have their names in their tables, or are
        called `table.column` if two tables share a name that is no key.

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
            parts = [f"{_term(at, term, coef)} AS {at}_{k}" for k, coef in enumerate(self.coef_of(term))]
            terms.append((f"rows.{wanted}", term.kind, ", ".join(parts)))
        if not terms:
            raise InputError("the model has no features: every score is its intercept.")
        with in_memory({"given": values}) as database:
            for name, (where, kind, _) in zip(database.types("FROM given")[1], terms, strict=True):
                if declared(name).kind not in ("null", *ALIKE.get(kind, (kind,))):
                    told = f"column {where} holds {name}: {kind}s are needed"
                    raise InputError(f"{told}, as in training (values of different kinds are never equal).")
            found = database.ask(f"SELECT {', '.join(term for _, _, term in terms)} FROM given")
        scores = np.stack([numbers(part, "score") for part in found.values()], axis=1)
        scores = scores.reshape(len(scores), len(terms), -1).sum(axis=1)
        return (scores if np.ndim(self.intercept) else scores[:, 0]) + self.intercept

    def predict(self, rows: TableLike) -> np.ndarray:
        """Return the labels, or the numbers, of joined rows, `(m,)`; a row without a number is refused."""
        scores = self.decision_function(rows)
        unknown = np.isnan(scores).reshape(len(scores), -1).any(axis=1)
        if unknown.any():
            raise InputError(f"rows has {unknown.sum()} row(s) without a number, the first is row {unknown.argmax()}.")
        if not len(self.classes):
            return scores
        return self.classes[scores.argmax(axis=1) if np.ndim(scores) > 1 else (scores >= 0).astype(int)]

    def confusion(self, join: Join, engine: str | Engine = "merge") -> np.ndarray:
        """Count the rows of a join (their weight), which is not formed, by label and predicted label, `(k, k)`.

        Of two classes "merge" is exact, "grid" blurs scores by a bin, and "sketch" counts within some per cent. Of
        several each of the different rows is looked at, as those of `relational.design` are.
        """
        scores, known, found = self.scores_of(join), self.classes.tolist(), join.classes.tolist()
        if not set(found) <= set(known):
            raise InputError(f"join has the labels {found[:10]}, the model {known[:10]}: make it with these.")
        hub, out, several = join.tree.label, np.zeros((len(known), len(known))), len(known) > 2
        streamed: Any = join if isinstance(join, Streamed) else None
        require(not (several and streamed and streamed.large), "join is too large to be formed: take `against`.")
        if several or (streamed and not streamed.large):
            if streamed:
                rules = _rules([" + ".join(each) for each in zip(*scores, strict=True)], list(range(len(known))))
                by = f"{streamed.of_label(join.codes)} * {len(known)} + CASE {rules} END"
                pair, _, (weight,) = map(np.transpose, streamed.totals([], [()], by=by))
            else:
                weight = (rows := design(join)).weight
                total: Any = sum(part[place] for part, place in zip(scores, rows.place, strict=True))
                pair = join.codes[rows.place[hub]] * len(known) + total.argmax(axis=1)
            counts = np.bincount(pair.astype(int), weight, len(found) * len(known)).reshape(-1, len(known))
        else:
            parts = [f"-({part[0]})" if streamed else -part[:, 0] for part in scores]
            if engine == "grid" or streamed:
                y, z, weight, _ = join.histogram(parts, BIN)
                positive = np.array([weight[(y == sign) & (z <= 0)].sum() for sign in (-1, 1)])
            else:
                far = engine_for(join, engine)[0]((parts, parts), 0.0)
                positive = np.array([far.counts[sign][hub].sum() for sign in (1, 0)])
            rest = np.bincount(join.codes, join.counts()[hub]) - positive
            counts = np.stack([np.maximum(rest, 0), positive], axis=1)
        out[[known.index(c) for c in found]] = counts
        return out

    def score(self, join: Join, engine: str | Engine = "merge") -> float:
        """Return the share of the rows of a join (of their weight) whose label is predicted; of numbers R^2."""
        if len(self.classes):
            counts = self.confusion(join, engine)
            return float(np.trace(counts) / counts.sum())
        scores, t, through, hub = self.scores_of(join), join.targets, join.counts(), join.tree.label
        if isinstance(join, Streamed):  # the sum of parts is the error of a row
            values = [[f"({part[0]}{f' - {join.of_label(t)}' * (i == hub)})"] for i, part in enumerate(scores)]
            pairs = [((i, 0), (j, 0)) for j in range(len(values)) for i in range(j + 1)]
            sums = join.totals(values, pairs)[2][0]
            errors = sum(each * (1 + (i != j)) for each, (i, j) in zip(sums, pairs, strict=True))
        else:
            parts = [np.nan_to_num(part[:, 0]) - (t if i == hub else 0) for i, part in enumerate(scores)]
            each = [join.weighted(i, part).counts() for i, part in enumerate(parts)]
            errors = sum(float(many @ part) for counts in each for many, part in zip(counts, parts, strict=True))
        spread = through[join.tree.label] @ (t - through[join.tree.label] @ t / join.size) ** 2
        require(bool(spread > 0), "join has one value of the label: R^2 needs two.")
        return float(1 - errors / spread)

    def scores_of(self, join: Join) -> list[Any]:
        """Return what the kept rows of each table of a join add to their scores, `(n_i, k)`; of streamed ones SQL."""
        require_part("join", join, "blocks", "a `relational.Join` is needed")
        out = [np.zeros((len(rows), np.size(self.intercept))) for rows in join.rows]
        out[join.tree.label] = out[join.tree.label] + self.intercept
        texts = [[double(c * (i == join.tree.label)) for c in np.ravel(self.intercept)] for i in range(len(out))]
        for term in self.terms:
            i = join.names.index(term.table) if term.table in join.names else -1
            block, coef = join.unscaled[i], np.transpose(self.coef_of(term))
            kind = (dict.fromkeys(block.names, "number") | block.kinds).get(term.name) if i >= 0 else None
            if kind != term.kind and {kind, term.kind} != {"text", "uuid"}:
                raise InputError(f"join has no feature {term.table}.{term.name} that is a {term.kind}, as in training.")
            if isinstance(join, Streamed):
                terms = [_term(f"c{i}_{join.chosen[i].index(term.name)}", term, part) for part in self.coef_of(term)]
                texts[i] = [f"{known} + {new}" for known, new in zip(texts[i], terms, strict=True)]
            elif term.levels is None:
                p, fill = block.names.index(term.name), np.nan if term.fill is None else term.fill
                out[i] += np.where(block.absent[:, p], fill, block.X[:, p])[:, None] * coef
            else:
                known, none = dict(zip(term.levels, coef, strict=True)), 0 * coef[0]
                codes = [(name == term.name, level) for name, levels in block.categories.items() for level in levels]
                out[i] += np.array([known.get(c, none) if own else none for own, c in codes])[block.codes].sum(axis=1)
        if isinstance(join, Streamed):
            out, no = texts, double(np.nan)
            values = [[f"(CASE WHEN COALESCE({' + '.join(of)}, {no}) = {no} THEN 1e0 ELSE 0e0 END)"] for of in texts]
            many = join.totals(values, singles(values))[2][0] if join.plan.roles.missing == "impute" else ()
        else:
            many = [count @ np.isnan(part).any(axis=1) for count, part in zip(join.counts(), out, strict=True)]
        for name, missing in zip(join.names, many, strict=False):
            require(missing == 0, f"join has rows of {name} without a number, and training had no mean for it.")
        return out

    def coef_of(self, term: Term) -> list[list[float]]:
        """Return the coefficients of a term, those of each class apart."""
        return np.reshape(term.coef, (np.size(self.intercept), -1)).tolist()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what scores, in JSON: `relational.load` reads it where there is neither a database nor the join."""
        classes, intercept = self.classes.tolist(), np.asarray(self.intercept).tolist()
        if not all(isinstance(label, str | int | float) for label in classes):
            raise InputError(f"classes are {classes}, which JSON does not hold: make texts of the labels.")
        parts = {"format": FORMAT, "intercept": intercept, "classes": classes, "schema": self.schema._asdict()}
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
        intercept = np.array(given, float) if isinstance(given := found["intercept"], list) else float(given)
        require(len(classes) in (0, max(np.size(intercept), 2)), f"it has {len(classes)} classes")
        return Scorer(terms, intercept, np.array(classes, object if len(set(map(type, classes))) > 1 else None), schema)
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(f"{os.fspath(path)}: no model of a join: {error}") from None


def require_free(schema: Schema, score: str, more: Sequence[str] = ()) -> None:
    """Refuse a name of the scores that a column of the label's table has: a query of it would read that column."""
    if not (isinstance(score, str) and score):
        raise InputError(f"score is {score!r}: the name of a column is needed.")
    if score.lower() in map(str.lower, [*schema.named[schema.label], *more]):
        raise InputError(f"score is {score!r}, a column of {schema.label} as well: give the scores another name.")


def _term(value: str, term: Term, coef: list[float]) -> str:
    if term.levels is not None:
        cases = [f"WHEN {is_level(value, c)} THEN {double(v)}" for c, v in zip(term.levels, coef, strict=True)]
        return f"CASE {' '.join(cases)} ELSE 0 END"
    return f"{double(coef[0])} * {number_of(value, np.nan if term.fill is None else term.fill)}"


def _rules(scores: list[str], classes: list[Any]) -> str:
    """Write the rules of a CASE that finds the label by the scores: NULL if they are unknown."""
    labels = [literal(c if len(set(map(type, classes))) == 1 else str(c)) for c in classes]
    tests = [" AND ".join(f"{one} >= {two}" for two in scores if two != one) for one in scores]
    pairs = zip(tests, labels, strict=True) if len(scores) > 1 else [(f"{scores[0]} >= 0", labels[1])]
    unknown = " OR ".join(f"{score} IS NULL OR {score} = CAST('NaN' AS {DOUBLE})" for score in scores)
    return " ".join([f"WHEN {unknown} THEN NULL", *(f"WHEN {a} THEN {b}" for a, b in pairs), f"ELSE {labels[0]}"])


ALIKE = {"number": NUMBERS, "text": ("text", "uuid"), "uuid": ("text", "uuid")}
"""For kinds of features the kinds of values that are scored as theirs, if others than their own."""
