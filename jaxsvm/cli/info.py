"""The commands `info`: what is in a model or a data set; and `doctor`: what this machine has, and what rows take."""

import importlib.metadata
import os
import sys
from typing import Annotated, Any

import jax
import numpy as np
import typer

import jaxsvm
from jaxsvm.cli.app import command
from jaxsvm.cli.options import IndexBase, Json, Label, zero_based
from jaxsvm.cli.report import in_options, show, totals
from jaxsvm.cli.source import is_libsvm
from jaxsvm.datasets import load
from jaxsvm.datasets.labels import as_number, is_missing, shown
from jaxsvm.datasets.preparation import Sheet
from jaxsvm.datasets.source import TABLES, Source, files_of, kind_of
from jaxsvm.datasets.tables import texts_of
from jaxsvm.designs.run import bytes_of
from jaxsvm.errors import EXTRAS, DataError
from jaxsvm.kernels import RBF, Linear
from jaxsvm.loop.choice import first_choice
from jaxsvm.loop.interruption import workers
from jaxsvm.models.description import kernel_to_dict
from jaxsvm.models.libsvm import from_libsvm
from jaxsvm.models.model import Model, load_model
from jaxsvm.points.rows import is_sparse
from jaxsvm.runtime.arrays import device_memory, memory

MANY = 200_000
"""Rows from which `doctor` names designs: working sets of a kernel are slow there."""


@command("info")
def info(
    file: Annotated[str | None, typer.Argument(metavar="MODEL|DATA", help="A model or a data set.")] = None,
    label: Label = None,
    index_base: IndexBase = "auto",
    as_json: Json = False,
) -> None:
    """Show what is in a model or a data set, or what this installation runs on."""
    if file is None:
        report = _installation()
    elif _is_model(file):
        with jax.enable_x64(True):
            model = from_libsvm(file) if is_libsvm(file) else load_model(file)
            report = {"model": file, **_describe_model(model)}
    else:
        try:
            described = _describe_data(load(file, label=label, zero_based=zero_based(index_base)))
        except DataError as error:
            described = _describe_table(file, label, error)
        report = {"data": file, **described}
    show(as_json, {"command": "info", **report})


@command("doctor")
def doctor(
    rows: Annotated[int | None, typer.Option(min=1, help="Number of rows that you have in mind.")] = None,
    features: Annotated[int, typer.Option(min=1, help="Number of features.")] = 50,
    machines: Annotated[int, typer.Option(min=1, help="Values of C, classes and folds, multiplied.")] = 1,
    as_json: Json = False,
) -> None:
    """Show devices, memory, versions and flags; with --rows what will be stored, and which solver takes it."""
    config: Any = jax.config
    packages = ["jaxlib", "numpy", *dict.fromkeys(package for package, _ in EXTRAS.values())]
    show(as_json, {
        "command": "doctor", **_installation(), "host_memory": memory(), "device_memory": device_memory(),
        "cores": workers(), "processes": jax.process_count(), **{package: _version(package) for package in packages},
        "x64": config.jax_enable_x64, "matmul_precision": config.jax_default_matmul_precision or "default",
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "not set"),
        **({} if rows is None else _plan(rows, features, machines)),
    })  # fmt: skip


