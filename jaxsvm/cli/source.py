"""What the command reads: points as a file holds them, or made of the columns of a table."""

from typing import Any

import numpy as np

import jaxsvm
from jaxsvm.cli.app import Training, listed, zero_based
from jaxsvm.datasets import Dataset, load
from jaxsvm.datasets.labels import Wanted
from jaxsvm.datasets.reading import TABLES, Source, files_of, kind_of
from jaxsvm.errors import require
from jaxsvm.gram import measured as gram
from jaxsvm.models.libsvm import from_libsvm
from jaxsvm.models.model import Model
from jaxsvm.points.rows import is_sparse
from jaxsvm.runtime.arrays import memory, require_memory


def training_data(options: Training) -> Dataset:
    """Read the training file, with its columns prepared as the options say."""
    dataset = load(
        options.data,
        label=options.label,
        dtype=options.dtype,
        zero_based=zero_based(options.index_base),
        decimal=options.decimal,
        header=options.header,
        drop=listed(options.drop),
        impute=options.impute,
        one_hot=options.one_hot,
        scale={"none": None, "standardize": "standardise"}.get(options.scale, options.scale),
    )
    _require_memory(options.data, dataset.x)
    return dataset


def _require_memory(name: str, x: Any) -> None:
    """Refuse sparse points whose blocks of dense rows would take more than half of this machine's memory."""
    if is_sparse(x):
        n, d = x.shape
        # Four vectors beside the rows: shift, spread, and the two of the scaling.
        needed, available = (2 * min(n, gram.MEASURED.rows_per_tile) + 4) * d * x.dtype.itemsize, memory()
        used, half = len(np.unique(x.indices)), None if available is None else available // 2
        what = f"{name}: has {n} samples and {d} columns, of which {used} occur: blocks of dense rows"
        advice = "Number the columns that occur from 1 without gaps (not by hashes), or hash them to fewer"
        require_memory(needed, what, advice, half)


def coreset_in(data: str, options: Training) -> Any:
    """Return the coreset that `jaxsvm coreset` wrote to an npz file, or None: its samples have weights.

    Raises:
        InputError: If an option cannot weigh samples.
    """
    if kind_of(files_of(data)[0]) != "npz":
        return None
    with np.load(data) as stored:
        if not {"weight", "info"} <= set(stored.files):
            return None
    need = f"{data} is a coreset, whose samples have weights: --loss hinge or squared_hinge is needed, and no --label."
    require(options.loss != "epsilon_insensitive" and options.label is None, need)
    return jaxsvm.coresets.load_coreset(data)


def is_libsvm(file: str) -> bool:
    """Return whether a file looks like a model that LIBSVM's `svm-train` wrote."""
    try:
        with open(file, "rb") as opened:
            return opened.read(9) == b"svm_type "
    except OSError:
        return False


def libsvm_model(file: str, data: str, index_base: str) -> Model:
    """Read LIBSVM's model for a file of points, which may have columns that no support vector has."""
    model = from_libsvm(file)
    if kind_of(files_of(data)[0]) != "svmlight":
        return model
    x = load(data, zero_based=zero_based(index_base), like=model.layout).x
    columns: Any = model.basis.columns  # no file holds a precomputed kernel
    return model if x.shape[1] <= columns else from_libsvm(file, features=x.shape[1])


def new_points(
    model: Model, data: str, label: str | None, unlabelled: bool, index_base: str, decimal: str | None,
    drop: tuple[str, ...] = (), header: bool | None = None,
) -> Dataset:  # fmt: skip
    """Read new points for a model, by its layout and its preparation."""
    preparation, place = model.preparation, False if unlabelled else label
    files = files_of(data)
    if preparation is not None and kind_of(files[0]) in TABLES:
        optional = not unlabelled and label is None
        wanted = Wanted(place, optional, header=header, decimal=decimal or preparation.decimal)
        return preparation.read(Source(files, wanted), model.layout, drop, model.coef.dtype)
    return load(
        data,
        label=place,
        label_optional=not unlabelled,
        features=model.basis.columns,
        dtype=model.coef.dtype,
        zero_based=zero_based(index_base),
        like=model.layout,
        decimal=decimal or ".",
        drop=drop,
        header=header,
    )
