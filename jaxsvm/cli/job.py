"""The job that `fit` and `path` share: the data, the kernel, and what solves it: a driver or an estimator."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import jax
import numpy as np

import jaxsvm
from jaxsvm.cli.options import Training
from jaxsvm.cli.report import kernel_to_dict, progress_bar, totals
from jaxsvm.cli.source import coreset_in, training_points, training_source
from jaxsvm.datasets import Dataset, Scaling, two_classes
from jaxsvm.datasets.labels import index_of, several_classes, targets, value_of
from jaxsvm.errors import InputError, require
from jaxsvm.kernels import Kernel
from jaxsvm.kernels.width import resolve_gamma
from jaxsvm.loop.interruption import until_halt, watching
from jaxsvm.model_selection.cross_validation import Scores
from jaxsvm.model_selection.folds import fold_masks
from jaxsvm.models.libsvm import model_of, named_kernel, scikit_learn_kernel
from jaxsvm.models.model import Model, compact, is_right, predict
from jaxsvm.points.rows import is_sparse
from jaxsvm.results.fit import Status


@dataclasses.dataclass(frozen=True)
class Job:
    """Data that is read, split and scaled, and what to learn from it."""

    options: Training  # the options of the command
    x: Any  # training points, scaled, `(n, d)`
    y: np.ndarray  # the values to learn, `(n,)`: codes of classes, or numbers in regression
    weight: np.ndarray | None  # weights of the training samples, `(n,)`; None outside of coresets
    classes: tuple[Any, ...] | None  # the labels, two or more; None without classes
    factors: np.ndarray | None  # factors of C by class, `(k,)`, or None
    kernel: Kernel  # the kernel
    # the points held out, as they are in the file, and their labels; None if nothing is held out
    test: tuple[Any, np.ndarray] | None
    parts: dict[str, Any]  # what its models keep: `scaling`, `layout` and `preparation`
    note: str | None  # what was decided about the file, and a warning about its columns; None if neither

    @property
    def takes_estimator(self) -> bool:
        """Return whether an estimator of `jaxsvm.estimators` trains it, and not `jaxsvm.fit` of one problem."""
        several = self.classes is not None and len(self.classes) > 2
        return several or self.options.nu is not None or self.options.loss == "one_class"

    @property
    def metric(self) -> str:
        """Name the score: "accuracy"; "r2" in regression; "inside" (the share of points accepted) for one class."""
        return {"epsilon_insensitive": "r2", "one_class": "inside"}.get(self.options.loss, "accuracy")

    @property
    def epsilon(self) -> float:
        """Return half the width of the tube, in regression without nu."""
        return 0.1 if self.options.epsilon is None else self.options.epsilon

    def with_gamma(self, gamma: str) -> "Job":
        """Return the job with another width of the kernel."""
        return dataclasses.replace(self, kernel=_kernel(dataclasses.replace(self.options, gamma=gamma), self.x))

    def description(self) -> dict[str, Any]:
        """Return the job's entries of the report."""
        options, k = self.options, len(self.classes or ())
        return {
            "data": options.data, "n": self.x.shape[0], "d": self.x.shape[1], "label": self.parts["layout"].label,
            "n_test": 0 if self.test is None else len(self.test[1]), "loss": options.loss,
            **({"epsilon": self.epsilon} if self.metric == "r2" and options.nu is None else {}),
            **({} if options.nu is None else {"nu": options.nu}),
            **({} if self.classes is None else {"classes": list(self.classes)}),
            **({"machines": k * (k - 1) // 2} if k > 2 else {}),
            **({} if self.factors is None else {"class_weight": self.factors.tolist()}),
            **({} if self.weight is None else {"total_weight": float(self.weight.sum())}),
            "scale": options.scale, "kernel": kernel_to_dict(self.kernel), "tol": options.tol,
        }  # fmt: skip

    def score(self, model: Model) -> float | None:
        """Return the score of a model on the samples held out; None if there are none."""
        if self.test is None:
            return None
        predicted = np.asarray(predict(model, self.test[0]))
        if self.metric == "inside":
            return float(np.mean(predicted > 0))
        return score_of(predicted, self.test[1], self.classes)


@contextmanager
def errors_of(what: str) -> Iterator[None]:
    """Make errors of scikit-learn and of estimators ours, and keep their warnings: the report gives the status."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except ValueError as error:
            raise error if isinstance(error, InputError) else InputError(f"{what}: {error}") from error


def prepare(options: Training) -> Job:
    """Read, split and scale the data."""
    dataset, source = training_source(options)
    small = coreset_in(options.data, options)
    if small is not None:
        dataset = dataclasses.replace(dataset, y=np.asarray(small.info["classes"])[(small.y > 0).astype(int)])
    try:
        labels, y, classes = _labels(options, dataset)
    except InputError as error:
        column = "" if dataset.layout.label is None else f", labels in column {dataset.layout.label!r}"
        raise InputError(f"{options.data}{column}: {error}") from None
    y = y if y.dtype.kind == "i" else y.astype(options.dtype)
    train, test = np.arange(len(y)), None
    if options.test_fraction > 0:
        from sklearn.model_selection import train_test_split  # it takes a second to import

        how = {"test_size": options.test_fraction, "stratify": None if classes is None else y}
        with errors_of("--test-fraction"):
            train, test = map(np.sort, train_test_split(train, **how, random_state=options.seed))
    dataset, preparation = (dataset, None) if source is None else training_points(source, options, train)
    x, y, weight = dataset.x[train], y[train], None if small is None else small.weight[train]
    scaling: Any = None
    if small is not None and "mean" in small.info:
        require(options.scale == "none", f"--scale is {options.scale}: {options.data} is scaled; leave it out.")
        scaling = Scaling(np.asarray(small.info["mean"]), 1 / np.asarray(small.info["scale"]))  # pyright: ignore
    elif options.scale != "none":
        scaling = (Scaling.min_max if options.scale == "min-max" else Scaling.standardise)(x)
        x = scaling(x)
    unlike = _unlike_columns(x, dataset.layout.columns) if scaling is None else None
    notes = [*(f"{note[0].upper()}{note[1:]}." for note in dataset.notes), unlike]
    return Job(
        options=options,
        x=x,
        y=y,
        weight=weight,
        classes=None if classes is None else tuple(classes.tolist()),
        factors=_factors(options.class_weight, classes, y, weight),
        kernel=_kernel(options, x),
        test=None if test is None else (dataset.x[test], labels[test]),
        parts={"scaling": scaling, "layout": dataset.layout, "preparation": preparation},
        note=" ".join(filter(None, notes)) or None,
    )


def _labels(options: Training, dataset: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return labels for scores, the values to learn, and the classes; None without classes."""
    y: Any = dataset.y
    if options.loss == "one_class":
        nothing = np.zeros(dataset.x.shape[0])
        return nothing, nothing, None
    if options.loss == "epsilon_insensitive":
        return y, targets(y), None
    if options.positive is None:
        return y, *several_classes(y)
    signs, classes = two_classes(y, options.positive)
    codes = (signs > 0).astype(int)
    return y if len(classes) == len(np.unique(y)) else classes[codes], codes, classes


def _factors(
    wanted: str | None, classes: np.ndarray | None, y: np.ndarray, weight: np.ndarray | None
) -> np.ndarray | None:
    """Return factors of C by class, `(k,)`, of the option --class-weight; None without it."""
    if wanted is None or classes is None:
        return None
    if wanted == "balanced":  # the same total for each class
        counts = np.bincount(y, weight)
        return counts.sum() / (len(classes) * counts)
    known = classes.tolist()
    need = f"--class-weight is {wanted!r}: 'balanced', or positive factors such as {known[0]}=2,{known[1]}=1 are needed"
    parts = [part.rpartition("=") for part in wanted.split(",")]
    try:
        given: dict[int | None, float] = {index_of(label.strip(), known): float(number) for label, _, number in parts}
    except ValueError:
        given = {None: math.nan}
    sound = None not in given and all(0 < factor < math.inf for factor in given.values())
    require(sound, f"{need}; the labels are {', '.join(map(str, known[:6]))}.")
    return np.array([given.get(place, 1.0) for place in range(len(known))])


def _kernel(options: Training, x: Any) -> Kernel:
    """Build the kernel, with a width from the training points where no number is given."""
    gamma = None if options.kernel == "linear" else resolve_gamma(options.gamma or "scale", x)
    coef0 = float(options.kernel == "polynomial") if options.coef0 is None else options.coef0
    return named_kernel(options.kernel, gamma, coef0, options.degree or 3)


def _unlike_columns(x: Any, names: tuple[str, ...] | None) -> str | None:
    """Return a note on columns of unlike spread, of which the kernel sees few; None if there are none."""
    if is_sparse(x) or len(x) < 2:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        spread = np.std(x, axis=0)
    title = [f"column {at}" for at in range(x.shape[1])] if names is None else list(map(repr, names))
    order = np.argsort(spread, kind="stable")[np.count_nonzero(spread == 0) :].tolist()  # those that vary
    for narrow, least in ((order[0], 1000), (order[(len(order) - 1) // 2], 30)) if order else ():
        if (ratio := float(spread[order[-1]]) / float(spread[narrow])) >= least:
            return (
                f"Columns are not scaled: {title[order[-1]]} varies {ratio:.2g} times as much as {title[narrow]}, and "
                "the kernel sees little but the former. --scale standardise gives all of them a say."
            )
    return None


def score_of(predicted: Any, y: np.ndarray, classes: tuple[Any, ...] | None) -> float | None:
    """Return the accuracy of predicted labels, or R^2 of predicted values.

    Returns:
        The score; None if a label is in none of the classes, or is not a number in regression.
    """
    if classes is None:
        from sklearn.metrics import r2_score  # it takes a second to import

        known = y.dtype.kind in "biuf" and np.isfinite(predicted).all()
        return float(r2_score(y, predicted)) if known else None
    labels = {value_of(str(label)): label for label in classes}  # files write 1 in different ways
    rest = classes[0] if classes[0] == f"not {classes[1]}" else None
    truth = [labels.get(value_of(str(label)), rest) for label in y.tolist()]
    return None if None in truth else float(np.mean([a == b for a, b in zip(predicted.tolist(), truth, strict=True)]))


class Solution(NamedTuple):
    """The solution at one C."""

    row: dict[str, Any]  # the entries of the report
    model: Model  # the model, with all that predictions of files need


def _solution(job: Job, C: float | None, statuses: Any, steps: Any, score: Any, model: Model, **more: Any) -> Solution:  # noqa: N803
    """Return a solution; C is None if nu stands in its place, and steps are those of all decision functions."""
    model = dataclasses.replace(model, classes=(-1, 1) if job.metric == "inside" else job.classes, **job.parts)
    status = min(map(Status, statuses), key=lambda status: status == Status.CONVERGED)  # the first failure
    used = np.atleast_2d(np.asarray(model.coef).T).any(axis=0)  # of each sample, by any decision function
    row = {
        "C": C, "status": status.name, "certified": status == Status.CONVERGED, **totals(model.certificate),
        "steps": int(np.sum(steps)), "support": int(used.sum()), **more,
        f"train_{job.metric}": None if score is None else float(score), f"test_{job.metric}": job.score(model),
    }  # fmt: skip
    return Solution(row, model)


def solved(job: Job, Cs: list[float]) -> dict[int, Solution]:
    """Solve the job at each C; return the solutions by index, but for those that Ctrl-C or the time limit left out."""
    with progress_bar(
        "fit" if len(Cs) == 1 else "path", len(Cs) if len(Cs) > 1 or job.takes_estimator else None
    ) as bar:
        return (by_estimator if job.takes_estimator else _of_one_problem)(job, Cs, bar)


def _of_one_problem(job: Job, Cs: list[float], bar: Callable[..., Any] | None) -> dict[int, Solution]:
    def draw(*given: Any) -> None:  # of a path the place, then the fit
        note = f"gap {float(given[-1].certificate.relative_gap):.2g}, {int(given[-1].steps)} steps"
        bar(advance=len(given) - 1, note=note)  # pyright: ignore[reportOptionalCall]

    problem, options = _problem(job, Cs[0]), {"tol": job.options.tol, "max_seconds": job.options.max_seconds}
    options |= {"key": jax.random.key(job.options.seed), "callback": None if bar is None else draw}
    if len(Cs) > 1:
        fits = jax.tree.map(np.asarray, jaxsvm.solve_path(problem, Cs, **options).fits)  # slices are not compiled
        reached = ~np.isinf(fits.certificate.relative_gap) | (fits.status.code != Status.INTERRUPTED)
    else:
        fits, reached = jax.tree.map(lambda leaf: np.asarray(leaf)[None], jaxsvm.fit(problem, **options)), [True]
    solutions = {}
    for place in np.flatnonzero(reached).tolist():
        fitted = jax.tree.map(lambda leaf, at=place: leaf[at], fits)
        margins = np.asarray(fitted.margins)
        if job.classes is None:
            score = score_of(margins[: len(job.y)], job.y, None)  # of the upper side, whose sign is +1
        else:
            score = np.average(is_right(margins, np.asarray(problem.y)), weights=job.weight)
        model = compact(fitted, problem)
        solutions[place] = _solution(job, Cs[place], [int(fitted.status)], fitted.steps, score, model)
    return solutions


def _problem(job: Job, C: float) -> Any:
    """Build the problem at a C."""
    gram = jaxsvm.gram(job.kernel, job.x)
    if job.classes is None:
        return jaxsvm.svr_problem(gram, job.y, C, epsilon=job.epsilon)
    y, weight = np.where(job.y > 0, 1, -1).astype(job.options.dtype), job.weight
    if job.factors is not None:
        weight = job.factors[job.y] * (1 if weight is None else weight)
    weight = None if weight is None else weight.astype(y.dtype)
    if job.options.loss == "hinge":
        return jaxsvm.hinge_problem(gram, y, C, bias="free", sample_weight=weight)
    return jaxsvm.svm_problem(gram, y, C, sample_weight=weight)


def by_estimator(job: Job, Cs: list[float], bar: Callable[..., Any] | None, **parameters: Any) -> dict[int, Solution]:
    """Solve the job at each C by its estimator, with these parameters."""
    solutions: dict[int, Solution] = {}
    one_class, named = job.metric == "inside", "C" if job.options.nu is None else f"--nu is {job.options.nu}"
    with errors_of(named), watching(), suppress(KeyboardInterrupt):
        for place, C in until_halt(enumerate(Cs)):
            machines = estimator(job, C, **parameters).fit(job.x, job.y, sample_weight=job.weight)
            score = np.mean(machines.predict(job.x) > 0) if one_class else machines.score(job.x, job.y)
            found = {"epsilon": float(machines.epsilon_)} if hasattr(machines, "epsilon_") else {}
            shown, steps, model = C if hasattr(machines, "C") else None, machines.n_iter_, model_of(machines)
            solutions[place] = _solution(job, shown, machines._statuses, steps, score, model, **found)
            if bar is not None:
                bar(advance=1, note=f"C {C:.4g}, gap {solutions[place].row['relative_gap']:.2g}")
    return solutions


def estimator(job: Job, C: float, **more: Any) -> Any:
    """Return the estimator of a job at a C.

    The squared hinge counts `C / 2` of each square in the command, and its bias is regularised; the estimators count C,
    as scikit-learn does.
    """
    from jaxsvm import estimators  # scikit-learn takes a second to import

    options, (kernel, parameters) = job.options, scikit_learn_kernel(job.kernel)
    more |= {"kernel": kernel, **parameters, "tol": options.tol}
    if options.loss == "one_class" or options.nu is not None:
        more["nu"] = 0.5 if options.nu is None else options.nu
    if options.loss == "one_class":
        return estimators.OneClassSVM(**more)
    if options.loss == "epsilon_insensitive":
        return estimators.NuSVR(C=C, **more) if options.nu else estimators.SVR(C=C, epsilon=job.epsilon, **more)
    more["class_weight"] = None if job.factors is None else dict(enumerate(job.factors.tolist()))
    if options.nu is not None:
        return estimators.NuSVC(**more)
    if options.loss == "hinge":
        return estimators.SVC(C=C, **more)
    return estimators.SVC(C=C / 2, loss="squared_hinge", bias="regularized", **more)


def scores_of_folds(job: Job, Cs: list[float], folds: int) -> Scores:
    """Score each C on the samples that folds leave out."""
    y, seed = job.y, job.options.seed
    if job.metric == "accuracy" and not job.takes_estimator:
        with progress_bar("folds"):
            return jaxsvm.cross_validate(_problem(job, 1.0), Cs, folds, seed=seed, tol=job.options.tol)
    from sklearn.model_selection import KFold, cross_val_score

    splits: Any = KFold(folds, shuffle=True, random_state=seed)
    if job.classes is not None:
        splits = [tuple(map(np.flatnonzero, fold)) for fold in fold_masks(y, folds, None, seed)]
    scores = np.full((folds, len(Cs)), np.nan)
    with progress_bar("folds", len(Cs)) as bar, errors_of("--folds"), watching() as stop, suppress(KeyboardInterrupt):
        for place, C in until_halt(enumerate(Cs)):
            found = cross_val_score(estimator(job, C), job.x, y, cv=splits, error_score="raise")  # pyright: ignore
            stop.check()  # an interrupted fit scores nothing
            scores[:, place] = found
            if bar is not None:
                bar(advance=1, note=f"C {C:.4g}")
    return Scores(np.asarray(Cs), scores)
