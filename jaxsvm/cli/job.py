"""The job that `fit` and `path` share: the data, the kernel, and what solves it: a driver, or an estimator of pairs."""

import dataclasses
import functools
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import jax
import numpy as np

import jaxsvm
from jaxsvm.cli.app import Training
from jaxsvm.cli.report import kernel_to_dict, progress_bar, totals
from jaxsvm.cli.source import coreset_in, training_data
from jaxsvm.datasets import Scaling, two_classes
from jaxsvm.datasets.labels import several_classes, targets, value_of
from jaxsvm.errors import InputError, require
from jaxsvm.kernels import Kernel
from jaxsvm.kernels.width import resolve_gamma
from jaxsvm.loop.interruption import until_halt
from jaxsvm.model_selection.cross_validation import Scores
from jaxsvm.model_selection.folds import fold_masks, require_classes
from jaxsvm.models.libsvm import model_of, named_kernel, scikit_learn_kernel
from jaxsvm.models.model import Model, compact, is_positive
from jaxsvm.points.rows import is_sparse
from jaxsvm.results.fit import Status


@dataclasses.dataclass(frozen=True)
class Job:
    """Data that is read and scaled, and what to learn from it."""

    options: Training  # the options of the command
    x: Any  # training points, scaled, `(n, d)`
    y: np.ndarray  # the values to learn, `(n,)`: codes of classes, or numbers in regression
    weight: np.ndarray | None  # factors of C, `(n,)`: of a coreset's samples, times those of their classes; or None
    classes: tuple[Any, ...] | None  # the labels, two or more; None in regression
    kernel: Kernel  # the kernel
    parts: dict[str, Any]  # what its models keep: `scaling`, `layout` and `preparation`
    note: str | None  # what was decided about the file, and a warning about its columns; None if neither

    @property
    def metric(self) -> str:
        """Name the score: "accuracy"; "r2" in regression."""
        return "r2" if self.classes is None else "accuracy"

    def score(self, predicted: Any, truth: Any, weight: Any = None) -> float | None:
        """Return the accuracy of predicted labels; R^2 in regression, None if a value is not finite."""
        if self.classes is None:
            return score_of(predicted, truth, None)
        return float(np.average(predicted == truth, weights=weight))

    def description(self) -> dict[str, Any]:
        """Return the job's entries of the report."""
        options, k = self.options, len(self.classes or ())
        return {
            "data": options.data, "n": self.x.shape[0], "d": self.x.shape[1], "label": self.parts["layout"].label,
            "loss": options.loss, "epsilon": options.epsilon, "class_weight": options.class_weight,
            "classes": None if self.classes is None else list(self.classes),
            "machines": k * (k - 1) // 2 if k > 2 else None,
            "total_weight": None if self.weight is None else float(self.weight.sum()),
            "scale": options.scale, "kernel": kernel_to_dict(self.kernel), "tol": options.tol,
        }  # fmt: skip


def prepare(options: Training) -> Job:
    """Read and scale the data."""
    dataset = training_data(options)
    small = coreset_in(options.data, options)
    labels: Any = dataset.y if small is None else np.asarray(small.info["classes"])[(small.y > 0).astype(int)]
    try:
        y, classes = _learnt(options, labels)
    except InputError as error:
        column = "" if dataset.layout.label is None else f", labels in column {dataset.layout.label!r}"
        raise InputError(f"{options.data}{column}: {error}") from None
    x, scaling = dataset.x, dataset.scaling
    if small is not None and "mean" in small.info:
        require(options.scale == "none", f"--scale is {options.scale}: {options.data} is scaled; leave it out.")
        scaling = Scaling(np.asarray(small.info["mean"]), 1 / np.asarray(small.info["scale"]))  # pyright: ignore
    weight = None if small is None else small.weight
    if options.class_weight is not None:  # the same total for each class
        counts = np.bincount(y, weight)
        weight = (counts.sum() / (len(counts) * counts))[y] * (1 if weight is None else weight)
    unlike = _unlike_columns(x, dataset.layout.columns) if scaling is None else None
    notes = [*(f"{note[0].upper()}{note[1:]}." for note in dataset.notes), unlike]
    gamma = None if options.kernel == "linear" else resolve_gamma(options.gamma or "scale", x)
    coef0 = float(options.kernel == "polynomial") if options.coef0 is None else options.coef0
    return Job(
        options=options,
        x=x,
        y=y,
        weight=None if weight is None else weight.astype(options.dtype),
        classes=None if classes is None else tuple(classes.tolist()),
        kernel=named_kernel(options.kernel, gamma, coef0, options.degree or 3),
        parts={"scaling": scaling, "layout": dataset.layout, "preparation": dataset.preparation},
        note=" ".join(filter(None, notes)) or None,
    )


