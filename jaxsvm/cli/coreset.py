"""The command `jaxsvm coreset`: summarise files of any length by a small weighted file."""

from typing import Annotated, Literal

import typer

import jaxsvm
from jaxsvm.cli.app import IndexBase, Json, Label, Positive, Seed, Text, command, of_data, of_output, zero_based
from jaxsvm.cli.report import check_writable, progress_bar, show
from jaxsvm.errors import require


@command("coreset")
def coreset(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="svmlight, CSV, npz or Parquet files.")],
    size: Annotated[int, typer.Option(help="Points of the coreset: at least ten times the number of columns.")] = 1000,
    C: Annotated[float, typer.Option("--C", "--lambda", help="Factor of the loss: the largest to be used.")] = 1.0,
    out: Annotated[Text, of_output(help="File to write: .npz.", metavar="FILE")] = None,
    scale: Annotated[Literal["none", "standardise", "standardize"], of_data(help="Scaling of the columns.")] = "none",
    features: Annotated[int | None, of_data(help="Number of columns of svmlight files.")] = None,
    checkpoint: Annotated[Text, of_output(help="File of the state, to go on from.", metavar="FILE")] = None,
    positive: Positive = None,
    label: Label = None,
    index_base: IndexBase = "auto",
    certify: Annotated[bool, of_output("--certify", help="Take one more pass, and certify its machine.")] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Make a small weighted set of points on which a linear SVM is nearly what it is on all of them."""
    require(out is None or out.lower().endswith(".npz"), f"--out is {out!r}: a name that ends in .npz is needed.")
    check_writable(out, *files)
    with progress_bar("coreset") as bar:
        told = {"label": label, "features": features, "zero_based": zero_based(index_base), "dtype": float}
        rows = jaxsvm.designs.from_files(files, **told)
        rows = rows if scale == "none" else jaxsvm.designs.standardised(rows)
        note = bar and (lambda passes, _: bar(completed=passes, note=f"{passes} passes"))
        small = jaxsvm.coresets.of_rows(rows, C, size, seed, positive=positive, checkpoint=checkpoint, callback=note)
        known = {"primal": float(jaxsvm.coresets.certify(small, rows).primal)} if certify else {}
    if out is not None:
        jaxsvm.coresets.save_coreset(out, small)
    info = known | {name: small.info.get(name) for name in ("lower", "excess", "n", "U", "C", "classes", "share")}
    show(as_json, {"command": "coreset", "data": files, "points": len(small), **info, "out": out})
