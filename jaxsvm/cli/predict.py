"""The command `jaxsvm predict`: labels and decision values of new points."""

from itertools import combinations
from typing import Annotated, Any

import jax
import numpy as np
import typer

from jaxsvm.cli.app import command
from jaxsvm.cli.job import score_of
from jaxsvm.cli.options import Data, Drop, IndexBase, Json, Label, listed, option
from jaxsvm.cli.report.text import predictions, print_json, print_lines, printable
from jaxsvm.cli.source import is_libsvm, libsvm_model, new_points
from jaxsvm.cli.system import check_writable, save
from jaxsvm.errors import require
from jaxsvm.models.model import Model, decision_function, labels_of, load_model
from jaxsvm.runtime.checks import require_one_of


@command("predict")
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model that fit or path wrote, or LIBSVM's.")],
    data: Data,
    label: Label = None,
    unlabelled: Annotated[bool, option("--unlabelled", "DATA has no labels: every column is a feature.")] = False,
    drop: Drop = None,
    index_base: IndexBase = "auto",
    decimal: Annotated[
        str | None, option("--decimal", "The decimal mark of a CSV file (default: as in training).", (".", ","))
    ] = None,
    part: Annotated[str, option("--part", "Part of an npz file.", ("train", "test"))] = "train",
    out: Annotated[
        str | None,
        option("--out", "CSV file to write to: label, decision (a column per pair of classes), probabilities.", "FILE"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict labels of new points, one a line; if DATA has labels, report the score.

    Named columns are put in the order of the training file; missing and unknown columns are errors. Labels are read
    from the column where the training file had them. A table with just the model's columns, or an npz file without y,
    has none. With --unlabelled the labels that start the lines of a svmlight file are ignored. The indices of a
    svmlight file count from where those of the training file did. What training did to columns (--drop, --impute,
    --one-hot) is done again.
    """
    need = f"--label is {label!r}, and --unlabelled says that there are no labels: give one of the two."
    require(label is None or not unlabelled, need)
    require_one_of("--decimal", decimal or ".", (".", ","))
    check_writable(out, data, model)
    with jax.enable_x64(True):  # the model's own dtype is kept, whatever it is
        loaded = libsvm_model(model, data, index_base) if is_libsvm(model) else load_model(model)
        dataset = new_points(loaded, data, label, unlabelled, part, index_base, decimal, tuple(listed(drop)))
        values = np.asarray(decision_function(loaded, dataset.x))
        labels = labels_of(loaded, values).tolist()
    chances = _probabilities(loaded, values)
    columns, shown = _decision_columns(loaded.classes), values
    if chances is not None:
        columns, shown = columns + [f"P({label})" for label in loaded.classes or ()], np.column_stack([values, chances])
    score = None if dataset.y is None else score_of(labels, dataset.y, loaded.classes)
    save(out, predictions(labels, shown.tolist(), columns))
    metric = "r2" if loaded.classes is None else "accuracy"
    if as_json:
        report = {"command": "predict", "model": model, "data": data, "n": len(labels), metric: score}
        report |= {} if chances is None else {"probability": chances.tolist()}
        print_json(report | {"labels": labels, "decision": values.tolist(), "notes": list(dataset.notes), "out": out})
        return
    if out is None:
        print_lines(labels)
    if score is not None:
        summary = f", {metric} {score:.4f}"
    elif dataset.y is not None:
        summary = f", {metric} unknown (DATA has other labels)"
    else:
        summary = "" if unlabelled else ", no labels in DATA"
    typer.echo("\n".join(map(printable, [f"{len(labels)} points{summary}", *dataset.notes])), err=True)


def _probabilities(model: Model, values: np.ndarray) -> np.ndarray | None:
    """Return probabilities of the classes, `(m, k)`, of a model that was trained with --probability; else None."""
    if model.sigmoids is None:
        return None
    from jaxsvm.estimators.probability import Sigmoid, coupled  # it imports scikit-learn

    machines = zip(model.sigmoids, values.reshape(len(values), -1).T, strict=True)
    p = np.stack([Sigmoid(*pair)(column) for pair, column in machines], axis=1)
    k = len(model.classes or ())
    return np.hstack([1 - p, p]) if k == 2 else coupled(p, k)


def _decision_columns(classes: tuple[Any, ...] | None) -> list[str]:
    """Name the columns of decision values in a table; regression has none, since they are the predictions."""
    if classes is None:
        return []
    return ["decision"] if len(classes) == 2 else [f"{first} | {second}" for first, second in combinations(classes, 2)]
