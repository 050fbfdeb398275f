"""Fit certified linear SVMs to the rows of a design, wherever they are: one solver, passes over the rows.

rows = jaxsvm.designs.from_files("part-*.parquet", label="class")
fit = jaxsvm.designs.fit(rows, C=1.0)
path = jaxsvm.designs.fit(rows, C=np.geomspace(1e-3, 10, 32))         # one set of passes for all values
scores = jaxsvm.designs.cross_validate(rows, np.geomspace(1e-3, 10, 8), folds=5)
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from numpy.typing import ArrayLike

from jaxsvm.datasets.labels import Layout, array_of
from jaxsvm.datasets.scaling import Scaling
from jaxsvm.designs.contract import Design, require_design
from jaxsvm.designs.descent import Lane, Machine, Run
from jaxsvm.designs.features import applied
from jaxsvm.designs.losses import LOSSES, Evaluate, Missed
from jaxsvm.designs.measured import MEASURED
from jaxsvm.errors import ConvergenceWarning, DataError, InputError, require, require_finite, warn
from jaxsvm.gram.basis import KernelBasis
from jaxsvm.kernels import Linear
from jaxsvm.loop.interruption import Interruption, answering, run_passes
from jaxsvm.model_selection.cross_validation import Scores, r2
from jaxsvm.models.model import Model, in_order
from jaxsvm.numerics.hinge_program import ROUNDED
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.points.rows import PointsLike
from jaxsvm.results.fit import Certificate, Status, StatusCode
from jaxsvm.results.judge import verdict
from jaxsvm.runtime.arrays import checked, require_one_of, require_positive, require_seconds, require_whole, transfers
from jaxsvm.runtime.files import require_writable, write_arrays


def saved(run: Run, path: str | os.PathLike[str] | None) -> None:
    """Write the state of a run, whole or not at all; of several processes the first writes."""
    if path is None or jax.process_index() > 0:
        return
    kept = json.dumps(_description(run) | {"passes": run.passes, "centre": run.centre})
    arrays: dict[str, Any] = {"run": kept, "described": run.described}
    for k, lane in enumerate(run.lanes):
        arrays |= {f"{k}.{field.name}": getattr(lane, field.name) for field in dataclasses.fields(Lane)}
    write_arrays(path, arrays)


def restored(run: Run, path: str | os.PathLike[str] | None) -> bool:
    """Restore the state of a run if its file exists, after a pass that compares the rows; return whether it did.

    Raises:
        InputError: If the file is of a run with other arguments or rows.
        DataError: If it is no such file.
    """
    if path is None or not os.path.exists(path):
        return False
    name, arrays = os.fspath(path), read_arrays(path, "state of a run")
    try:
        kept, described = json.loads(str(arrays["run"])), arrays["described"]
        lanes = [_lane(arrays, k) for k in range(len(run.machines))]
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{name}: not a whole state of a run ({error}).") from error
    wanted = _description(run)
    other = [key for key in wanted if kept.get(key) != wanted[key]]
    if not other:
        run.describe()
        same = np.allclose(run.described, described, rtol=ROUNDED, atol=ROUNDED * np.abs(described).max())
        other = [] if same else ["sums over the rows"]
    wrong = f"it is of another run ({', '.join(other)} differ); remove it or name another file."
    require(not other, f"checkpoint is {name!r}: {wrong}")
    run.lanes, run.passes, run.centre = lanes, run.passes + kept["passes"], kept["centre"]
    return True


def read_arrays(path: str | os.PathLike[str], what: str) -> dict[str, np.ndarray]:
    """Read the arrays of an npz file, or say what it is not.

    Raises:
        DataError: If the file is damaged or something else.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except Exception as error:  # EOF, CRC, a bad header: damage shows in many ways
        raise DataError(f"{os.fspath(path)}: not a whole {what} ({error}).") from error


def _lane(arrays: dict[str, np.ndarray], k: int) -> Lane:
    values: dict[str, Any] = {field.name: arrays[f"{k}.{field.name}"] for field in dataclasses.fields(Lane)}
    return Lane(**{name: value if value.ndim else value.item() for name, value in values.items()})


