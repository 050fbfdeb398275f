"""Read files once: how many rows and features they have, which labels, and the scale of the columns."""

import dataclasses
from typing import Any

import numpy as np

from jaxsvm.datasets.labels import Texts, of_texts
from jaxsvm.datasets.layout import Piece
from jaxsvm.datasets.scaling import Moments
from jaxsvm.datasets.shards.source import Source
from jaxsvm.errors import DataError


@dataclasses.dataclass(frozen=True)
class Scan:
    """The result of a first pass over files, as JSON values."""

    rows: int  # rows that are samples
    damaged: int  # lines that are not
    named: list[str]  # messages about the first 20 of them
    features: int  # d
    zero_based: bool | None  # of svmlight files
    labels: list[Any]  # the different labels in sorted order; none if they are targets of regression
    mean: list[float]  # of the columns, `(d,)`
    scale: list[float]  # their standard deviations, 1 for constant columns, `(d,)`


def scan(source: Source, damaged: str = "stop", labelled: bool = True) -> Scan:
    """Read all rows once and count; refuse a damaged line, unless these are skipped.

    Args:
        source: The files.
        damaged: "stop" or "skip".
        labelled: Whether labels are classes, which are collected.
    """
    source = source.found_out()
    bad, lines, moments = 0, [], Moments()
    texts: set[str] = set()
    values: set[Any] = set()
    for piece in source.pieces():
        bad, lines = counted(piece, damaged, bad, lines)
        if labelled:
            (texts if isinstance(piece.label, Texts) else values).update(different(piece.label)[0])
        if piece.x.shape[0]:
            moments.add(dense(piece.x))
    where = ", ".join(source.paths)
    if not moments.rows:
        raise DataError(f"{where}: no line is a sample.")
    labels = {*of_texts(where, sorted(texts)).tolist(), *values}
    if len({isinstance(label, str) for label in labels}) > 1:
        raise DataError(f"{where}: labels are text in some files and numbers in others: write all of them alike.")
    mean, scale = moments.mean().tolist(), moments.spread().tolist()
    return Scan(moments.rows, bad, lines, len(mean), source.zero_based, sorted(labels), mean, scale)


def dense(x: Any) -> np.ndarray:
    """Return the points of a piece as a dense array of float64, `(k, d)`."""
    return np.asarray(x.toarray() if hasattr(x, "toarray") else x, np.float64)


def counted(piece: Piece, how: str, bad: int, lines: list[str]) -> tuple[int, list[str]]:
    """Add a piece's damaged lines to their number and to the messages about the first 20, or refuse the first."""
    if piece.damaged and how == "stop":
        raise DataError(f"{piece.damaged[0]} Mend it, or skip such lines (damaged='skip').")
    return bad + len(piece.damaged), (lines + [str(row) for row in piece.damaged])[:20]


def different(label: Any) -> tuple[list[Any], np.ndarray]:
    """Return the different labels of a piece, and the code of each row."""
    if isinstance(label, Texts):
        return label.values, label.codes
    values, codes = np.unique(label, return_inverse=True)
    return values.tolist(), codes
