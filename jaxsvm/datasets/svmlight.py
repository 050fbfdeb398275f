"""Read svmlight, lines `label index:value ...`, with scikit-learn."""

import io
import re

import numpy as np

from jaxsvm.datasets.labels import EXACT, Texts, coded, fault_of_label
from jaxsvm.datasets.layout import Layout, Piece, Place
from jaxsvm.datasets.text import Lines
from jaxsvm.errors import DataError, require_package


class Svmlight(Lines):
    """A svmlight file; points are read as CSR, whole labels as whole numbers."""

    expected = "; a line such as '+1 3:0.5 7:1' is needed (name a table .csv)"

    def __init__(self, name: str, base: int | None = None, d: int | None = None, labelled: bool = True) -> None:
        super().__init__(name)
        self.base = base  # the first index; None: not known yet, indices are left as they are written
        self.d, self.labelled = d, labelled  # features; None: as many as occur
        self.layout, self.notes = Layout(index_base=base), ()
        self._load = require_package("sklearn.datasets", "reading svmlight files").load_svmlight_file
        self._csr = require_package("scipy.sparse", "reading svmlight files").csr_array

    def parse(self, block: bytes, line: int) -> Piece:
        """Return the rows of a block; raise ValueError if a line cannot be read."""
        block = re.sub(rb"#[^\n]*", b"", block) if b"#" in block else block
        if b"_" in block:
            raise ValueError("an underscore is no part of a number")
        block = re.sub(rb":[ \t]+", b":", block)  # LIBSVM's own data set "protein" has blanks there
        x, y = self._load(io.BytesIO(block), zero_based=True)
        if not (np.isfinite(x.data).all() and np.isfinite(y).all()):
            raise ValueError("a number is not finite, remove or impute it first")
        for match in re.finditer(rb":([+-]?[0-9]{16,})(?=\s|$)", block):
            if int(float(match[1])) != int(match[1]):
                raise ValueError(f"{match[1].decode()} is a whole number that float64 does not hold")
        base, highest = self.base or 0, int(x.indices.max(initial=-1))
        if x.indices.min(initial=base) < base:
            raise ValueError("the feature index is 0, and indices count from 1: say zero_based=True (--index-base 0)")
        d = max(highest + 1 - base, 0) if self.d is None else self.d
        if highest - base >= d:
            counted = "" if base else ", and indices count from 0"
            raise ValueError(f"the feature index is {highest}{counted}, and features={d} was given")
        points = self._csr((x.data, x.indices - base, x.indptr), shape=(x.shape[0], d))
        return Piece(points, self._labels(block, y) if self.labelled else None, Place(), [])

    def _labels(self, block: bytes, y: np.ndarray) -> Texts:
        different, codes = np.unique(y, return_inverse=True)
        if np.abs(different).max(initial=0) < EXACT:
            return Texts([_plain(label) for label in different.tolist()], codes)
        label = coded(line.split(None, 1)[0].decode() for line in block.splitlines() if line.strip())
        for text in label.values:
            if fault := fault_of_label(text):
                raise ValueError(f"the label {fault}")
        return label


def _plain(label: float) -> str:
    """Write a label without a fraction of zero: the format does not distinguish 1 from 1.0."""
    return str(int(label)) if label == np.rint(label) else repr(label)


def index_base(name: str, lowest: int | None, base: int | None, training: int | None) -> tuple[int, tuple[str, ...]]:
    """Return the first index of a file, 0 or 1, and notes; refuse one that contradicts the file.

    Args:
        name: The file.
        lowest: The least index in it, or None.
        base: The first index that was given; None: that of the training file, or 0 if the index 0 occurs and else 1.
        training: The first index of the training file, or None.
    """
    if base == 1 and lowest == 0:
        raise DataError(f"{name}: the index 0 occurs: leave zero_based=False (--index-base 1) out.")
    if base is not None:
        return base, ()
    if training == 1 and lowest == 0:
        raise DataError(
            f"{name}: its indices count from 0 (the index 0 occurs), those of the training file were taken to count "
            "from 1. If so, say zero_based=True (--index-base 0) here; if both count from 0, fit again with it."
        )
    if training is None:
        return (0 if lowest == 0 else 1), ()
    guessed = training == 0 and lowest not in (0, None)
    note = "indices are taken to count from 0, as in the training file, though no index is 0 here (--index-base 1 else)"
    return training, (note,) if guessed else ()
