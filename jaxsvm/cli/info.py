"""The command `jaxsvm info`: the contents of a model or a data set, or the versions that are installed."""

import sys
from typing import Annotated, Any

import jax
import numpy as np
import typer

import jaxsvm
from jaxsvm.cli.app import command
from jaxsvm.cli.options import IndexBase, Json, Label, label_of, zero_based
from jaxsvm.cli.report.solution import totals
from jaxsvm.cli.report.text import show
from jaxsvm.cli.source import is_libsvm
from jaxsvm.datasets import load
from jaxsvm.models.description import kernel_to_dict
from jaxsvm.models.libsvm import from_libsvm
from jaxsvm.models.model import Model, load_model
from jaxsvm.points.checks import is_sparse


@command("info")
def info(
    file: Annotated[str | None, typer.Argument(metavar="[MODEL|DATA]", help="A model or a data set.")] = None,
    label: Label = None,
    index_base: IndexBase = "auto",
    as_json: Json = False,
) -> None:
    """Show what is in a model or a data set, or what this installation runs on."""
    if file is None:
        report = {
            "jaxsvm": jaxsvm.__version__,
            "jax": jax.__version__,
            "python": sys.version.split()[0],
            "backend": jax.default_backend(),
            "devices": [str(device) for device in jax.devices()],
            "compilation_cache": getattr(jax.config, "jax_compilation_cache_dir", None),
        }
    elif _is_model(file):
        with jax.enable_x64(True):
            model = from_libsvm(file) if is_libsvm(file) else load_model(file)
            report = {"model": file, **_describe_model(model)}
    else:
        dataset = load(file, label=label_of(label), zero_based=zero_based(index_base))
        report = {"data": file, **_describe_data(dataset)}
    show(as_json, {"command": "info", **report})


def _is_model(file: str) -> bool:
    """Return whether the file looks like one that `Model.save` wrote, or LIBSVM."""
    if is_libsvm(file):
        return True
    try:
        with np.load(file, allow_pickle=False) as stored:
            return "header" in stored.files
    except Exception:  # if it is not an archive either, `load` says what is wrong with it
        return False


def _describe_model(model: Model) -> dict[str, Any]:
    """Return a model's entries of the report."""
    classes, layout, kernel = model.classes, model.layout, model.basis.kernel
    return {
        "task": "regression" if classes is None else "classification",
        "classes": None if classes is None else list(classes), "d": model.basis.columns,
        "support": int(model.coef.shape[0]), "kernel": None if kernel is None else kernel_to_dict(kernel),
        "dtype": str(model.coef.dtype), "scaled": model.scaling is not None,
        "columns": None if model.columns is None else list(model.columns),
        "label": None if layout is None else layout.label, "index_base": None if layout is None else layout.index_base,
        **_describe_preparation(model), **totals(model.certificate),
    }  # fmt: skip


def _describe_preparation(model: Model) -> dict[str, Any]:
    """Return what is done to columns of a file, if anything is."""
    if model.preparation is None:
        return {}
    columns = model.preparation.columns
    return {
        "dropped": list(model.preparation.dropped),
        "filled": {str(column.key): column.fill for column in columns if column.fill is not None},
        "encoded": {str(column.key): list(column.categories) for column in columns if column.categories is not None},
    }


def _describe_data(dataset: Any) -> dict[str, Any]:
    """Return a data set's entries of the report."""
    present, counts = np.unique(dataset.y, return_counts=True)
    n, d = dataset.x.shape
    sparse = is_sparse(dataset.x)
    return {
        "n": n, "d": d, "sparse": sparse,
        "density": float((dataset.x.nnz if sparse else np.count_nonzero(dataset.x)) / (n * d)),
        "dtype": str(dataset.x.dtype),
        "labels": {str(name): int(count) for name, count in zip(present.tolist()[:20], counts[:20], strict=True)},
        "n_labels": len(present),
    }  # fmt: skip