def _description(run: Run) -> dict[str, Any]:
    """Return what a run must share with the one that it resumes, as JSON values."""
    return {
        "rows": run.design.n,
        "features": run.design.d,
        "classes": None if run.design.classes is None else [str(label) for label in run.design.classes],
        "loss": [run.evaluate.loss, run.evaluate.folds, float(run.epsilon)],
        "bias": run.bias,
        "tol": run.tol,
        "machines": [list(machine) for machine in run.machines],
    }


BIASES = ("regularized", "none", "free")
ADVICE = {
    Status.MAX_STEPS: "Allow more passes (`max_passes=`), loosen tol, or scale the columns (`standardised`).",
    Status.STALLED: "Rounding permits no smaller gap: scale the columns (`standardised`), or take a smaller C or a "
    "larger tol.",
    Status.INTERRUPTED: "Time was up, or Ctrl-C came: `fit(init=)` goes on from a fit.",
}


@dataclasses.dataclass(frozen=True, eq=False)
class DesignFit:
    """Certified linear SVMs, as NumPy arrays of float64; leading axes: the values of C, if several, and the classes.

    Attributes:
        coef: Coefficients of the design's features, `(..., d)`; `unscaled()` has those of the columns.
        intercept: Constants, `(...)`.
        certificate: Primal, dual and relative gap of `w'w / 2 + sum C loss`, `(...)` each.
        status: How each fit ended, `(...)`; prints as counts. `.name`: names; `.code`: integers of `Status`.
        passes: Number of passes over the rows, of all machines together.
        seconds: Duration.
        C: The factors of the loss, `(...)`.
        classes: The labels, or None for regression. Of two, the second is on the positive side; of more, each against
            the rest.
        features: The maps from columns of new points to features.
        layout: The columns of the files, in whose order those of a frame are put; or None.
    """

    coef: np.ndarray
    intercept: np.ndarray
    certificate: Certificate
    status: StatusCode
    passes: int
    seconds: float
    C: np.ndarray
    classes: tuple[Any, ...] | None
    features: tuple[Any, ...] = ()
    layout: Layout | None = None

    @checked
    def decision_function(self, x: PointsLike) -> np.ndarray:
        """Return decision values, `(m, ...)`, of points with the columns of the rows, dense or sparse, `(m, d)`.

        Raises:
            InputError: On points of another width.
        """
        x = in_order(self.layout, None, x)
        points: Any = applied(self.features, x) if self.features or isinstance(x, jax.Array) else x
        width = self.coef.shape[-1]
        if np.ndim(points) != 2 or np.shape(points)[1] != width:
            raise InputError(f"x has shape {np.shape(points)}: points of {width} features, (m, {width}), are needed.")
        values = points @ self.coef.reshape(-1, width).T + self.intercept.ravel()
        return np.asarray(values).reshape(len(values), *self.coef.shape[:-1])

    def predict(self, x: PointsLike) -> np.ndarray:
        """Return labels of new points, or values of regression: `(m,)`, with an axis more for several C.

        Raises:
            InputError: On points of another width, or with NaN.
        """
        values = self.decision_function(x)
        unknown = np.isnan(values).reshape(len(values), self.intercept.size).any(axis=1)
        if unknown.any():
            raise InputError(f"x has {unknown.sum()} point(s) with NaN, the first in row {unknown.argmax()}.")
        if self.classes is None:
            return values
        if len(self.classes) == 2:
            return array_of(self.classes)[(values >= 0).astype(int)]
        return array_of(self.classes)[values.argmax(axis=-1)]

    def unscaled(self) -> DesignFit:
        """Return the same functions of the columns themselves, for a design with scaled columns (`standardised`).

        Raises:
            InputError: If features are other functions of the columns.
        """
        coef, intercept = self.coef, self.intercept
        for scaling in reversed(self.features):
            if not isinstance(scaling, Scaling):
                raise InputError(f"features are {type(scaling).__name__}: coefficients of columns do not exist.")
            coef = coef * np.asarray(scaling.factor)
            intercept = intercept - coef @ np.asarray(scaling.offset)
        return dataclasses.replace(self, coef=coef, intercept=intercept, features=())

    @transfers
    def model(self) -> Model:
        """Return the decision function of one machine as a model: saved, loaded and exported like others.

        Raises:
            InputError: If there are several machines, or more maps than one scaling and one set of features.
        """
        scaling = self.features[0] if self.features and isinstance(self.features[0], Scaling) else None
        rest = self.features[scaling is not None :]
        if self.coef.ndim != 1 or len(rest) > 1 or any(isinstance(map, Scaling) for map in rest):
            raise InputError(
                f"coef has shape {self.coef.shape}, and there are {len(self.features)} maps of columns: a model holds "
                "one machine, behind a scaling and features of one kernel; fit one C and two classes."
            )
        with jax.enable_x64(True):
            along: Any = KernelBasis(Linear(), self.coef[None], np.zeros(len(self.coef)))  # pyright: ignore
            basis, coef = (rest[0], self.coef) if rest else (along, np.ones(1))
            parts = (basis, coef, self.intercept, np.ones(()), self.certificate, scaling)
            return Model(*jax.tree.map(jnp.asarray, parts), classes=self.classes, layout=self.layout)

    def __repr__(self) -> str:
        gap = float(np.max(self.certificate.relative_gap))
        names = sorted({Status(int(code)).name for code in np.ravel(self.status.code)})
        many = "" if self.status.code.ndim == 0 else f"{self.status.code.size} machines, "
        return (
            f"DesignFit({many}{'/'.join(names)}, gap {gap:.1e}, {self.coef.shape[-1]} features, {self.passes} passes)"
        )


