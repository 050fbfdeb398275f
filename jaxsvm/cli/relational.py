"""The command `jaxsvm relational`: an SVM over a join in a DuckDB file."""

from typing import Annotated, Any

import jax
import typer

import jaxsvm
from jaxsvm.cli.commands import _command
from jaxsvm.cli.options import Json, MaxSeconds, Tol
from jaxsvm.cli.report.progress import progress_bar
from jaxsvm.cli.report.text import finish, show
from jaxsvm.cli.system import Interrupts, check_writable, save
from jaxsvm.errors import InputError


def fit_join(
    database: Annotated[str, typer.Option("--database", metavar="FILE", help="A DuckDB file.", show_default=False)],
    fact: Annotated[str, typer.Option("--fact", help="The table with the label.", show_default=False)],
    label: Annotated[str, typer.Option("--label", help="The label's column in it.", show_default=False)],
    table: Annotated[
        list[str] | None, typer.Option("--table", help="Another table or view; once for each.", show_default=False)
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="A.X=B.Y", help="What joins; without any, equal names do.", show_default=False),
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option(
            "--feature", metavar="TABLE.COLUMN", help="A feature; without any, all others.", show_default=False
        ),
    ] = None,
    positive: Annotated[
        str | None, typer.Option("--positive", help="The label that is +1.", show_default=False)
    ] = None,
    missing: Annotated[
        str, typer.Option("--missing", metavar="refuse|impute|drop", help="Missing features.")
    ] = "refuse",
    lam: Annotated[
        float | None, typer.Option("--lam", help="The regulariser: mean loss + lam |w|^2.", show_default=False)
    ] = None,
    C: Annotated[float | None, typer.Option("--C", help="The penalty instead: lam = 1 / (2 C N).")] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="auto|rows|merge|grid|sketch", help="How to count.")
    ] = "auto",
    loss: Annotated[
        str, typer.Option("--loss", metavar="hinge|squared_hinge", help="What is minimised, beside lam |w|^2.")
    ] = "hinge",
    eps: Annotated[float, typer.Option("--eps", help="Accuracy of the sketch's counts.")] = 0.1,
    scale: Annotated[
        str, typer.Option("--scale", metavar="none|max|standard", help="What to do to numbers.")
    ] = "standard",
    tol: Tol = 1e-3,
    max_steps: Annotated[int, typer.Option("--max-steps", help="Cap on passes over the tables.")] = 200,
    max_seconds: MaxSeconds = None,
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="FILE", help="Where to write the scoring query.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit a linear SVM over the join of tables in a DuckDB file, without forming the join."""
    check_writable(sql, database)
    keys, features = _keys(key), None
    named = [fact, *(table or []), *(name for pair in keys or {} for name in pair)]
    names: list[str] = list(dict.fromkeys(named))
    if len(names) < 2:
        raise InputError("--table is missing: name at least one table that joins --fact, or a --key.")
    if feature:
        features = {}
        for text in feature:
            name, column = _column("--feature", text)
            features.setdefault(name, []).append(column)
    with jax.enable_x64(True), Interrupts() as interrupts:
        join = jaxsvm.relational.from_duckdb(
            database, names, (fact, label), keys=keys, features=features, missing=missing, positive=positive
        )
        lam = 1e-3 if lam is None and C is None else lam
        with progress_bar() as bar:
            task = bar.add_task("relational", total=max_steps, note="")

            def look(step: int, dual: float, primal: float) -> None:
                bar.update(task, completed=step, note=f"F* in [{dual:.4g}, {primal:.4g}]")

            fitted = jaxsvm.relational.fit(
                join, lam, eps, engine, C=C, loss=loss, scale=scale, tol=tol, max_steps=max_steps,
                max_seconds=max_seconds, callback=None if bar.disable else look,
            )  # fmt: skip
        interrupts.armed = False
    if sql is not None:
        query = fitted.to_sql() + "\n"

        def write(target: str) -> None:
            with open(target, "w", encoding="utf-8") as file:
                file.write(query)

        save(sql, write)
    primal, dual, gap = (float(part) for part in fitted.certificate)
    report: dict[str, Any] = {
        "command": "relational", "database": database, "rows_of_the_join": float(join.size),
        "tables": {name: len(rows) for name, rows in zip(join.names, join.rows, strict=True)},
        "features": len(fitted.coef), "lam": fitted.lam, "loss": loss, "engine": fitted.engine,
        "status": fitted.status.name,
        "primal": primal, "dual": dual, "relative_gap": gap, "steps": fitted.steps, "seconds": fitted.seconds,
        "notes": join.notes, "sql": sql,
    }  # fmt: skip
    show(as_json, report)
    finish([fitted.status], interrupts.seen)


fit_join.__name__ = "relational"  # what the command is called; the module of that name is used above
_command(fit_join)


def _column(option: str, text: str) -> tuple[str, str]:
    name, _, column = text.strip().partition(".")
    if not (name and column):
        raise InputError(f"{option} has {text!r}: table.column is needed.")
    return name, column


def _keys(texts: list[str] | None) -> dict[tuple[str, str], dict[str, str]] | None:
    keys: dict[tuple[str, str], dict[str, str]] = {}
    for text in texts or []:
        one, sign, two = text.partition("=")
        if not sign:
            raise InputError(f"--key has {text!r}: table.column=table.column is needed.")
        (a, x), (b, y) = _column("--key", one), _column("--key", two)
        keys.setdefault((a, b), {})[x] = y
    return keys or None
