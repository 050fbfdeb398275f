"""Keep the state of a run in one file after each pass: a few vectors a machine, since rows keep no state."""

import dataclasses
import json
import os
from typing import Any

import jax
import numpy as np

from jaxsvm.designs.descent import Lane
from jaxsvm.designs.run import Run
from jaxsvm.errors import DataError, InputError
from jaxsvm.runtime.files import write_arrays

KEPT = ("weight", "centre")
"""Numbers of a run that its file keeps, beside that of its passes."""


def saved(run: Run, path: str | os.PathLike[str] | None) -> None:
    """Write the state of a run, whole or not at all; of several processes the first writes."""
    if path is None or jax.process_index() > 0:
        return
    arrays: dict[str, Any] = {
        "run": json.dumps(_description(run) | {name: getattr(run, name) for name in ("passes", *KEPT)})
    }
    arrays["described"] = run.described
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
    name = os.fspath(path)
    try:
        with np.load(name, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
        kept, described = json.loads(str(arrays["run"])), arrays["described"]
        lanes = [_lane(arrays, k) for k in range(len(run.machines))]
    except Exception as error:  # EOF, CRC, a missing key: damage shows in many ways
        raise DataError(f"checkpoint {name}: not a whole state of a run ({error}).") from error
    wanted = _description(run)
    other = [key for key in wanted if kept.get(key) != wanted[key]]
    if not other:
        run.describe()
        same = np.allclose(run.described, described, rtol=1e-9, atol=1e-9 * np.abs(described).max())
        other = [] if same else ["sums over the rows"]
    if other:
        raise InputError(
            f"checkpoint is {name!r}: it is of another run ({', '.join(other)} differ); remove it or name another file."
        )
    run.lanes, run.passes = lanes, run.passes + kept["passes"]
    run.weight, run.centre = (kept[name] for name in KEPT)
    return True


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
