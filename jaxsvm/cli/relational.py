"""The command `jaxsvm relational`: train an SVM over a join in a DuckDB file."""

from typing import Annotated, Literal

import jax

import jaxsvm
from jaxsvm.cli.app import Json, MaxSeconds, Positive, Tol, command, of_data, of_model, of_output, of_solver
from jaxsvm.cli.report import check_writable, finish, interruptible, progress_bar, save, show, totals
from jaxsvm.errors import require
from jaxsvm.relational.descent.rows import require_free

Texts = list[str] | None


@command("relational")
def fit_join(
    database: Annotated[str, of_data(help="A DuckDB file.", metavar="FILE")],
    fact: Annotated[str, of_data(help="Table that holds the label.")],
    label: Annotated[str, of_data(help="Column of the label in that table.")],
    table: Annotated[Texts, of_data(help="Another table or view; repeat for each.")] = None,
    key: Annotated[Texts, of_data(help="Columns that join; default: of equal names.", metavar="A.X=B.Y")] = None,
    optional: Annotated[Texts, of_data(help="A table whose rows may be absent (LEFT JOIN); repeat for each.")] = None,
    weight: Annotated[Texts, of_data(help="A column of weights; repeat for each.", metavar="TABLE.X")] = None,
    cyclic: Annotated[float, of_data(help="Most rows of a table of keys that breaks a cycle of keys.")] = 0,
    positive: Positive = None,
    missing: Annotated[Literal["refuse", "impute"], of_data(help="Treatment of missing values.")] = "refuse",
    scale: Annotated[Literal["none", "max", "standard"], of_data(help="Scaling of numeric columns.")] = "standard",
    lam: Annotated[float | None, of_model(help="Regulariser: mean loss + lam |w|^2.")] = None,
    C: Annotated[float | None, of_model("--C", help="Penalty instead of --lam: lam = 1 / (2 C N).")] = None,
    loss: Annotated[Literal["hinge", "squared_hinge"], of_model(help="Loss to minimise beside lam |w|^2.")] = "hinge",
    tol: Tol = 1e-3,
    max_steps: Annotated[int, of_solver(help="Cap on passes over the tables.")] = 200,
    max_seconds: MaxSeconds = None,
    sql: Annotated[str | None, of_output(help="File to write the scoring query to.", metavar="FILE")] = None,
    score: Annotated[str, of_output(help="Name of the column of scores in that query.")] = "score",
    as_json: Json = False,
) -> None:
    """Fit a linear SVM over the join of tables in a DuckDB file, without forming the join."""
    check_writable(sql, database, option="--sql")
    keys = _keys(key or [])
    names: list[str] = [*dict.fromkeys([fact, *(table or []), *(optional or []), *(a for two in keys for a in two)])]
    weights = {name: column for name, _, column in (text.partition(".") for text in weight or [])}
    require(len(names) > 1, "--table is missing: name at least one table that joins --fact, or a --key.")
    with jax.enable_x64(True), interruptible() as stop:
        join = jaxsvm.relational.from_database(
            database, names, (fact, label), keys=keys or None, missing=missing, positive=positive, weights=weights,
            optional=optional or (), cyclic=cyclic,
        )  # fmt: skip
        require(len(join.classes) == 2, f"--positive is missing: --label has {len(join.classes)} values, not two.")
        if sql is not None:
            require_free(join.schema, score)
        lam = 1e-3 if lam is None and C is None else lam
        with progress_bar("relational", max_steps) as bar:
            fitted = jaxsvm.relational.fit(
                join, lam, C=C, loss=loss, scale=scale, tol=tol, max_steps=max_steps, max_seconds=max_seconds,
                callback=bar and (lambda *now: bar(completed=now[0], note=f"F* in [{now[1]:.4g}, {now[2]:.4g}]")),
            )  # fmt: skip
        if sql is not None:
            save(sql, fitted.to_sql(score=score) + "\n")
        show(as_json, {
            "command": "relational", "database": database, "rows_of_the_join": float(join.size),
            "tables": {name: len(rows) for name, rows in zip(join.names, join.rows, strict=True)},
            "features": len(fitted.coef), "lam": fitted.lam, "loss": loss, "engine": fitted.engine,
            "status": fitted.status.name, **totals(fitted.certificate), "steps": fitted.steps,
            "seconds": fitted.seconds, "notes": join.notes, "sql": sql,
        })  # fmt: skip
        finish([fitted.status.name], stop.came)


def _keys(texts: list[str]) -> dict[tuple[str, str], dict[str, str]]:
    """Parse "table.column=table.column": the joined columns of each pair of tables."""
    keys: dict[tuple[str, str], dict[str, str]] = {}
    for text in texts:
        sides = [side.strip().partition(".") for side in text.split("=")]
        sound = len(sides) == 2 and all(table and column for table, _, column in sides)
        require(sound, f"--key has {text!r}: table.column=table.column is needed.")
        (a, _, x), (b, _, y) = sides
        keys.setdefault((a, b), {})[x] = y
    return keys
