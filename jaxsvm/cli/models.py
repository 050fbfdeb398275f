"""The commands that read a model: `predict`, for labels and decision values of new points, and `info`; and `doctor`."""

import contextlib
import csv
import dataclasses
import importlib.metadata
import io
import os
import re
import sys
from itertools import combinations
from typing import Annotated, Any, Literal

import jax
import numpy as np
import typer

import jaxsvm
from jaxsvm.cli.app import Data, Drop, Header, IndexBase, Json, Label, Text, command, listed, of_data, of_output
from jaxsvm.cli.job import score_of
from jaxsvm.cli.report import check_writable, kernel_to_dict, printable, save, show, totals, write
from jaxsvm.cli.source import is_libsvm, libsvm_model, new_points
from jaxsvm.datasets import Layout
from jaxsvm.errors import EXTRAS, MissingPackageError, require
from jaxsvm.loop.interruption import workers
from jaxsvm.models.libsvm import from_libsvm
from jaxsvm.models.model import Model, decision_function, labels_of, load_model
from jaxsvm.runtime.arrays import device_memory, memory
from jaxsvm.runtime.executables import store

MODEL = "A model that fit or path wrote, or LIBSVM's."


@command("predict")
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)],
    data: Data,
    label: Label = None,
    unlabelled: Annotated[bool, of_data("--unlabelled", help="DATA has no labels: all columns are features.")] = False,
    drop: Drop = None,
    index_base: IndexBase = "auto",
    decimal: Annotated[Literal[".", ","] | None, of_data(help="The decimal mark (default: as in training).")] = None,
    header: Header = None,
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
        dataset = new_points(loaded, data, label, unlabelled, index_base, decimal, tuple(listed(drop)), header)
        values = np.asarray(decision_function(loaded, dataset.x))
        predicted = labels_of(loaded, values)
    labels, classes, chances = predicted.tolist(), loaded.classes, None
    if loaded.sigmoids is not None:
        from jaxsvm.estimators.probability import of_classes  # it imports scikit-learn

        chances = of_classes(values.reshape(len(values), -1), loaded.sigmoids, len(classes or ()))
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


@command("info")
def info(file: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)], as_json: Json = False) -> None:
    """Show what is in a model."""
    with jax.enable_x64(True):
        model = from_libsvm(file) if is_libsvm(file) else load_model(file)
        show(as_json, {"command": "info", "model": file, **_describe_model(model)})


@command("doctor")
def doctor(
    warm: Annotated[Text, of_data(help="First compile the usual programs of N x D points.", metavar="NxD")] = None,
    as_json: Json = False,
) -> None:
    """Show devices, memory, versions, flags, and where compiled programs lie."""
    if warm is not None:
        _compile_for(warm)
    config: Any = jax.config
    programs = store().directory
    size = sum(file.stat().st_size for file in programs.glob("jaxlib-*/*")) if programs else 0
    versions = {found.name: found.version for found in importlib.metadata.distributions()}
    packages = ["jaxlib", "numpy", *dict.fromkeys(package for package, _ in EXTRAS.values())]
    show(as_json, {
        "command": "doctor", "jaxsvm": jaxsvm.__version__, "jax": jax.__version__, "python": sys.version.split()[0],
        "backend": jax.default_backend(), "devices": [str(device) for device in jax.devices()],
        "compilation_cache": config.jax_compilation_cache_dir,
        "programs": f"{programs}, {size / 1e6:.0f} MB" if programs else "not stored", "host_memory": memory(),
        "device_memory": device_memory(), "cores": workers(), "processes": jax.process_count(),
        **{package: versions.get(package, "not installed") for package in packages},
        "x64": config.jax_enable_x64, "matmul_precision": config.jax_default_matmul_precision or "default",
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "not set"),
    })  # fmt: skip


def _compile_for(size: str) -> None:
    """Run what compiles the programs of fits and paths, and of `SVC` if scikit-learn is there."""
    n, d = map(int, size.split("x")) if re.fullmatch("[1-9][0-9]*x[1-9][0-9]*", size) else (0, 0)
    require(n > 1, f"--warm is {size!r}: rows and columns such as 2000x20 are needed.")
    x = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    y, gram = np.where(x[:, 0] > np.median(x[:, 0]), 1, -1), jaxsvm.gram(jaxsvm.kernels.RBF(1 / d), x)
    for problem in (jaxsvm.svm_problem(gram, y, 1.0), jaxsvm.hinge_problem(gram, y, 1.0, bias="free")):
        jaxsvm.fit(problem)
        jaxsvm.solve_path(problem, np.logspace(-2, 3, 64))
    with contextlib.suppress(MissingPackageError):
        jaxsvm.estimators.SVC().fit(x, y)


def _describe_model(model: Model) -> dict[str, Any]:
    """Return a model's entries of the report."""
    classes, kernel, preparation = model.classes, model.basis.kernel, model.preparation
    described = {
        "task": "regression" if classes is None else "classification",
        "classes": None if classes is None else list(classes), "d": model.basis.columns,
        "support": int(model.coef.shape[0]), "kernel": None if kernel is None else kernel_to_dict(kernel),
        "dtype": str(model.coef.dtype), "scaled": model.scaling is not None,
        **dataclasses.asdict(model.layout or Layout()),
    }  # fmt: skip
    if preparation is not None:
        columns = preparation.columns
        described |= {
            "columns_of_the_file": [str(column.key) for column in columns],
            "dropped": list(preparation.dropped),
            "filled": {str(column.key): column.fill for column in columns if column.fill is not None},
            "encoded": {str(column.key): list(column.categories) for column in columns if column.categories},
        }
    return described | totals(model.certificate)