@transfers
def fit(
    design: Design, C: ArrayLike = 1.0, *, loss: str = "hinge", bias: str = "regularized", epsilon: float | None = None,
    tol: float = 1e-4, max_passes: int = 100, max_seconds: float | None = None, init: DesignFit | None = None,
    checkpoint: str | os.PathLike[str] | None = None, callback: Callable[[int, np.ndarray], object] | None = None,
    interrupt: str = "return",
) -> DesignFit:  # fmt: skip
    """Fit linear SVMs: of two classes, of each class against the rest, or of targets; for one or several values of C.

    It minimises `w'w / 2 + C sum weight loss`. The loss is the hinge, half of the squared hinge, or the
    epsilon-insensitive loss. All values and classes share the passes over the rows. `jaxsvm.designs.descent` describes
    the method.

    Args:
        design: The rows: `from_arrays`, `from_files`, `from_dask`, `jaxsvm.relational.design`, or any `Design`.
        C: Factor of the loss, > 0, or several, `(k,)`.
        loss: "hinge" or "squared_hinge" for classes, "epsilon_insensitive" for targets.
        bias: "regularized" (a feature of value 1), "none" or "free".
        epsilon: Half-width of the tube of regression, >= 0; None: 0.1.
        tol: The certified relative gap at which a machine ends.
        max_passes: The most passes over the rows, of all machines together.
        max_seconds: Begin no further pass after so many seconds.
        init: A fit of as many machines, to start from.
        checkpoint: A file for the state after each pass. If it exists the run resumes from it, wherever the rows are
            now; it is removed at the end.
        callback: Called after each pass with the number of passes and the relative gaps, `(machines,)`; it ends the
            fit by returning True.
        interrupt: "return" returns what is certified at Ctrl-C, "raise" raises.

    Returns:
        The fit, with a warning (`ConvergenceWarning`) if a machine is not certified to `tol`.
    """
    values = _values(C)
    _check(design, loss, bias, epsilon, tol, max_passes, max_seconds)
    positive = _positive(design)
    machines = [Machine(float(value), k) for value in values.ravel() for k in positive]
    run = Run(design, Evaluate(loss), machines, bias, 0.1 if epsilon is None else epsilon, tol)
    started = time.monotonic()
    codes = run_to_end(run, init, max_passes, max_seconds, checkpoint, callback, interrupt)
    shape = values.shape + ((len(positive),) if len(positive) > 1 else ())
    best = np.stack([run.best(k) for k in range(len(machines))]).reshape(*shape, -1)
    each = [run.certificate(k) for k in range(len(machines))]
    certificate: Any = Certificate(*(np.reshape(np.asarray(part, float), shape) for part in zip(*each, strict=True)))  # pyright: ignore
    factors, seconds = np.asarray([machine.C for machine in machines]).reshape(shape), time.monotonic() - started
    code: Any = np.asarray(codes, np.int32).reshape(shape)
    _warn(codes, certificate.relative_gap)
    ended, w, b, layout = StatusCode(code), best[..., :-1], best[..., -1], getattr(design, "layout", None)
    return DesignFit(w, b, certificate, ended, run.passes, seconds, factors, design.classes, design.features, layout)


