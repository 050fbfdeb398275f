"""The command `jaxsvm coreset`: summarise files of any length by a small weighted file."""

from typing import Annotated

import typer

import jaxsvm
from jaxsvm.cli.app import command
from jaxsvm.cli.options import SPELLINGS, IndexBase, Json, Label, Positive, Seed, option, zero_based
from jaxsvm.cli.report.progress import progress_bar
from jaxsvm.cli.report.text import show
from jaxsvm.cli.system import check_writable, save
from jaxsvm.errors import require
from jaxsvm.runtime.checks import require_one_of

ENDS = (".npz", ".parquet", ".pq", ".svm", ".svmlight", ".libsvm", ".txt")


@command("coreset")
def coreset(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="svmlight, CSV, npz or Parquet files.")],
    size: Annotated[int, option("--size", "Points of the coreset: at least ten times the number of columns.")] = 1000,
    C: Annotated[float, option("--C,--lambda", "Factor of the loss: the largest that will be used.")] = 1.0,
    out: Annotated[str | None, option("--out", "File to write: .npz, .parquet, .svm.", "FILE")] = None,
    scale: Annotated[str, option("--scale", "Scaling of the columns.", ("none", "standardise"))] = "none",
    damaged: Annotated[str, option("--damaged", "What a damaged line causes.", ("stop", "skip"))] = "stop",
    features: Annotated[int | None, option("--features", "Number of columns of svmlight files.")] = None,
    checkpoint: Annotated[
        str | None, option("--checkpoint", "File to keep the state in, and to go on from.", "FILE")
    ] = None,
    positive: Positive = None,
    label: Label = None,
    index_base: IndexBase = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Make a small weighted set of points on which a linear SVM is nearly what it is on all of them."""
    scale = SPELLINGS.get(scale, scale)
    require_one_of("--scale", scale, ("none", "standardise"))
    known = out is None or out.lower().endswith(ENDS)
    require(known, f"--out is {out!r}: a name that ends in {', '.join(ENDS)} is needed.")
    check_writable(out, *files)
    with progress_bar("coreset") as bar:

        def count(passes: int, gaps: object) -> None:
            bar.update(completed=passes, note=f"{passes} passes")

        small = jaxsvm.coresets.from_files(
            files, C, size, seed, damaged=damaged, checkpoint=checkpoint, features=features,
            standardise=scale == "standardise", label=label, positive=positive,
            zero_based=zero_based(index_base), callback=count,
        )  # fmt: skip
    save(out, lambda target: jaxsvm.coresets.save_coreset(target, small))
    kept = ("n", "U", "C", "classes", "opt", "share", "damaged", "damaged_lines")
    info = {name: small.info[name] for name in kept}
    show(as_json, {"command": "coreset", "data": files, "points": len(small), **info, "out": out})
