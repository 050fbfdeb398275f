"""The command `jaxsvm predict`: labels and decision values of new points."""

import csv
import io
import sys
from itertools import combinations
from typing import Annotated, Any, Literal

import jax
import numpy as np
import typer

from jaxsvm.cli.app import command
from jaxsvm.cli.job import score_of
from jaxsvm.cli.options import Data, Drop, IndexBase, Json, Label, Text, listed, of_data, of_output
from jaxsvm.cli.report import check_writable, printable, save, show, write
from jaxsvm.cli.source import is_libsvm, libsvm_model, new_points
from jaxsvm.errors import require
from jaxsvm.models.model import Model, decision_function, labels_of, load_model


@command("predict")
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model that fit or path wrote, or LIBSVM's.")],
    data: Data,
    label: Label = None,
    unlabelled: Annotated[bool, of_data("--unlabelled", help="DATA has no labels: all columns are features.")] = False,
    drop: Drop = None,
    index_base: IndexBase = "auto",
    decimal: Annotated[Literal[".", ","] | None, of_data(help="The decimal mark (default: as in training).")] = None,
    part: Annotated[Literal["train", "test"], of_data(help="Part of an npz file.")] = "train",
    out: Annotated[
        Text, of_output(help="CSV file to write to: label, decisions, probabilities.", metavar="FILE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict labels of new points, one a line; if DATA has labels, report the score.

    Named columns are put in the order of the training file; labels are read from the column where it had them.

    A table with just the model's columns, or an npz file without y, has none.

    What training did to columns (--drop, --impute, --one-hot) is done again.
    """
    need = f"--label is {label!r}, and --unlabelled says that there are no labels: give one of the two."
    require(label is None or not unlabelled, need)
    check_writable(out, data, model)
    with jax.enable_x64(True):  # the model's own dtype is kept, whatever it is
        loaded = libsvm_model(model, data, index_base) if is_libsvm(model) else load_model(model)
        dataset = new_points(loaded, data, label, unlabelled, part, index_base, decimal, tuple(listed(drop)))
        values = np.asarray(decision_function(loaded, dataset.x))
        predicted = labels_of(loaded, values)
    labels, classes, chances = predicted.tolist(), loaded.classes, _probabilities(loaded, values)
    score = None if dataset.y is None else score_of(predicted, dataset.y, classes)
    metric = "r2" if classes is None else "accuracy"
    if out is not None:
        save(out, _table(labels, values, classes, chances))
    if as_json:
        report = {"command": "predict", "model": model, "data": data, "n": len(labels), metric: score}
        report |= {} if chances is None else {"probability": chances.tolist()}
        report |= {"labels": labels, "decision": values.tolist(), "notes": list(dataset.notes), "out": out}
        return show(True, report)
    if out is None:
        terminal = sys.stdout.isatty()
        write("".join(f"{printable(str(label)) if terminal else label}\n" for label in labels))
    unknown = "unknown (DATA has other labels)" if score is None else f"{score:.4f}"
    said = f", {metric} {unknown}" if dataset.y is not None else "" if unlabelled else ", no labels in DATA"
    typer.echo("\n".join(map(printable, [f"{len(labels)} points{said}", *dataset.notes])), err=True)
    return None


def _probabilities(model: Model, values: np.ndarray) -> np.ndarray | None:
    """Return probabilities of the classes, `(m, k)`, of a model that was trained with --probability; else None."""
    if model.sigmoids is None:
        return None
    from jaxsvm.estimators.probability import Sigmoid, coupled  # it imports scikit-learn

    machines = zip(model.sigmoids, values.reshape(len(values), -1).T, strict=True)
    p = np.stack([Sigmoid(*pair)(column) for pair, column in machines], axis=1)
    k = len(model.classes or ())
    return np.hstack([1 - p, p]) if k == 2 else coupled(p, k)


def _table(labels: list[Any], values: np.ndarray, classes: Any, chances: np.ndarray | None) -> str:
    """Return labels and decision values as CSV: of regression labels alone, of several classes a column a pair."""
    names = [f"{i} | {j}" for i, j in combinations(classes or (), 2)] if len(classes or ()) != 2 else ["decision"]
    columns = [*values.reshape(len(labels), -1).T[: len(names)], *(() if chances is None else chances.T)]
    names += [] if chances is None else [f"P({label})" for label in classes]
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(["label", *names])
    writer.writerows(zip(labels, *(map(repr, column.tolist()) for column in columns), strict=True))
    return page.getvalue()
