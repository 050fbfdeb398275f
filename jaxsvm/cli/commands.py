"""The commands themselves: fit, path, predict and info."""

import functools
import math
import sys
import time
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import jax
import numpy as np
import typer

import jaxsvm
from jaxsvm.cli.inspection import describe_data, describe_model, is_model, truth_of
from jaxsvm.cli.job import Job, accuracy_of, choose, prepare, solve_path, solver_of
from jaxsvm.cli.options import (
    PATH_SOLVERS,
    Coef0,
    Data,
    Degree,
    Dtype,
    Gamma,
    IndexBase,
    Json,
    Kernel,
    Label,
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
    label_of,
    penalties,
    place_to_save,
    zero_based,
)
from jaxsvm.cli.progress import gap_bar
from jaxsvm.cli.report import (
    BAD_INPUT,
    INTERRUPTED,
    complain,
    finish,
    print_json,
    print_lines,
    require_stdout,
    row_of,
    show,
    write_predictions,
)
from jaxsvm.cli.system import Interrupts, check_writable, save
from jaxsvm.datasets import load
from jaxsvm.errors import ConvergenceWarning, InputError
from jaxsvm.model import decision_function, is_positive
from jaxsvm.model_file import load_model

app = typer.Typer(
    name="jaxsvm",
    help="Support vector machines whose answers carry a proof of quality.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

OPTIMISTIC = (
    "The test accuracy at the chosen C is optimistic: C was chosen for it, on these same samples. "
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
    C: Annotated[float, typer.Option("--C", help="The penalty.")] = 1.0,
    tol: Tol = 1e-4,
    solver: Solver = "smo",
    max_steps: MaxSteps = 1_000_000,
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
    """Fit one SVM and certify it."""
    check_common(kernel, solver, scale, dtype, tol, test_fraction, max_steps, max_seconds, seed)
    check_kernel_options(kernel, gamma=gamma, degree=degree, coef0=coef0)
    if not (math.isfinite(C) and C > 0):
        raise InputError(f"--C is {C}: a positive number is needed.")
    check_writable(out, data)
    with jax.enable_x64(dtype == "float64"), Interrupts() as interrupts:
        job = prepare(
            data, label, index_base, positive, test_fraction, scale, seed, dtype, kernel, gamma, degree, coef0
        )
        configured = solver_of(solver, tol, max_steps)
        problem = jaxsvm.svm_problem(job.gram, job.signs, C)
        started = time.monotonic()
        with gap_bar(tol) as callback:
            fitted = jaxsvm.fit(
                problem, configured, key=jax.random.key(seed), max_seconds=max_seconds, callback=callback
            )
        seconds = time.monotonic() - started
        interrupts.armed = False
        out = _saved(out, job, fitted, problem)
        row = row_of(C, fitted, accuracy_of(fitted, problem, job)) | {"seconds": seconds}
    show(as_json, {"command": "fit", **job.description(), "solver": solver, "tol": tol, **row, "out": out})
    finish([fitted], interrupts.seen)


@_command
def path(
    data: Data,
    kernel: Kernel = "rbf",
    gamma: Gamma = None,
    degree: Degree = None,
    coef0: Coef0 = None,
    C: Annotated[
        str | None,
        typer.Option("--C", metavar="C1,C2,...", help="The penalties, instead of a grid.", show_default=False),
    ] = None,
    C_min: Annotated[float, typer.Option("--C-min", help="The least of the logarithmic grid.")] = 1e-2,
    C_max: Annotated[float, typer.Option("--C-max", help="The greatest.")] = 1e3,
    n_c: Annotated[int, typer.Option("--n-c", help="How many.")] = 16,
    save_C: Annotated[
        float | None,
        typer.Option("--save-C", help="Which penalty's model goes to --out; else the best by test accuracy."),
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
    as_json: Json = False,
) -> None:
    """Fit one SVM for every C of a grid, each certified, from one kernel matrix."""
    if max_steps is not None and solver == "auto":
        raise InputError("--max-steps is for a named solver: add --solver smo, say.")
    steps = 1_000_000 if max_steps is None else max_steps
    check_common(kernel, solver, scale, dtype, tol, test_fraction, steps, max_seconds, seed, PATH_SOLVERS)
    check_kernel_options(kernel, gamma=gamma, degree=degree, coef0=coef0)
    Cs = penalties(C, C_min, C_max, n_c)
    saved = place_to_save(Cs, save_C, out, test_fraction)
    check_writable(out, data)
    with jax.enable_x64(dtype == "float64"), Interrupts() as interrupts:
        job = prepare(
            data, label, index_base, positive, test_fraction, scale, seed, dtype, kernel, gamma, degree, coef0
        )
        started = time.monotonic()
        fits = solve_path(job, Cs, solver_of(solver, tol, steps), tol, seed, max_seconds)
        total = time.monotonic() - started
        interrupts.armed = False
        if not fits and interrupts.seen:
            raise KeyboardInterrupt
        problems = {place: jaxsvm.svm_problem(job.gram, job.signs, Cs[place]) for place in fits}
        scores = {place: accuracy_of(fits[place], problems[place], job) for place in fits}
        rows = {place: row_of(Cs[place], fits[place], scores[place]) for place in sorted(fits)}
        by_accuracy = saved is None and job.test is not None
        chosen = choose(rows, fits) if by_accuracy else saved
        if chosen is not None and chosen not in fits:
            complain(f"C = {Cs[chosen]:g} was not reached{'' if out is None else ': no model is written'}.")
            chosen = out = None
        if chosen is not None:
            out = _saved(out, job, fits[chosen], problems[chosen])
    report = {"command": "path", **job.description(), "solver": solver, "tol": tol}
    report |= {"path": list(rows.values()), "not_reached": [C for place, C in enumerate(Cs) if place not in fits]}
    report |= {"chosen_C": None if chosen is None else Cs[chosen], "seconds": total, "out": out}
    report |= {"note": OPTIMISTIC if by_accuracy and len(fits) > 1 else None}
    show(as_json, report)
    finish(list(fits.values()), interrupts.seen, complete=len(fits) == len(Cs))


def _saved(out: str | None, job: Job, fitted: jaxsvm.Fit, problem: Any) -> str | None:
    """Write the model, and say where; None where none is asked for, or there is none to write."""
    if out is not None and not all(np.isfinite(part).all() for part in (fitted.dual_coef, fitted.bias, fitted.R)):
        complain("its numbers are not finite: no model is written.")
        return None
    if out is not None and np.isinf(fitted.certificate.relative_gap) and not np.asarray(fitted.dual_coef).any():
        complain("it ended before anything was certified: no model is written.")
        return None
    save(out, lambda target: job.model_of(fitted, problem).save(target))
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
        labels = np.asarray(jaxsvm.predict(loaded, dataset.x)).tolist()
    truth = None if dataset.y is None else truth_of(dataset.y, loaded.classes)
    accuracy = None if truth is None else float(np.mean(is_positive(values) == truth))
    save(out, lambda target: write_predictions(target, labels, values.tolist()))
    if as_json:
        report = {"command": "predict", "model": model, "data": data, "n": len(labels), "accuracy": accuracy}
        print_json(report | {"labels": labels, "decision": values.tolist(), "notes": list(dataset.notes), "out": out})
        return
    if out is None:
        print_lines(labels)
    if accuracy is not None:
        known = f", accuracy {accuracy:.4f}"
    elif dataset.y is not None:
        known = ", accuracy unknown (DATA has other labels)"
    else:
        known = "" if unlabelled else f", no labels: DATA has the model's {dataset.x.shape[1]} columns only"
    typer.echo("\n".join([f"{len(labels)} points{known}", *dataset.notes]), err=True)


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
