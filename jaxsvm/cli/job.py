"""What fit and path share: data made ready, what is to be learned of them, and how well a model does on others."""

import dataclasses
import math
from typing import Any

import numpy as np

from jaxsvm import kernels
from jaxsvm.cli.inspection import truth_of
from jaxsvm.cli.options import label_of, zero_based
from jaxsvm.cli.system import require_memory
from jaxsvm.datasets import Layout, Scaling, load, two_classes
from jaxsvm.datasets.labels import several_classes, targets
from jaxsvm.errors import InputError
from jaxsvm.kernels.width import resolve_gamma
from jaxsvm.models.description import kernel_to_dict
from jaxsvm.models.model import Model, predict
from jaxsvm.points.checks import is_sparse

UNEVEN = 1000.0
"""The spread of a column, in those of another, from which on a report says that columns are not scaled."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Data that is ready to be fitted: read, split and scaled.

    Attributes:
        source: The file.
        x: Training points, scaled, `(n, d)`.
        target: What is to be learned, `(n,)`: signs of two classes, integers of several, numbers in regression.
        test: Points as they are in the file, and their labels; None where nothing is held out.
        scaling: What was done to columns, or None.
        classes: The labels, two or more; None in regression.
        kernel: The kernel.
        loss: "squared_hinge", "hinge" or "epsilon_insensitive".
        epsilon: Half the width of the tube, in regression.
        scale: The scaling's name.
        layout: How the file holds its columns.
        note: What one had better know of the columns, or None.
    """

    source: str
    x: Any
    target: np.ndarray
    test: tuple[Any, np.ndarray] | None
    scaling: Scaling | None
    classes: tuple[Any, ...] | None
    kernel: kernels.Kernel
    loss: str
    epsilon: float
    scale: str
    layout: Layout
    note: str | None = None

    @property
    def several(self) -> bool:
        """Whether there are more than two classes."""
        return self.classes is not None and len(self.classes) > 2

    @property
    def metric(self) -> str:
        """What scores are: "accuracy", or "r2" in regression."""
        return "r2" if self.classes is None else "accuracy"

    def description(self) -> dict[str, Any]:
        """For the report."""
        kinds = None if self.classes is None else list(self.classes)
        return {
            "data": self.source,
            "n": self.x.shape[0],
            "d": self.x.shape[1],
            "label": self.layout.label,
            "n_test": 0 if self.test is None else len(self.test[1]),
            "loss": self.loss,
            **({"epsilon": self.epsilon} if kinds is None else {"classes": kinds}),
            **({"machines": len(kinds) * (len(kinds) - 1) // 2} if self.several and kinds else {}),
            "scale": self.scale,
            "kernel": kernel_to_dict(self.kernel),
        }

    def score(self, model: Model) -> float | None:
        """Of a model on the samples held out; None where there are none."""
        return None if self.test is None else score_of(predict(model, self.test[0]), self.test[1], model.classes)


def score_of(predicted: Any, y: np.ndarray, classes: tuple[Any, ...] | None) -> float | None:
    """Accuracy of predicted labels, or R^2 of predicted values; None where y holds other labels than there are classes.

    Args:
        predicted: What a model predicts, `(m,)`.
        y: What the file holds, `(m,)`.
        classes: The model's classes, or None.
    """
    if classes is None:
        return r_squared(np.asarray(predicted), y) if y.dtype.kind in "biuf" else None
    truth = truth_of(y, classes)
    if truth is None:
        return None
    places = {label: place for place, label in enumerate(classes)}
    found = np.asarray([places[label] for label in np.asarray(predicted).tolist()])
    return float(np.mean(found == truth))


def chosen_place(rows: dict[int, dict[str, Any]], score: str, one_standard_error: bool = False) -> int | None:
    """The best score among the certified values, of equals the smallest C; among all if none is; None without scores.

    Args:
        rows: Of the report, by place.
        score: The score's name in them.
        one_standard_error: Whether the smallest C whose score is within one standard error of the best is taken.
    """
    scored = {place: row for place, row in rows.items() if row[score] is not None and math.isfinite(row[score])}
    among = {place: row for place, row in scored.items() if row["certified"]} or scored
    if not among:
        return None
    best = min(among, key=lambda place: (-among[place][score], among[place]["C"]))
    if not one_standard_error:
        return best
    enough = among[best][score] - among[best]["cv_standard_error"]
    return min((place for place in among if among[place][score] >= enough), key=lambda place: among[place]["C"])


def r_squared(predicted: np.ndarray, y: np.ndarray) -> float:
    """The share of the variance of y that is explained; 0 where y does not vary and is not met."""
    left, spread = float(((y - predicted) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
    return 1 - left / spread if spread > 0 else float(left == 0)


def prepare(
    data: str, label: str | None, index_base: str, positive: str | None, test_fraction: float, scale: str, seed: int,
    dtype: str, kernel: str, gamma: str | None, degree: int | None, coef0: float | None, loss: str,
    epsilon: float | None,
) -> Job:  # fmt: skip
    """Read, split and scale the data."""
    dataset = load(data, label=label_of(label), dtype=dtype, zero_based=zero_based(index_base))
    require_memory(data, dataset.x)
    y: Any = dataset.y
    if loss == "epsilon_insensitive":
        if positive is not None:
            raise InputError(f"--positive is {positive!r}: regression has no classes; leave it out.")
        target, classes = targets(y), None
    elif positive is not None or len(np.unique(y)) <= 2:
        target, classes = two_classes(y, positive)
        y = y if len(classes) == len(np.unique(y)) else np.where(target > 0, classes[1], classes[0])
    else:
        target, classes = several_classes(y)
    target = target if target.dtype.kind == "i" else target.astype(dtype)
    train, test = _split(None if classes is None else target, len(target), test_fraction, seed)
    x = dataset.x[train]
    constructors = {"standardise": Scaling.standardise, "min-max": Scaling.min_max}
    scaling = constructors[scale](x) if scale in constructors else None
    scaled = x if scaling is None else scaling(x)
    return Job(
        source=data,
        x=scaled,
        target=target[train],
        test=None if test is None else (dataset.x[test], y[test]),
        scaling=scaling,
        classes=None if classes is None else tuple(classes.tolist()),
        kernel=_kernel(kernel, gamma, degree, coef0, scaled),
        loss=loss,
        epsilon=0.1 if epsilon is None else epsilon,
        scale=scale,
        layout=dataset.layout,
        note=_spread(scaled, dataset.layout.columns) if scaling is None else None,
    )


def _spread(x: Any, names: tuple[str, ...] | None) -> str | None:
    """A word on columns of very different sizes: kernels see the largest alone. None where they are alike."""
    if is_sparse(x):
        return None
    deviations = np.std(x, axis=0)
    varying = np.flatnonzero(deviations > 0)
    if not len(varying):
        return None
    widest, narrowest = (int(varying[pick(deviations[varying])]) for pick in (np.argmax, np.argmin))
    times = float(deviations[widest] / deviations[narrowest])
    if times < UNEVEN:
        return None
    wide, narrow = (f"column {at}" if names is None else repr(names[at]) for at in (widest, narrowest))
    return (
        f"Columns are not scaled: {wide} varies {times:.2g} times as much as {narrow}, and the kernel sees little but "
        "the former. --scale standardise gives all of them a say."
    )


def _split(strata: np.ndarray | None, n: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Indices of the training and the test samples; all and None where nothing is held out."""
    if fraction == 0:
        return np.arange(n), None
    try:
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise InputError("--test-fraction needs scikit-learn: pip install 'jaxsvm[cli]'") from error
    try:
        train, test = train_test_split(np.arange(n), test_size=fraction, stratify=strata, random_state=seed)
    except ValueError as error:
        raise InputError(f"--test-fraction is {fraction}: {n} samples cannot be split so: {error}") from error
    return np.sort(train), np.sort(test)


def _kernel(name: str, gamma: str | None, degree: int | None, coef0: float | None, x: Any) -> kernels.Kernel:
    if name == "linear":
        return kernels.Linear()
    width = resolve_gamma("scale" if gamma is None else gamma, x)
    if not math.isfinite(width):
        raise InputError(f"gamma is {gamma!r}: a finite number is needed.")
    if name == "rbf":
        return kernels.RBF(width)
    if name == "laplacian":
        return kernels.Laplacian(width)
    if coef0 is not None and not math.isfinite(coef0):
        raise InputError(f"--coef0 is {coef0}: a finite number is needed.")
    constant = {"coef0": coef0} if coef0 is not None else {}
    if name == "sigmoid":
        return kernels.Sigmoid(width, **constant)
    return kernels.Polynomial(3 if degree is None else degree, width, **constant)