def _installation() -> dict[str, Any]:
    """Return versions, devices and the compilation cache."""
    return {
        "jaxsvm": jaxsvm.__version__, "jax": jax.__version__, "python": sys.version.split()[0],
        "backend": jax.default_backend(), "devices": [str(device) for device in jax.devices()],
        "compilation_cache": getattr(jax.config, "jax_compilation_cache_dir", None),
    }  # fmt: skip


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _plan(n: int, d: int, machines: int) -> dict[str, Any]:
    """Return what n rows of d features take, in bytes of float32, and which solvers `jaxsvm.fit` begins with."""
    found: dict[str, Any] = {}

    def choose(x: Any, y: Any) -> Any:
        for kernel in (RBF(1.0), Linear()):
            gram = jaxsvm.gram(kernel, x)
            for loss, make in (("squared hinge", jaxsvm.svm_problem), ("hinge", jaxsvm.hinge_problem)):
                solver = first_choice(make(gram, y, 1.0), 1e-4)
                found[f"{type(kernel).__name__} kernel, {loss}"] = type(solver).__name__
            found["kernel matrix"] = "may be stored" if gram.may_store else "computed on demand"
        return y

    size, at_hand, note = min(n, 10**6), device_memory(), None  # from a million rows on the choice is the same
    jax.eval_shape(choose, jax.ShapeDtypeStruct((size, d), np.float32), jax.ShapeDtypeStruct((size,), np.float32))
    if at_hand is not None and 4 * n * d > at_hand / 2:
        note = "The rows do not fit: jaxsvm.designs.from_files or from_dask, a mesh, or a coreset (docs/planning.md)."
    elif n > MANY:
        note = "Linear kernel: jaxsvm.designs.fit makes 5 to 30 passes. Others: designs.nystroem (docs/planning.md)."
    return {
        "rows": n, "features": d, "machines": machines, "bytes_of_rows": 4 * n * d, "bytes_of_kernel_matrix": 4 * n * n,
        "bytes_of_designs": bytes_of(machines, d), **found, "note": note,
    }  # fmt: skip


def _is_model(file: str) -> bool:
    """Return whether the file looks like one that `Model.save` wrote, or LIBSVM."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            return "header" in stored.files
    except Exception:  # if it is no archive, LIBSVM wrote it, or `load` says what is wrong with it
        return is_libsvm(file)


def _describe_model(model: Model) -> dict[str, Any]:
    """Return a model's entries of the report."""
    classes, layout, kernel, preparation = model.classes, model.layout, model.basis.kernel, model.preparation
    described = {
        "task": "regression" if classes is None else "classification",
        "classes": None if classes is None else list(classes), "d": model.basis.columns,
        "support": int(model.coef.shape[0]), "kernel": None if kernel is None else kernel_to_dict(kernel),
        "dtype": str(model.coef.dtype), "scaled": model.scaling is not None,
        "columns": None if model.columns is None else list(model.columns),
        "label": None if layout is None else layout.label, "index_base": None if layout is None else layout.index_base,
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


def _describe_data(dataset: Any) -> dict[str, Any]:
    """Return a data set's entries of the report."""
    n, d = dataset.x.shape
    sparse = is_sparse(dataset.x)
    return {
        "n": n, "d": d, "sparse": sparse,
        "density": float((dataset.x.nnz if sparse else np.count_nonzero(dataset.x)) / (n * d)),
        "dtype": str(dataset.x.dtype), **_describe_labels(dataset.y),
    }  # fmt: skip


def _describe_labels(y: Any) -> dict[str, Any]:
    present, counts = np.unique(y, return_counts=True)
    labels = {str(name): int(count) for name, count in zip(present.tolist()[:20], counts[:20], strict=True)}
    return {"labels": labels, "n_labels": len(present)}


def _describe_table(file: str, label: str | None, refusal: DataError) -> dict[str, Any]:
    """Return what columns of a table that was refused are plain numbers, and of each other what to do about it.

    Raises:
        DataError: The refusal, if it is no table, or its columns are not known.
    """
    files = files_of(file)
    if kind_of(files[0]) not in TABLES:
        raise refusal
    try:
        sheet = Sheet.of(Source(files, label=label))
    except DataError:
        raise refusal from None
    numbers, rows = [], []
    for place, key in enumerate(sheet.keys):
        texts = texts_of(sheet.columns[place])
        missing = np.asarray([is_missing(text) for text in texts.values], bool)[texts.codes].sum()
        filled = [text for text in texts.values if not is_missing(text)]
        odd = next((text for text in filled if as_number(text) is None), None)
        if odd is None and not missing:
            numbers.append(str(key))
            continue
        advice = [*([] if odd is None else ["--one-hot, or --drop"]), *(["--impute mean"] if missing else [])]
        rows.append({
            "column": str(key), "different": len(filled), "such as": shown(odd or (filled or [""])[0]),
            "missing": int(missing), "what to do": "; ".join(advice),
        })  # fmt: skip
    note = f"Training refuses it as it is: {in_options(str(refusal))}"
    described = {"n": sheet.n, "numbers": numbers, "label": sheet.layout.label, **_describe_labels(sheet.y)}
    return {**described, "table": rows, "note": note}
