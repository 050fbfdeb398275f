"""The commands themselves: fit, path, predict and info."""

import functools
import math
import sys
import time
import warnings
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer

import jaxsvm
from jaxsvm.cli import single
from jaxsvm.cli.inspection import describe_data, describe_model, is_model
from jaxsvm.cli.job import Job, chosen_place, prepare, score_of
from jaxsvm.cli.options import (
    PATH_SOLVERS,
    Coef0,
    Data,
    Degree,
    Dtype,
    Epsilon,
    Gamma,
    IndexBase,
    Json,
    Kernel,
    Label,
    Loss,
    MaxSeconds,
    MaxSteps,
    ModelOut,
    PathSolver,
    Positive,
    Scale,
    Seed,
    Solver,
    TestFraction,
    Tol,
    check_common,
    check_kernel_options,
    check_loss_options,
    label_of,
    penalties,
    place_to_save,
    zero_based,
)
from jaxsvm.cli.report.page import page_of
from jaxsvm.cli.report.text import (
    BAD_INPUT,
    INTERRUPTED,
    complain,
    finish,
    print_json,
    print_lines,
    require_stdout,
    show,
    write_predictions,
)
from jaxsvm.cli.system import Interrupts, check_writable, save
from jaxsvm.datasets import load
from jaxsvm.errors import ConvergenceWarning, InputError
from jaxsvm.models.model import Model, decision_function, labels_of, load_model
from jaxsvm.plots.axes import figure_class

