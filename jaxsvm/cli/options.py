"""The options that commands share, and the checks of what was given for them."""

import math
from typing import Annotated

import numpy as np
import typer

from jaxsvm.errors import InputError

KERNEL_OPTIONS = {
    "linear": (),
    "rbf": ("gamma",),
    "polynomial": ("gamma", "degree", "coef0"),
    "laplacian": ("gamma",),
    "sigmoid": ("gamma", "coef0"),
}
"""The kernels, and the options that each of them uses."""

KERNELS = tuple(KERNEL_OPTIONS)
SOLVERS = ("smo", "pairwise", "away", "classic", "cvm")
PATH_SOLVERS = ("auto", *SOLVERS)
SCALINGS = ("none", "standardise", "min-max")
LOSSES = ("squared_hinge", "hinge", "epsilon_insensitive")
DTYPES = ("float32", "float64")


Data = Annotated[str, typer.Argument(metavar="DATA", help="A svmlight, CSV, npz or Parquet file.", show_default=False)]
Kernel = Annotated[str, typer.Option("--kernel", metavar="|".join(KERNELS), help="The kernel.")]
Gamma = Annotated[
    str | None,
    typer.Option(
        "--gamma",
        metavar="scale|median|paper|NUMBER",
        help="The kernel's width (scale by default); linear has none.",
        show_default=False,
    ),
]
Degree = Annotated[
    int | None, typer.Option("--degree", help="Of the polynomial kernel (3 by default).", show_default=False)
]
Coef0 = Annotated[
    float | None, typer.Option("--coef0", help="Of polynomial (1 by default) and sigmoid (0).", show_default=False)
]
Loss = Annotated[
    str,
    typer.Option(
        "--loss", metavar="|".join(LOSSES), help="What is minimised; the last one is regression on numeric labels."
    ),
]
Epsilon = Annotated[
    float | None,
    typer.Option("--epsilon", help="Half the width of the tube of regression (0.1 by default).", show_default=False),
]
Tol = Annotated[float, typer.Option("--tol", help="The relative duality gap to be certified.")]
Solver = Annotated[
    str | None,
    typer.Option(
        "--solver",
        metavar="|".join(SOLVERS),
        help="The solver (smo by default), for the squared hinge and two classes; others have their own.",
        show_default=False,
    ),
]
PathSolver = Annotated[
    str,
    typer.Option(
        "--solver", metavar="|".join(PATH_SOLVERS), help="The solver, for a chain of fits; auto: coarse to fine."
    ),
]
MaxSteps = Annotated[
    int | None,
    typer.Option("--max-steps", help="Cap on the steps of one fit, of the squared hinge.", show_default=False),
]
MaxSeconds = Annotated[
    float | None, typer.Option("--max-seconds", help="Stop after about so many seconds.", show_default=False)
]
TestFraction = Annotated[
    float, typer.Option("--test-fraction", help="Share of the samples held out (stratified) to measure the score.")
]
Scale = Annotated[
    str, typer.Option("--scale", metavar="|".join(SCALINGS), help="What to do to columns; kept in the model.")
]
Positive = Annotated[
    str | None, typer.Option("--positive", help="The label that is +1, against all others.", show_default=False)
]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        help="Column (name or index) or npz key of the labels; else the last column, or y.",
        show_default=False,
    ),
]
IndexBase = Annotated[
    str, typer.Option("--index-base", metavar="0|1|auto", help="What the indices of a svmlight file count from.")
]
Seed = Annotated[int, typer.Option("--seed", help="Of the split and of the solver's draws.")]
Dtype = Annotated[str, typer.Option("--dtype", metavar="|".join(DTYPES), help="What to compute in.")]
ModelOut = Annotated[
    str | None, typer.Option("--out", metavar="FILE", help="Where to write the model (.npz).", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Report as JSON on stdout, and nothing else there.")]


def check_common(
    kernel: str, solver: str, scale: str, dtype: str, tol: float, test_fraction: float, max_steps: int,
    max_seconds: float | None, seed: int, solvers: tuple[str, ...] = SOLVERS,
) -> None:  # fmt: skip
    """Refuse values that fit and path cannot use."""
    choices = (("--kernel", kernel, KERNELS), ("--solver", solver, solvers), ("--scale", scale, SCALINGS))
    for option, value, allowed in (*choices, ("--dtype", dtype, DTYPES)):
        if value not in allowed:
            raise InputError(f"{option} is {value!r}: one of {', '.join(allowed)} is needed.")
    if not (math.isfinite(tol) and tol > 0):
        raise InputError(f"--tol is {tol}: a positive relative gap is needed.")
    if not 0 <= test_fraction < 1:
        raise InputError(f"--test-fraction is {test_fraction}: at least 0 and less than 1 is needed.")
    if not 0 <= max_steps < 2**31:
        raise InputError(f"--max-steps is {max_steps}: from 0 to {2**31 - 1} is needed.")
    if max_seconds is not None and not max_seconds >= 0:
        raise InputError(f"--max-seconds is {max_seconds}: at least 0 is needed.")
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed is {seed}: from 0 to {2**32 - 1} is needed.")


def check_loss_options(loss: str, epsilon: float | None, solver: str | None, max_steps: int | None) -> None:
    """Refuse a loss that is none, and what was given (is not None) for another one."""
    if loss not in LOSSES:
        raise InputError(f"--loss is {loss!r}: one of {', '.join(LOSSES)} is needed.")
    if epsilon is not None and loss != "epsilon_insensitive":
        raise InputError(f"--epsilon is {epsilon}: it is for --loss epsilon_insensitive; leave it out.")
    if epsilon is not None and not (math.isfinite(epsilon) and epsilon >= 0):
        raise InputError(f"--epsilon is {epsilon}: at least 0 is needed.")
    for option, value in (("--solver", solver), ("--max-steps", max_steps)):
        if loss != "squared_hinge" and value is not None:
            raise InputError(f"{option} is {value}: it is for --loss squared_hinge; {loss} has its own solver.")


def check_kernel_options(kernel: str, **given: object) -> None:
    """Refuse an option that was given (is not None) and that the kernel does not use."""
    for name, value in given.items():
        if value is not None and name not in KERNEL_OPTIONS[kernel]:
            used = ", ".join(f"--{option}" for option in KERNEL_OPTIONS[kernel]) or "none"
            raise InputError(
                f"--{name} is {value}: the {kernel} kernel does not use it (it uses {used}); leave it out."
            )


def penalties(listed: str | None, least: float, greatest: float, count: int) -> list[float]:
    """The values of C, listed or from the logarithmic grid."""
    if listed is not None:
        try:
            Cs = [float(text) for text in listed.split(",")]
        except ValueError:
            raise InputError(f"--C is {listed!r}: numbers with commas between are needed, such as 0.1,1,10.") from None
        if not all(math.isfinite(C) and C > 0 for C in Cs):
            raise InputError(f"--C is {listed!r}: every value must be positive.")
        return Cs
    for option, value in (("--C-min", least), ("--C-max", greatest)):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{option} is {value}: a positive number is needed.")
    if least > greatest:
        raise InputError(f"--C-min is {least}: it must not exceed --C-max, {greatest}.")
    if count < 1:
        raise InputError(f"--n-c is {count}: at least 1 is needed.")
    return np.geomspace(least, greatest, count).tolist()


def place_to_save(
    Cs: list[float], save_C: float | None, out: str | None, test_fraction: float, folds: int | None
) -> int | None:
    """Which value's model is to be written; None where scores will say."""
    if folds is not None and folds < 2:
        raise InputError(f"--folds is {folds}: at least 2 are needed.")
    if save_C is not None:
        near = [place for place, C in enumerate(Cs) if math.isclose(C, save_C, rel_tol=1e-3)]
        if not near:
            raise InputError(f"--save-C is {save_C}: it is none of the values, {', '.join(f'{C:.6g}' for C in Cs)}.")
        return near[0]
    if len(Cs) == 1:
        return 0
    if out is not None and test_fraction == 0 and folds is None:
        raise InputError(
            "--out writes one model: say which with --save-C, or let scores choose with --folds 5 (or --test-fraction)."
        )
    return None


def label_of(label: str | None) -> str | int | None:
    """A column's index where the text is an integer."""
    try:
        return None if label is None else int(label)
    except ValueError:
        return label


def zero_based(index_base: str) -> bool | None:
    """Whether indices count from 0, as `load` is told; None: find out."""
    known = {"0": True, "1": False, "auto": None}
    if index_base not in known:
        raise InputError(f"--index-base is {index_base!r}: one of {', '.join(known)} is needed.")
    return known[index_base]
