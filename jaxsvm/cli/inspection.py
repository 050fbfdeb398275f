"""What is in a model or a data set: for info, and for predict to set one beside the other."""

from typing import Any

import numpy as np

from jaxsvm.models.description import kernel_to_dict
from jaxsvm.models.model import Model
from jaxsvm.points.checks import is_sparse


def truth_of(y: np.ndarray, classes: tuple[Any, ...]) -> np.ndarray | None:
    """The place of each label among the classes, `(n,)`; None where some are of no class."""
    if classes[0] == f"not {classes[1]}":
        return np.asarray([_same(label, classes[1]) for label in y.tolist()]).astype(int)
    present, codes = np.unique(y, return_inverse=True)
    places = [next((place for place, one in enumerate(classes) if _same(label, one)), -1) for label in present.tolist()]
    return None if min(places) < 0 else np.asarray(places)[codes]


def _same(label: Any, other: Any) -> bool:
    """Whether two labels agree, as numbers or as text: files differ in how they write 1."""
    try:
        return float(label) == float(other)
    except ValueError:
        return str(label) == str(other)


def is_model(file: str) -> bool:
    """Whether the file is one that `Model.save` wrote, by its looks."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            return "header" in stored.files
    except Exception:  # whatever else it is, `load` says what is wrong with it
        return False


def describe_model(file: str, model: Model) -> dict[str, Any]:
    """What a model holds, for the report."""
    largest = {"primal": np.sum, "dual": np.sum, "relative_gap": np.max}  # of pairs: sums, and the largest gap
    certificate = {name: float(largest[name](value)) for name, value in model.certificate._asdict().items()}
    return {
        "model": file,
        "task": "regression" if model.classes is None else "classification",
        "classes": None if model.classes is None else list(model.classes),
        "d": model.basis.columns,
        "support": int(model.coef.shape[0]),
        "kernel": None if model.basis.kernel is None else kernel_to_dict(model.basis.kernel),
        "dtype": str(model.coef.dtype),
        "scaled": model.scaling is not None,
        "columns": None if model.columns is None else list(model.columns),
        "label": None if model.layout is None else model.layout.label,
        "index_base": None if model.layout is None else model.layout.index_base,
        **certificate,
    }


def describe_data(file: str, dataset: Any) -> dict[str, Any]:
    """What a data set holds, for the report."""
    present, counts = np.unique(dataset.y, return_counts=True)
    n, d = dataset.x.shape
    sparse = is_sparse(dataset.x)
    return {
        "data": file,
        "n": n,
        "d": d,
        "sparse": sparse,
        "density": float((dataset.x.nnz if sparse else np.count_nonzero(dataset.x)) / (n * d)),
        "dtype": str(dataset.x.dtype),
        "labels": {str(name): int(count) for name, count in zip(present.tolist()[:20], counts[:20], strict=True)},
        "n_labels": len(present),
    }