app = typer.Typer(
    name="jaxsvm",
    help="Support vector machines whose answers carry a proof of quality.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

MOST_STEPS = 1_000_000
"""Of one fit of a named solver."""

OPTIMISTIC = (
    "The test score at the chosen C is optimistic: C was chosen for it, on these same samples. "
    "Samples that took no part in the choice measure it honestly."
)


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Register a command whose bad input ends in one line and exit code 2."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # the report says the status
                require_stdout()
                function(*args, **kwargs)
        except InputError as error:
            complain(str(error))
            raise typer.Exit(BAD_INPUT) from None
        except KeyboardInterrupt:
            complain("interrupted before there was a result.")
            raise typer.Exit(INTERRUPTED) from None

    app.command(no_args_is_help=False)(guarded)
    return guarded


@_command
def fit(
    data: Data,
    kernel: Kernel = "rbf",
    gamma: Gamma = None,
    degree: Degree = None,
    coef0: Coef0 = None,
    loss: Loss = "squared_hinge",
    epsilon: Epsilon = None,
    C: Annotated[float, typer.Option("--C", help="The penalty.")] = 1.0,
    tol: Tol = 1e-4,
    solver: Solver = None,
    max_steps: MaxSteps = None,
    max_seconds: MaxSeconds = None,
    test_fraction: TestFraction = 0.0,
    scale: Scale = "none",
    positive: Positive = None,
    label: Label = None,
    index_base: IndexBase = "auto",
    seed: Seed = 0,
    dtype: Dtype = "float64",
    out: ModelOut = None,
    as_json: Json = False,
) -> None:
    """Fit one SVM and certify it: two classes, more of them (a machine a pair), or numbers."""
    check_loss_options(loss, epsilon, solver, max_steps)
    steps = MOST_STEPS if max_steps is None else max_steps
    check_common(kernel, solver or "smo", scale, dtype, tol, test_fraction, steps, max_seconds, seed)
    check_kernel_options(kernel, gamma=gamma, degree=degree, coef0=coef0)
    if not (math.isfinite(C) and C > 0):
        raise InputError(f"--C is {C}: a positive number is needed.")
    check_writable(out, data)
    with jax.enable_x64(dtype == "float64"), Interrupts() as interrupts:
        job = prepare(
            data, label, index_base, positive, test_fraction, scale, seed, dtype, kernel, gamma, degree, coef0, loss,
            epsilon,
        )  # fmt: skip
        started = time.monotonic()
        if job.several:
            _refuse_solver(job, solver, max_steps)
            from jaxsvm.cli import pairs  # with scikit-learn: a second that two classes need not wait for

            with interrupts.within(max_seconds):
                answer = pairs.fit_one(job, C, tol, interrupts)
        else:
            solver = solver or ("smo" if loss == "squared_hinge" else "auto")
            answer = single.fit_one(job, C, single.solver_of(solver, tol, steps), tol, seed, max_seconds)
        seconds = time.monotonic() - started
        interrupts.armed = False
        model = answer.model()
        out = _saved(out, model)
        row = answer.row(job.metric, job.score(model)) | {"seconds": seconds}
    report = {"command": "fit", **job.description(), "solver": solver or "auto", "tol": tol, **row, "out": out}
    report |= {"note": job.note}
    show(as_json, report)
    finish(answer.statuses, interrupts.seen)


@_command
def path(
    data: Data,
    kernel: Kernel = "rbf",
    gamma: Gamma = None,
    degree: Degree = None,
    coef0: Coef0 = None,
    loss: Loss = "squared_hinge",
    epsilon: Epsilon = None,
    C: Annotated[
        str | None,
        typer.Option("--C", metavar="C1,C2,...", help="The penalties, instead of a grid.", show_default=False),
    ] = None,
    C_min: Annotated[float, typer.Option("--C-min", help="The least of the logarithmic grid.")] = 1e-2,
    C_max: Annotated[float, typer.Option("--C-max", help="The greatest.")] = 1e3,
    n_c: Annotated[int, typer.Option("--n-c", help="How many.")] = 16,
    folds: Annotated[
        int | None,
        typer.Option("--folds", help="Choose C by cross-validation with so many folds.", show_default=False),
    ] = None,
    one_standard_error: Annotated[
        bool,
        typer.Option("--one-standard-error", help="With --folds: the smallest C within one of the best."),
    ] = False,
    save_C: Annotated[
        float | None,
        typer.Option("--save-C", help="Which penalty's model goes to --out; else the best by score."),
    ] = None,
    tol: Tol = 1e-4,
    solver: PathSolver = "auto",
    max_steps: Annotated[
        int | None,
        typer.Option("--max-steps", help="Cap on the steps of one fit of a named solver.", show_default=False),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option("--max-seconds", help="Begin no further value of C after so many seconds.", show_default=False),
    ] = None,
    test_fraction: TestFraction = 0.0,
    scale: Scale = "none",
    positive: Positive = None,
    label: Label = None,
    index_base: IndexBase = "auto",
    seed: Seed = 0,
    dtype: Dtype = "float64",
    out: ModelOut = None,
    report_file: Annotated[
        str | None,
        typer.Option("--report", metavar="FILE", help="Where to write an HTML page of it all.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit one SVM for every C of a grid, each certified, from one kernel matrix; choose C by folds if asked to."""
    if max_steps is not None and solver == "auto":
        raise InputError("--max-steps is for a named solver: add --solver smo, say.")
    steps, named = MOST_STEPS if max_steps is None else max_steps, None if solver == "auto" else solver
    check_loss_options(loss, epsilon, named, max_steps)
    check_common(kernel, solver, scale, dtype, tol, test_fraction, steps, max_seconds, seed, PATH_SOLVERS)
    check_kernel_options(kernel, gamma=gamma, degree=degree, coef0=coef0)
    if one_standard_error and folds is None:
        raise InputError("--one-standard-error is for --folds: add --folds 5, say.")
    Cs = penalties(C, C_min, C_max, n_c)
    saved = place_to_save(Cs, save_C, out, test_fraction, folds)
    check_writable(out, data)
    check_writable(report_file, data, *filter(None, [out]), option="--report")
    if report_file is not None:
        figure_class()  # before the work
    with jax.enable_x64(dtype == "float64"), Interrupts() as interrupts, interrupts.within(max_seconds):
        job = prepare(
            data, label, index_base, positive, test_fraction, scale, seed, dtype, kernel, gamma, degree, coef0, loss,
            epsilon,
        )  # fmt: skip
        started = time.monotonic()
        validated = None
        if job.several:
            _refuse_solver(job, named, max_steps)
            from jaxsvm.cli import pairs

            answers = pairs.fit_path(job, Cs, tol, interrupts)
            if folds is not None:
                validated = pairs.folds_of(job, Cs, folds, tol, seed, interrupts)
        else:
            configured = single.solver_of(solver, tol, steps)
            answers = single.fit_path(job, Cs, configured, tol, seed, max_seconds)
            if folds is not None:
                validated = single.folds_of(job, Cs, configured, folds, tol, seed)
        total = time.monotonic() - started
        interrupts.armed = False
        if not answers and interrupts.came:
            raise KeyboardInterrupt
        models = {place: answers[place].model() for place in sorted(answers)} if job.test is not None else {}
        rows = {
            place: answers[place].row(job.metric, job.score(models[place]) if models else None)
            for place in sorted(answers)
        }
        if validated is not None:
            for place, row in rows.items():
                row[f"cv_{job.metric}"] = float(validated.mean[place])
                row["cv_standard_error"] = float(validated.standard_error[place])
        by_test = saved is None and validated is None and job.test is not None
        chosen = saved
        if saved is None and (by_test or validated is not None):
            chosen = chosen_place(rows, f"{'test' if by_test else 'cv'}_{job.metric}", one_standard_error)
        if chosen is not None and chosen not in answers:
            complain(f"C = {Cs[chosen]:g} was not reached{'' if out is None else ': no model is written'}.")
            chosen = None
        out = None if chosen is None else _saved(out, models.get(chosen) or answers[chosen].model())
    report = {"command": "path", **job.description(), "solver": solver, "tol": tol, "folds": folds}
    report |= {"path": list(rows.values()), "not_reached": [C for place, C in enumerate(Cs) if place not in answers]}
    report |= {"chosen_C": None if chosen is None else Cs[chosen], "seconds": total, "out": out}
    notes = [job.note, OPTIMISTIC if by_test and len(answers) > 1 else None]
    report |= {"note": " ".join(filter(None, notes)) or None}
    if report_file is not None:
        page = page_of(report, validated, Cs)
        save(report_file, lambda target: Path(target).write_text(page, encoding="utf-8"), "--report")
    show(as_json, report)
    finish([answer.status for answer in answers.values()], interrupts.came, complete=len(answers) == len(Cs))


def _refuse_solver(job: Job, solver: str | None, max_steps: int | None) -> None:
    """Pairs of classes are trained by the estimators' own solver."""
    for option, value in (("--solver", solver), ("--max-steps", max_steps)):
        if value is not None:
            raise InputError(
                f"{option} is {value}: it is for two classes, and {job.source} has {len(job.classes or ())}; leave it "
                "out, or choose one class against the rest with --positive."
            )


def _saved(out: str | None, model: Model) -> str | None:
    """Write the model, and say where; None where none is asked for, or there is none to write."""
    if out is not None and not all(np.isfinite(part).all() for part in (model.coef, model.bias, model.R)):
        complain("its numbers are not finite: no model is written.")
        return None
    if out is not None and np.isinf(model.certificate.relative_gap).all() and not np.asarray(model.coef).any():
        complain("it ended before anything was certified: no model is written.")
        return None
    save(out, model.save)
    return out


@_command
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model that fit or path wrote.", show_default=False)],
    data: Data,
    label: Label = None,
    unlabelled: Annotated[
        bool, typer.Option("--unlabelled", help="DATA has no labels: every column is a feature.")
    ] = False,
    index_base: IndexBase = "auto",
    part: Annotated[str, typer.Option("--part", metavar="train|test", help="Which part of an npz file.")] = "train",
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FILE", help="Where to write label,decision as CSV.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict labels of new points, one a line; the labels in DATA, where it has them, give the accuracy.

    Columns with names are put in the order of the training file; missing and other ones are refused. The labels are
    looked for in the column where the training file had them. A table with just the model's columns, or an npz file
    without y, has none. The labels that start the lines of a svmlight file are not looked at with --unlabelled; its
    indices count from where those of the training file did.
    """
    if unlabelled and label is not None:
        raise InputError(f"--label is {label!r}, and --unlabelled says that there are no labels: give one of the two.")
    check_writable(out, data, model)
    with jax.enable_x64(True):  # the model's own dtype is kept, whatever it is
        loaded = load_model(model)
        dataset = load(
            data,
            label=False if unlabelled else label_of(label),
            label_optional=not unlabelled,
            part=part,
            features=loaded.basis.columns,
            dtype=loaded.coef.dtype,
            zero_based=zero_based(index_base),
            like=loaded.layout,
        )
        values = np.asarray(decision_function(loaded, dataset.x))
        labels = labels_of(loaded, values).tolist()
    score = None if dataset.y is None else score_of(labels, dataset.y, loaded.classes)
    save(out, lambda target: write_predictions(target, labels, values.tolist(), _decision_columns(loaded.classes)))
    metric = "r2" if loaded.classes is None else "accuracy"
    if as_json:
        report = {"command": "predict", "model": model, "data": data, "n": len(labels), metric: score}
        print_json(report | {"labels": labels, "decision": values.tolist(), "notes": list(dataset.notes), "out": out})
        return
    if out is None:
        print_lines(labels)
    if score is not None:
        known = f", {metric} {score:.4f}"
    elif dataset.y is not None:
        known = f", {metric} unknown (DATA has other labels)"
    else:
        known = "" if unlabelled else f", no labels: DATA has the model's {dataset.x.shape[1]} columns only"
    typer.echo("\n".join([f"{len(labels)} points{known}", *dataset.notes]), err=True)


def _decision_columns(classes: tuple[Any, ...] | None) -> list[str]:
    """Names of decision values in a table: none in regression, where they are the labels."""
    if classes is None:
        return []
    return ["decision"] if len(classes) == 2 else [f"{one} | {other}" for one, other in combinations(classes, 2)]


@_command
def info(
    file: Annotated[str | None, typer.Argument(metavar="[MODEL|DATA]", help="A model or a data set.")] = None,
    label: Label = None,
    index_base: IndexBase = "auto",
    as_json: Json = False,
) -> None:
    """What is in a model or a data set, or what this installation runs on."""
    if file is None:
        report = {
            "jaxsvm": jaxsvm.__version__,
            "jax": jax.__version__,
            "python": sys.version.split()[0],
            "backend": jax.default_backend(),
            "devices": [str(device) for device in jax.devices()],
            "compilation_cache": getattr(jax.config, "jax_compilation_cache_dir", None),
        }
    elif is_model(file):
        with jax.enable_x64(True):
            report = describe_model(file, load_model(file))
    else:
        report = describe_data(file, load(file, label=label_of(label), zero_based=zero_based(index_base)))
    show(as_json, {"command": "info", **report})


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jaxsvm {jaxsvm.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    del version
