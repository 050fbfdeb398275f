"""The command `jaxsvm coreset`: files of any length into a small weighted file."""

from typing import Annotated

import typer

import jaxsvm
from jaxsvm.cli.commands import _command as command  # pyright: ignore[reportPrivateUsage]
from jaxsvm.cli.options import IndexBase, Json, Label, Positive, Seed, label_of, zero_based
from jaxsvm.cli.report.progress import progress_bar
from jaxsvm.cli.report.text import show
from jaxsvm.cli.system import check_writable
from jaxsvm.errors import InputError

ENDS = (".npz", ".parquet", ".pq", ".svm", ".svmlight", ".libsvm", ".txt")


@command
def coreset(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="svmlight, CSV, npz or Parquet files.")],
    size: Annotated[int, typer.Option("--size", help="Points of the coreset: ten times d, at least.")] = 1000,
    C: Annotated[
        float, typer.Option("--C", "--lambda", help="What multiplies the loss: the largest to be used.")
    ] = 1.0,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FILE", help="Where to write it: .npz, .parquet, .svm.", show_default=False),
    ] = None,
    scale: Annotated[str, typer.Option("--scale", metavar="none|standardise", help="What to do to columns.")] = "none",
    damaged: Annotated[str, typer.Option("--damaged", metavar="stop|skip", help="What a damaged line does.")] = "stop",
    passes: Annotated[int, typer.Option("--passes", help="1, or 2: with a first look that counts.")] = 2,
    features: Annotated[
        int | None, typer.Option("--features", help="d, for one pass over svmlight files.", show_default=False)
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="FILE", help="Keep the state there; go on from it.", show_default=False),
    ] = None,
    positive: Positive = None,
    label: Label = None,
    index_base: IndexBase = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Make a small weighted set of points on which a linear SVM is nearly what it is on all of them."""
    if scale not in ("none", "standardise"):
        raise InputError(f"--scale is {scale!r}: one of none, standardise is needed.")
    if out is not None and not out.lower().endswith(ENDS):
        raise InputError(f"--out is {out!r}: a name that ends in {', '.join(ENDS)} is needed.")
    check_writable(out, *files)
    with progress_bar() as bar:
        task = bar.add_task("coreset", total=None, note="")

        def look(done: int, total: int | None) -> None:
            bar.update(task, total=total, completed=done, note=f"{done} rows")

        small = jaxsvm.coresets.from_files(
            files, C, size, seed, passes=passes, damaged=damaged, checkpoint=checkpoint, m=size, features=features,
            standardise=scale == "standardise", label=label_of(label), positive=positive,
            zero_based=zero_based(index_base), progress=look,
        )  # fmt: skip
    if out is not None:
        jaxsvm.coresets.save_coreset(out, small)
    kept = ("n", "U", "C", "classes", "opt", "share", "damaged", "damaged_lines")
    info = {name: small.info[name] for name in kept}
    show(as_json, {"command": "coreset", "data": files, "points": len(small), **info, "out": out})