@transfers
def cross_validate(
    design: Design, Cs: ArrayLike, folds: int = 5, *, loss: str = "hinge", bias: str = "regularized",
    epsilon: float | None = None, tol: float = 1e-3, max_passes: int = 100, max_seconds: float | None = None,
    callback: Callable[[int, np.ndarray], object] | None = None, interrupt: str = "return",
) -> Scores:  # fmt: skip
    """Score values of C on folds of the rows, with the passes of all folds and values shared.

    Row i is held out in fold `i % folds`, of two or more. Scores are weighted accuracies, of several classes those of
    the largest decision value, or R2 of targets, as in `jaxsvm.cross_validate`. They take one more pass, after Ctrl-C
    too. All other arguments are those of `fit`.

    Returns:
        The scores, `(folds, k)`: `scores.C` is the best value. A machine that is not certified is warned of.
    """
    values = _values(Cs).ravel()
    require_whole("folds", folds, 2)
    _check(design, loss, bias, epsilon, tol, max_passes, max_seconds)
    machines = [Machine(float(C), k, fold) for fold in range(folds) for C in values for k in _positive(design)]
    run = Run(design, Evaluate(loss, folds), machines, bias, 0.1 if epsilon is None else epsilon, tol)
    codes = run_to_end(run, None, max_passes, max_seconds, None, callback, interrupt)
    _warn(codes, [run.certificate(k).relative_gap for k in range(len(machines))])
    w, mean = np.stack([lane.best for lane in run.lanes]).reshape(folds, -1, design.d + 1), np.zeros(0)
    if design.classes is None:  # the mean of a fold's own targets is scored as one more value
        mean = run.described[-2 * folds :: 2] / run.described[:folds]
        w = np.append(w, np.pad(mean[:, None, None] - run.centre, ((0, 0), (0, 0), (design.d, 0))), axis=1)
    points = run.points([0])._replace(w=w.reshape(-1, design.d + 1))
    missed, weight = design.total(Missed(run.evaluate, len(values) + (design.classes is None)), points)
    if design.classes is not None:
        return Scores(values, 1 - missed / weight[:, None])
    equal = np.flatnonzero(~(missed[:, -1] > weight * (1e-12 * mean) ** 2))  # but for rounding of the mean
    if len(equal):
        raise InputError(f"folds: R2 needs two targets that differ; fold {equal[0]} holds out none: use fewer folds.")
    return Scores(values, r2(missed[:, :-1], missed[:, -1:]))