def _learnt(options: Training, y: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return what labels say to learn: codes of classes, and the classes; numbers, and None."""
    if options.loss == "epsilon_insensitive":
        return targets(y).astype(options.dtype), None
    if options.positive is None:
        return several_classes(y)
    signs, classes = two_classes(y, options.positive)
    return (signs > 0).astype(int), classes


def _unlike_columns(x: Any, names: tuple[str, ...] | None) -> str | None:
    """Return a note on columns of unlike spread (1,000 times, of half 30 times), of which the kernel sees few."""
    if is_sparse(x) or len(x) < 2:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        spread = np.std(x, axis=0)
    order = np.argsort(spread, kind="stable")[np.count_nonzero(spread == 0) :].tolist()  # those that vary
    for narrow, least in ((order[0], 1000), (order[(len(order) - 1) // 2], 30)) if order else ():
        if (ratio := float(spread[order[-1]]) / float(spread[narrow])) >= least:
            wide, thin = (f"column {at}" if names is None else repr(names[at]) for at in (order[-1], narrow))
            return (
                f"Columns are not scaled: {wide} varies {ratio:.2g} times as much as {thin}, and the kernel sees "
                "little but the former. --scale standardise gives all of them a say."
            )
    return None


def score_of(predicted: Any, y: np.ndarray, classes: tuple[Any, ...] | None) -> float | None:
    """Return the accuracy of predicted labels, or R^2 of values; None if a label is in no class, or is no number."""
    if classes is None:
        from sklearn.metrics import r2_score  # it takes a second to import

        known = y.dtype.kind in "biuf" and np.isfinite(predicted).all()
        return float(r2_score(y, predicted)) if known else None
    labels = {value_of(str(label)): label for label in classes}  # files write 1 in different ways
    rest = classes[0] if classes[0] == f"not {classes[1]}" else None
    truth = [labels.get(value_of(str(label)), rest) for label in y.tolist()]
    return None if None in truth else float(np.mean([a == b for a, b in zip(predicted.tolist(), truth, strict=True)]))


def solved(job: Job, Cs: list[float]) -> dict[int, tuple[dict[str, Any], Model]]:
    """Solve the job at each C; return entries of the report and models by index, but for what was not reached."""
    solutions = {}
    for place, statuses, steps, predicted, model in _fits(job, Cs, "fit" if len(Cs) == 1 else "path"):
        status = min(map(Status, statuses), key=lambda status: status == Status.CONVERGED)  # the first failure
        used = np.atleast_2d(np.asarray(model.coef).T).any(axis=0)  # of each sample, by any decision function
        row = {
            "C": Cs[place], "status": status.name, "certified": status == Status.CONVERGED, **totals(model.certificate),
            "steps": int(np.sum(steps)), "support": int(used.sum()),
            f"train_{job.metric}": job.score(predicted, job.y, job.weight),
        }  # fmt: skip
        solutions[place] = row, dataclasses.replace(model, classes=job.classes, **job.parts)
    return solutions


def _fits(job: Job, Cs: list[float], title: str) -> Iterator[tuple[int, list[int], Any, np.ndarray, Model]]:
    """Yield the place of each C that is reached, statuses, steps, values that are predicted for x, and the model."""
    several = len(job.classes or ()) > 2
    with progress_bar(title, len(Cs) if several or len(Cs) > 1 else None) as bar:
        yield from (_of_pairs if several else _of_one_problem)(job, Cs, bar)


def _of_one_problem(job: Job, Cs: list[float], bar: Any) -> Iterator[Any]:
    """Solve two classes, or regression, by a driver."""

    def draw(*given: Any) -> None:  # of a path the place, then the fit
        note = f"gap {float(given[-1].certificate.relative_gap):.2g}, {int(given[-1].steps)} steps"
        bar(advance=len(given) - 1, note=note)

    problem, options = _problem(job, Cs[0]), {"tol": job.options.tol, "key": jax.random.key(job.options.seed)}
    options |= {"callback": None if bar is None else draw}
    fits = jaxsvm.solve_path(problem, Cs, **options).fits if len(Cs) > 1 else jaxsvm.fit(problem, **options)
    fits, signs = jax.tree.map(np.asarray, fits), np.asarray(problem.y)  # whose slices are not compiled
    for place in range(len(Cs)):
        fitted = jax.tree.map(lambda leaf, at=place: leaf[at], fits) if len(Cs) > 1 else fits
        status, values = int(fitted.status.code), (fitted.margins * signs)[: len(job.y)]  # of regression the upper side
        if np.isfinite(fitted.certificate.relative_gap) or status != Status.INTERRUPTED:
            predicted = values if job.classes is None else is_positive(values)
            yield place, [status], fitted.steps, predicted, compact(fitted, problem)


def _problem(job: Job, C: float) -> Any:
    """Build the problem of two classes, or of regression, at a C."""
    gram = jaxsvm.gram(job.kernel, job.x)
    if job.classes is None:
        return jaxsvm.svr_problem(gram, job.y, C, epsilon=job.options.epsilon or 0.0, sample_weight=job.weight)
    squared = job.options.loss == "squared_hinge"
    make = jaxsvm.svm_problem if squared else functools.partial(jaxsvm.hinge_problem, bias="free")
    return make(gram, np.where(job.y > 0, 1, -1), C, sample_weight=job.weight)


def _of_pairs(job: Job, Cs: list[float], bar: Any) -> Iterator[Any]:
    """Solve three classes or more by an estimator, whose squared hinge counts `C`, not `C / 2`, of each square."""
    from jaxsvm.estimators import SVC  # scikit-learn takes a second to import

    (kernel, parameters), squared = scikit_learn_kernel(job.kernel), job.options.loss == "squared_hinge"
    machines = SVC(kernel=kernel, **parameters, loss=job.options.loss, bias="regularized" if squared else "free")
    with warnings.catch_warnings(action="ignore"), suppress(KeyboardInterrupt):  # the report has the status
        for place, C in until_halt(enumerate(Cs)):
            machines.set_params(C=C / 2 if squared else C, tol=job.options.tol).fit(job.x, job.y, job.weight)
            if bar is not None:
                bar(advance=1, note=f"C {C:.4g}, gap {np.max(machines.certificate_.relative_gap):.2g}")
            yield place, machines._statuses, machines.n_iter_, machines.predict(job.x), model_of(machines)


def scores_of_folds(job: Job, Cs: list[float], folds: int) -> Scores:
    """Score each C on the samples that folds leave out."""
    seed = job.options.seed
    if len(job.classes or ()) <= 2:
        with progress_bar("folds", folds * len(Cs)) as bar:
            ended = None if bar is None else lambda *_: bar(advance=1)
            return jaxsvm.cross_validate(_problem(job, 1.0), Cs, folds, seed=seed, tol=job.options.tol, callback=ended)
    scores, masks = np.full((folds, len(Cs)), np.nan), fold_masks(job.y, folds, seed=seed)
    require_classes(masks, job.y, np.ones(len(job.y)), "--folds")
    for number, (train, test) in enumerate(masks):
        weight = train.astype(job.options.dtype) * (1 if job.weight is None else job.weight)
        part = dataclasses.replace(job, weight=weight)
        for place, statuses, _, predicted, model in _fits(part, Cs, f"fold {number + 1} of {folds}"):
            if Status.INTERRUPTED not in statuses and np.max(model.certificate.relative_gap) < 1:
                scores[number, place] = job.score(predicted[test], job.y[test])
    return Scores(np.asarray(Cs), scores)
