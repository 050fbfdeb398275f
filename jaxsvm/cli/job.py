"""The job that `fit` and `path` share: the data, the kernel and the scores of a model on other samples."""

import dataclasses
import math
from typing import Any

import numpy as np

from jaxsvm import kernels
from jaxsvm.cli.options import KERNEL_OPTIONS, Training
from jaxsvm.cli.source import coreset_in, training_points, training_source
from jaxsvm.cli.system import Interrupts
from jaxsvm.datasets import Dataset, Layout, Scaling, two_classes
from jaxsvm.datasets.columns.preparation import Preparation
from jaxsvm.datasets.columns.table import Table
from jaxsvm.datasets.labels import index_of, several_classes, targets
from jaxsvm.datasets.refusal import as_number
from jaxsvm.errors import InputError, require, require_package
from jaxsvm.kernels.width import resolve_gamma
from jaxsvm.models.description import kernel_to_dict
from jaxsvm.models.model import Model, predict
from jaxsvm.points.checks import is_sparse


@dataclasses.dataclass(frozen=True)
class Job:
    """Data that is read, split and scaled, and what to learn from it.

    Attributes:
        options: The options of the command.
        x: Training points, scaled, `(n, d)`.
        target: The values to learn, `(n,)`: signs of two classes, integers of several, numbers in regression.
        test: The points held out, as they are in the file, and their labels; None if nothing is held out.
        scaling: The scaling of the columns, or None.
        classes: The labels, two or more; None in regression.
        factors: Factors of C by class, or None.
        kernel: The kernel.
        layout: The columns of the file.
        preparation: What was done to columns before, or None.
        notes: What was decided about the file.
        solver: Name of the solver; "auto" lets the library choose.
        weight: Weights of the training samples, `(n,)`; None outside of coresets.
        stop: The flag that Ctrl-C and the time limit set.
    """

    options: Training
    x: Any
    target: np.ndarray
    test: tuple[Any, np.ndarray] | None
    scaling: Scaling | None
    classes: tuple[Any, ...] | None
    factors: np.ndarray | None
    kernel: kernels.Kernel
    layout: Layout
    preparation: Preparation | None
    notes: tuple[str, ...]
    solver: str
    weight: np.ndarray | None
    stop: Interrupts

    @property
    def epsilon(self) -> float:
        """Return half the width of the tube, in regression."""
        return 0.1 if self.options.epsilon is None else self.options.epsilon

    @property
    def note(self) -> str | None:
        """Return what was decided about the file, and a warning about its columns, for the report; None if neither."""
        uneven = _uneven_columns(self.x, self.layout.columns) if self.scaling is None else None
        return " ".join([*(f"{note[0].upper()}{note[1:]}." for note in self.notes), *filter(None, [uneven])]) or None

    @property
    def several(self) -> bool:
        """Return whether there are more than two classes."""
        return self.classes is not None and len(self.classes) > 2

    @property
    def by_estimator(self) -> bool:
        """Return whether an estimator of `jaxsvm.estimators` trains it, and not a problem's solver."""
        return self.several or self.options.nu is not None or self.options.loss == "one_class"

    @property
    def codes(self) -> np.ndarray:
        """Return the class of each training sample, as an index into the sorted classes, int `(n,)`."""
        return self.target if self.several else (self.target > 0).astype(int)

    @property
    def metric(self) -> str:
        """Name the score: "accuracy"; "r2" in regression; "inside" (the share of points accepted) for one class."""
        if self.options.loss == "one_class":
            return "inside"
        return "r2" if self.classes is None else "accuracy"

    def description(self) -> dict[str, Any]:
        """Return the job's entries of the report."""
        kinds = None if self.classes is None else list(self.classes)
        return {
            "data": self.options.data, "n": self.x.shape[0], "d": self.x.shape[1], "label": self.layout.label,
            "n_test": 0 if self.test is None else len(self.test[1]), "loss": self.options.loss,
            **({"epsilon": self.epsilon} if self.metric == "r2" and self.options.nu is None else {}),
            **({} if self.options.nu is None else {"nu": self.options.nu}),
            **({} if kinds is None else {"classes": kinds}),
            **({"machines": len(kinds) * (len(kinds) - 1) // 2} if self.several and kinds else {}),
            **({} if self.factors is None else {"class_weight": self.factors.tolist()}),
            **({} if self.weight is None else {"total_weight": float(self.weight.sum())}),
            "scale": self.options.scale, "kernel": kernel_to_dict(self.kernel), "solver": self.solver,
            "tol": self.options.tol,
        }  # fmt: skip

    def complete(self, model: Model, sigmoids: tuple[tuple[float, float], ...] | None) -> Model:
        """Return a model with what predictions of files need besides, and with probabilities if there are any."""
        return dataclasses.replace(model, preparation=self.preparation, sigmoids=sigmoids)

    def score(self, model: Model) -> float | None:
        """Return a model's score on the samples held out; None if there are none."""
        if self.test is not None and self.options.loss == "one_class":
            return float(np.mean(np.asarray(predict(model, self.test[0])) > 0))
        return None if self.test is None else score_of(predict(model, self.test[0]), self.test[1], model.classes)


def score_of(predicted: Any, y: np.ndarray, classes: tuple[Any, ...] | None) -> float | None:
    """Return the accuracy of predicted labels, or R^2 of predicted values.

    Args:
        predicted: A model's predictions, `(m,)`.
        y: The labels in the file, `(m,)`.
        classes: The model's classes, or None in regression.

    Returns:
        The score; None if a label is in none of the classes, or is not a number in regression.
    """
    if classes is None:
        return r_squared(np.asarray(predicted), y) if y.dtype.kind in "biuf" else None
    truth = _codes_of(y, classes)
    if truth is None:
        return None
    codes = {label: code for code, label in enumerate(classes)}
    return float(np.mean(np.asarray([codes[label] for label in np.asarray(predicted).tolist()]) == truth))


def _codes_of(y: np.ndarray, classes: tuple[Any, ...]) -> np.ndarray | None:
    """Return the index of each label among the classes, `(n,)`; None if a label is in none of them."""
    if classes[0] == f"not {classes[1]}":
        return np.asarray([_same(label, classes[1]) for label in y.tolist()]).astype(int)
    present, inverse = np.unique(y, return_inverse=True)
    codes = [next((code for code, kind in enumerate(classes) if _same(label, kind)), -1) for label in present.tolist()]
    return None if min(codes) < 0 else np.asarray(codes)[inverse]


def _same(label: Any, other: Any) -> bool:
    """Return whether two labels agree as numbers or as text, since files write 1 in different ways."""
    try:
        return float(label) == float(other)
    except ValueError:
        return str(label) == str(other)


def r_squared(predicted: np.ndarray, y: np.ndarray) -> float:
    """Return the share of y's variance that is explained; for constant y, 1 if it is predicted exactly, else 0."""
    left, spread = float(((y - predicted) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
    return 1 - left / spread if spread > 0 else float(left == 0)


def prepare(options: Training, stop: Interrupts) -> Job:
    """Read, split and scale the data.

    Args:
        options: The options of the command.
        stop: The flag that Ctrl-C and the time limit set.
    """
    data, dtype = options.data, options.dtype
    source = training_source(options)
    small = coreset_in(data, options)
    if small is not None and isinstance(source, Dataset):
        source = dataclasses.replace(source, y=np.asarray(small.info["classes"])[(small.y > 0).astype(int)])
    try:
        y, target, classes = _labels(options, source)
    except InputError as error:
        column = "" if source.layout.label is None else f", labels in column {source.layout.label!r}"
        raise InputError(f"{data}{column}: {error}") from None
    target = target if target.dtype.kind == "i" else target.astype(dtype)
    train, test = _split(None if classes is None else target, len(target), options.test_fraction, options.seed)
    dataset, preparation = training_points(source, options, train)
    x = dataset.x[train]
    lone = _lone_values(x, dataset.layout.columns)
    constructors = {"standardise": Scaling.standardise, "min-max": Scaling.min_max}
    scaling = constructors[options.scale](x) if options.scale in constructors else None
    x = x if scaling is None else scaling(x)
    if small is not None and "mean" in small.info:
        require(scaling is None, f"--scale is {options.scale}: the samples of {data} are standardised; leave it out.")
        mean, factor = np.asarray(small.info["mean"]), 1 / np.asarray(small.info["scale"])
        scaling = Scaling(mean, factor)  # pyright: ignore[reportArgumentType]
    job = Job(
        options=options,
        x=x,
        target=target[train],
        test=None if test is None else (dataset.x[test], y[test]),
        scaling=scaling,
        classes=None if classes is None else tuple(classes.tolist()),
        factors=_factors(options.class_weight, classes, target[train], None if small is None else small.weight[train]),
        kernel=_kernel(options, x),
        layout=dataset.layout,
        preparation=preparation,
        notes=(*dataset.notes, *lone),
        solver=options.solver or "auto",
        weight=None if small is None else small.weight[train],
        stop=stop,
    )
    for name, value in (("--solver", options.named_solver), ("--max-steps", options.max_steps)):
        if job.several and value is not None:
            raise InputError(
                f"{name} is {value}: it is for two classes, and {data} has {len(job.classes or ())}; leave it out, or "
                "choose one class against the rest with --positive."
            )
    return job


def _labels(options: Training, source: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return labels for scores, the values to learn, and the classes; None without classes."""
    y: Any = source.y
    if options.loss == "one_class":
        nothing = np.zeros(source.n if isinstance(source, Table) else source.x.shape[0])
        return nothing, nothing, None
    if options.loss == "epsilon_insensitive":
        return y, targets(y), None
    if options.positive is None and len(np.unique(y)) > 2:
        return y, *several_classes(y)
    target, classes = two_classes(y, options.positive)
    y = y if len(classes) == len(np.unique(y)) else np.where(target > 0, classes[1], classes[0])
    return y, target, classes


def with_gamma(job: Job, gamma: str) -> Job:
    """Return the job with another width of the kernel."""
    options = dataclasses.replace(job.options, gamma=gamma)
    return dataclasses.replace(job, options=options, kernel=_kernel(options, job.x))


def _factors(
    wanted: str | None, classes: np.ndarray | None, target: np.ndarray, weight: np.ndarray | None
) -> np.ndarray | None:
    """Return factors of C by class, `(k,)`, of the option --class-weight; None without it."""
    if wanted is None or classes is None:
        return None
    if wanted == "balanced":  # the same total for each class
        counts = np.bincount(target.astype(int) if len(classes) > 2 else (target > 0).astype(int), weight)
        return counts.sum() / (len(classes) * counts)
    factors, known = np.ones(len(classes)), classes.tolist()
    for part in wanted.split(","):
        label, _, number = part.rpartition("=")
        place, factor = index_of(label.strip(), known), as_number(number.strip())
        need = f"--class-weight is {wanted!r}: 'balanced', or factors such as {known[0]}=2,{known[1]}=1 are needed"
        require(place is not None, f"{need}; the labels are {', '.join(map(str, known[:6]))}.")
        require(factor is not None and 0 < factor < math.inf, f"{need}, each a positive number.")
        factors[place] = factor
    return factors


def _uneven_columns(x: Any, names: tuple[str, ...] | None) -> str | None:
    """Return a warning if a column spreads 30 times as much as half of them, or 1,000 times as much as one."""
    if is_sparse(x):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        deviations = np.std(x, axis=0)
    order = np.argsort(deviations, kind="stable")[np.count_nonzero(deviations == 0) :].tolist()  # those that vary
    for narrow, least in ((order[0], 1000), (order[(len(order) - 1) // 2], 30)) if order else ():
        ratio = float(deviations[order[-1]] / deviations[narrow])
        if ratio >= least:
            wide, other = (f"column {at}" if names is None else repr(names[at]) for at in (order[-1], narrow))
            return (
                f"Columns are not scaled: {wide} varies {ratio:.2g} times as much as {other}, and the kernel sees "
                "little but the former. --scale standardise gives all of them a say."
            )
    return None


def _lone_values(x: Any, names: tuple[str, ...] | None) -> list[str]:
    """Return a note on the first column of which a value is a thousand times as large as all others."""
    if is_sparse(x) or len(x) < 2:
        return []
    second, largest = np.partition(np.abs(x), -2, axis=0)[-2:]
    alone = np.flatnonzero((second > 0) & (largest / 1000 > second))[:1]
    return [
        f"column {at if names is None else repr(names[at])} holds a value of size {largest[at]:.3g} and no other above "
        f"{second[at]:.3g}: if it stands for a missing one, leave it empty and say --impute mean"
        for at in alone.tolist()
    ]


def _split(strata: np.ndarray | None, n: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return indices of the training and the test samples; all and None if the fraction is 0."""
    if fraction == 0:
        return np.arange(n), None
    splitting = require_package("sklearn.model_selection", "--test-fraction")
    try:
        train, test = splitting.train_test_split(np.arange(n), test_size=fraction, stratify=strata, random_state=seed)
    except ValueError as error:
        raise InputError(f"--test-fraction is {fraction}: {n} samples cannot be split so: {error}") from error
    return np.sort(train), np.sort(test)


def _kernel(options: Training, x: Any) -> kernels.Kernel:
    """Build the kernel, with a width from the training points where no number is given."""
    if options.kernel == "linear":
        return kernels.Linear()
    width = resolve_gamma("scale" if options.gamma is None else options.gamma, x)
    require(math.isfinite(width), f"gamma is {options.gamma!r}: a finite number is needed.")
    finite = options.coef0 is None or math.isfinite(options.coef0)
    require(finite, f"--coef0 is {options.coef0}: a finite number is needed.")
    degree = 3 if options.degree is None else options.degree
    given = {"gamma": width, "degree": degree, "coef0": options.coef0}
    used = {name: given[name] for name in KERNEL_OPTIONS[options.kernel] if given[name] is not None}
    classes = {"rbf": kernels.RBF, "laplacian": kernels.Laplacian, "sigmoid": kernels.Sigmoid}
    return classes.get(options.kernel, kernels.Polynomial)(**used)