def run_to_end(
    run: Run, init: DesignFit | None, max_passes: int, max_seconds: float | None,
    checkpoint: str | os.PathLike[str] | None, callback: Callable[[int, np.ndarray], object] | None, interrupt: str,
) -> list[Status]:  # fmt: skip
    """Make passes until all machines have ended; return how each did."""
    deadline = math.inf if max_seconds is None else time.monotonic() + max_seconds
    require_writable("checkpoint", None if jax.process_index() else checkpoint)
    with answering(interrupt) as stop:
        if not restored(run, checkpoint):
            run.begin(_points(run, init))

        def after() -> None:
            saved(run, checkpoint)
            gaps = np.asarray([run.certificate(k).relative_gap for k in range(len(run.lanes))])
            if callback is not None and callback(run.passes, gaps):
                stop.came = True

        run_passes(run, lambda: run.passes >= max_passes or over(run.design, stop, deadline), stop, after)
        ended = over(run.design, stop, deadline)
        if not run.going and checkpoint is not None and jax.process_index() == 0 and os.path.exists(checkpoint):
            os.unlink(checkpoint)

    def code(k: int) -> Status:
        stalled, finite = run.lanes[k].idle > MEASURED.idle_passes, bool(np.isfinite(run.best(k)).all())
        status = Status.STALLED if stalled else Status.INTERRUPTED if ended else Status.MAX_STEPS
        return Status(int(verdict(run.certificate(k), run.tol, finite=finite, definite=True, otherwise=status)))

    return [code(k) for k in range(len(run.lanes))]


def over(design: Design, stop: Interruption, deadline: float) -> bool:
    """Return whether to stop, in any of the processes that compute together: the others would wait for its sums."""
    over = stop.seen or time.monotonic() > deadline
    return bool(multihost_utils.process_allgather(np.asarray(over)).any()) if design.together else over


def _positive(design: Design) -> list[int]:
    """Return the numbers of the classes that are each fitted against the rest; of two classes the second."""
    return [1] if design.classes is None or len(design.classes) == 2 else list(range(len(design.classes)))


def _points(run: Run, init: DesignFit | None) -> np.ndarray | None:
    if init is None:
        return None
    points = np.concatenate([init.coef, init.intercept[..., None]], axis=-1).reshape(-1, init.coef.shape[-1] + 1)
    shape = (len(run.machines), run.design.d + 1)
    has, need = (f"{many} machines of {p - 1} features" for many, p in (points.shape, shape))
    require(has == need, f"init has {has}: {need} are needed.")
    require_finite("init", points)
    return points


def _values(C: Any) -> np.ndarray:
    values = np.asarray(C, float)
    if values.ndim > 1 or not values.size or not (np.isfinite(values) & (values > 0)).all():
        raise InputError(f"C is {C!r}: one positive finite number is needed, or several, (k,).")
    return values


def _check(design: Any, loss: str, bias: str, epsilon: Any, tol: Any, max_passes: Any, max_seconds: Any) -> None:
    """Refuse arguments that cannot be used."""
    require_design(design)
    require_one_of("loss", loss, LOSSES)
    require_one_of("bias", bias, BIASES)
    require_positive("tol", tol)
    require_whole("max_passes", max_passes, 1)
    require_seconds(max_seconds)
    targets = design.classes is None
    if targets != (loss == "epsilon_insensitive"):
        has = "targets of regression" if targets else f"the classes {design.classes[:6]}"
        raise InputError(
            f"loss is {loss!r}, and the rows have {has}; targets and the epsilon-insensitive loss go together."
        )
    usable = epsilon is None or (targets and np.ndim(epsilon) == 0 and 0 <= float(epsilon) < np.inf)
    require(usable, f"epsilon is {epsilon!r}, loss {loss!r}: a number >= 0 is needed, for 'epsilon_insensitive' alone.")
    if design.d >= SIZES.largest_direct_system:
        raise InputError(
            f"design has {design.d} features: {SIZES.largest_direct_system - 1} at most are taken; take fewer, or "
            "`jaxsvm.Pegasos` for many sparse ones."
        )


def _warn(codes: list[Status], gaps: Any) -> None:
    failed = [code for code in codes if code != Status.CONVERGED]
    if failed:
        ended = f"ended as {failed[0].name}, with a gap of up to {np.max(gaps):.2g}. {ADVICE[failed[0]]}"
        warn(f"{len(failed)} of {len(codes)} fits {ended}", ConvergenceWarning)
