"""Save and load coresets, in formats that any tool reads, and the arrays of streams."""

import json
import os
from typing import Any

import numpy as np

from jaxsvm.coresets.summary import Coreset
from jaxsvm.errors import DataError, InputError, require_package
from jaxsvm.runtime.checks import checked
from jaxsvm.runtime.files import write_arrays, write_whole


@checked
def save_coreset(path: str | os.PathLike[str], small: Coreset) -> None:
    """Write a coreset in the format that the file name ends in.

    `.npz`: keys X, y, weight. `.parquet`: columns x0, x1, ..., label, weight. `.svm`, `.svmlight`, `.libsvm`, `.txt`:
    svmlight lines, and the weights one a line in a second file with `.weight` appended to the name, as LIBSVM's and
    LIBLINEAR's `-W` take it. npz and Parquet also hold C and how the coreset was made (`C`, `info`).

    Raises:
        InputError: If the name has another end.
    """
    name = os.fspath(path)
    lower = name.lower()
    values = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in small.info.items() if k != "index"}
    info = json.dumps(values, default=repr)
    if lower.endswith(".npz"):
        arrays = {"X": small.x, "y": small.y.astype(np.int8), "weight": small.weight}
        write_arrays(name, arrays | {"C": np.float64(small.C), "info": np.asarray(info)})
    elif lower.endswith((".parquet", ".pq")):
        pa, parquet = (require_package(name, "reading Parquet files") for name in ("pyarrow", "pyarrow.parquet"))
        columns = {f"x{j}": small.x[:, j] for j in range(small.x.shape[1])}
        table = pa.table(columns | {"label": small.y.astype(np.int8), "weight": small.weight})
        table = table.replace_schema_metadata({"C": repr(small.C), "info": info})
        write_whole(lambda file: parquet.write_table(table, file), name)
    elif lower.endswith((".svm", ".svmlight", ".libsvm", ".txt")):

        def write(file: Any, weights: Any) -> None:
            for row, sign, weight in zip(small.x.tolist(), small.y.tolist(), small.weight.tolist(), strict=True):
                entries = " ".join(f"{j + 1}:{value!r}" for j, value in enumerate(row) if value)
                file.write(f"{int(sign):+d} {entries}\n".encode())
                weights.write(f"{weight!r}\n".encode())

        write_whole(write, name, f"{name}.weight")
    else:
        raise InputError(f"the name is {name!r}: .npz, .parquet, .svm, .svmlight, .libsvm or .txt are known.")


@checked
def load_coreset(path: str | os.PathLike[str]) -> Coreset:
    """Read a coreset that `save_coreset` wrote as npz.

    Raises:
        DataError: If the file is something else.
    """
    stored = read_arrays(path, "npz file of a coreset")
    if not {"X", "y", "weight", "info"} <= set(stored):
        raise DataError(f"{os.fspath(path)}: no coreset: its keys are {', '.join(stored)}.")
    return Coreset(stored["X"], stored["y"].astype(float), stored["weight"], json.loads(str(stored["info"])))


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
