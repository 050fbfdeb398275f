"""The command `info`: what is in a model or a data set; and `doctor`: what this machine has."""

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
from jaxsvm.cli.report import show, totals
from jaxsvm.cli.source import is_libsvm
from jaxsvm.datasets import load
from jaxsvm.errors import EXTRAS
from jaxsvm.loop.interruption import workers
from jaxsvm.models.description import kernel_to_dict
from jaxsvm.models.libsvm import from_libsvm
from jaxsvm.models.model import Model, load_model
from jaxsvm.points.rows import is_sparse
from jaxsvm.runtime.arrays import device_memory, memory


@command("info")
def info(
    file: Annotated[str | None, typer.Argument(metavar="MODEL|DATA", help="A model or a data set.")] = None,
    label: Label = None,
    index_base: IndexBase = "auto",
    as_json: Json = False,
) -> None:
    """Show what is in a model or a data set; without one what `doctor` shows."""
    if file is None:
        return doctor(as_json)
    if _is_model(file):
        with jax.enable_x64(True):
            model = from_libsvm(file) if is_libsvm(file) else load_model(file)
            report = {"model": file, **_describe_model(model)}
    else:
        report = {"data": file, **_describe_data(load(file, label=label, zero_based=zero_based(index_base)))}
    return show(as_json, {"command": "info", **report})


@command("doctor")
def doctor(as_json: Json = False) -> None:
    """Show devices, memory, versions and flags."""
    config: Any = jax.config
    packages = ["jaxlib", "numpy", *dict.fromkeys(package for package, _ in EXTRAS.values())]
    show(as_json, {
        "command": "doctor", "jaxsvm": jaxsvm.__version__, "jax": jax.__version__, "python": sys.version.split()[0],
        "backend": jax.default_backend(), "devices": [str(device) for device in jax.devices()],
        "compilation_cache": config.jax_compilation_cache_dir, "host_memory": memory(),
        "device_memory": device_memory(), "cores": workers(), "processes": jax.process_count(),
        **{package: _version(package) for package in packages},
        "x64": config.jax_enable_x64, "matmul_precision": config.jax_default_matmul_precision or "default",
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "not set"),
    })  # fmt: skip


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


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
    sparse, (present, counts) = is_sparse(dataset.x), np.unique(dataset.y, return_counts=True)
    return {
        "n": n, "d": d, "sparse": sparse,
        "density": float((dataset.x.nnz if sparse else np.count_nonzero(dataset.x)) / (n * d)),
        "dtype": str(dataset.x.dtype), "n_labels": len(present),
        "labels": {str(name): int(count) for name, count in zip(present.tolist()[:20], counts[:20], strict=True)},
    }  # fmt: skip
