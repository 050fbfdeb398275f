"""Read svmlight: lines `label index:value ...`."""

import importlib
import re
import warnings
from typing import Any

import numpy as np

from jaxsvm.datasets.labels import Texts, coded, fault_of_label
from jaxsvm.datasets.layout import Layout
from jaxsvm.datasets.measured import MEASURED
from jaxsvm.datasets.refusal import EXACT, WHOLE, as_number, rounds, shown
from jaxsvm.datasets.text import BOM, TextReader, opened
from jaxsvm.errors import DataError, require_package
from jaxsvm.runtime.checks import MAX_INT32

TABLE = "; name a table of columns .csv"


class Svmlight(TextReader):
    """A svmlight file; points are read as CSR, whole labels as whole numbers."""

    expected = "a text file of lines such as '+1 3:0.5 7:1'"

    def __init__(self, name: str, base: int | None = None, d: int | None = None, labelled: bool = True):
        super().__init__(name)
        self.base = base  # the first index; None: not known yet, indices are left as they are written
        self.d, self.labelled = d, labelled  # features; None: as many as occur
        self.layout, self.notes = Layout(index_base=base), ()
        self._csr = require_package("scipy.sparse", "reading svmlight files").csr_array

    def fast(self, block: bytes) -> tuple[Any, Any] | None:
        """Return CSR and labels of plain lines; None if a line is not plain."""
        entries = svmlight_entries(block)
        if entries is None:
            return None
        label, row, index, value = entries
        index = index - (self.base or 0)
        if not (np.isfinite(value).all() and np.isfinite(label).all()):
            return None
        if max(np.abs(value).max(initial=0), np.abs(label).max(initial=0)) >= EXACT:
            return None
        if len(index) and (index.min() < 0 or (self.d is not None and index.max() >= self.d)):
            return None
        different, codes = np.unique(label, return_inverse=True)
        indptr = np.searchsorted(row, np.arange(len(label) + 1))
        return self._data(value, index, indptr, Texts([_plain(v) for v in different.tolist()], codes))

    def line(self, number: int, text: str, cut: bool) -> Any:
        """Return the label, and the index and value of each entry; None for a blank line."""
        tokens = text.split("#", 1)[0].split()
        if not tokens:
            return None
        label = as_number(tokens[0])
        if label is None or not np.isfinite(label):
            hint = TABLE if number == 1 else ""
            expected = f"a svmlight line starts with its label, a finite number, as in '+1 3:0.5 7:1'{hint}"
            self.refuse(number, f"the label is {shown(tokens[0])}", expected, cut=cut)
        fault = fault_of_label(tokens[0])
        if fault is not None:
            self.refuse(number, f"the label {fault}", "mend it", cut=cut)
        entries = tokens[2:] if tokens[1:] and re.fullmatch("qid:[0-9]+", tokens[1]) else tokens[1:]
        index, value = [], []
        for token in entries:
            at, entry = self._entry(number, token, index[-1] if index else -1, cut)
            index.append(at)
            value.append(entry)
        base = self.base or 0
        if index and index[0] < base:
            self.refuse(number, "the feature index is 0, and indices count from 1", "say zero_based=True")
        if index and self.d is not None and index[-1] - base >= self.d:
            issue = f"the feature index is {index[-1]}" + ("" if base else ", and indices count from 0")
            self.refuse(number, issue, f"features={self.d} was given, raise it or drop it")
        written = str(int(tokens[0])) if WHOLE.fullmatch(tokens[0]) else _plain(label)
        return written, [at - base for at in index], value

    def _entry(self, line: int, token: str, last: int, cut: bool) -> tuple[int, float]:
        match, written = re.fullmatch(r"([^:]*):([^:]*)", token), shown(token)
        if match is None:
            expected = f"a feature is written index:value, as in 3:0.5{TABLE if line == 1 else ''}"
            self.refuse(line, f"found {written}", expected, cut=cut)
        index, value = match.groups()
        if index == "qid":
            self.refuse(line, f"found {written}", "qid:1 stands behind the label, and once", cut=cut)
        if not re.fullmatch(r"\+?[0-9]+", index):
            self.refuse(line, f"the index of {written} is no whole number >= 0", "write 3:0.5", cut=cut)
        if int(index) > MAX_INT32:
            self.refuse(line, f"the feature index is {index}", f"indices go to {MAX_INT32}")
        if int(index) <= last:
            expected = "the indices of a line ascend and occur once"
            self.refuse(line, f"feature index {int(index)} follows {last}", expected, cut=cut)
        number = as_number(value)
        if number is None:
            expected = "write index:value, as in 3:0.5"
            self.refuse(line, f"the value of {written} is no number", expected, cut=cut)
        if not np.isfinite(number):
            self.refuse(line, f"the value of {written} is not finite", "remove or impute it first")
        if rounds(value, number):
            issue = f"the value of {written} is a whole number that float64 does not hold"
            self.refuse(line, issue, "an identifier is no feature: leave it out")
        return int(index), number

    def stacked(self, rows: list[Any]) -> tuple[Any, Any]:
        """Return CSR and labels."""
        indptr = np.cumsum([0] + [len(index) for _, index, _ in rows])
        index = np.asarray([at for _, index, _ in rows for at in index], np.int64)
        value = np.asarray([entry for *_, value in rows for entry in value], np.float64)
        return self._data(value, index, indptr, coded(label for label, *_ in rows))

    def _data(self, value: np.ndarray, index: np.ndarray, indptr: np.ndarray, labels: Texts) -> tuple[Any, Any]:
        d = int(index.max(initial=-1)) + 1 if self.d is None else self.d
        # An index may be 2^31 - 1: keep int64 until the first index is known.
        x = self._csr((value, index, indptr.astype(np.int64)), shape=(len(indptr) - 1, d))
        return x, labels if self.labelled else None


def _plain(label: float) -> str:
    """Write a label without a fraction of zero: the format does not distinguish 1 from 1.0."""
    return str(int(label)) if label == np.rint(label) and abs(label) < EXACT else repr(label)


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


def scan_svmlight(paths: list[str]) -> tuple[int, int]:
    """Return the largest and the least index of svmlight files (-1 and 1 if there is none), from one pass."""
    largest, least = -1, 1
    for path in paths:
        with opened(path) as file:
            while block := file.read(MEASURED.bytes_per_text_piece):
                block = (block + file.readline()).removeprefix(BOM)
                entries = svmlight_entries(block)
                index = _indices(block) if entries is None else entries[2]
                if len(index):
                    largest, least = max(largest, int(index.max())), min(least, int(index.min()))
    return largest, least


def _indices(block: bytes) -> np.ndarray:
    tokens = (token for line in block.splitlines() for token in line.split(b"#", 1)[0].split()[1:])
    heads = (token.split(b":", 1)[0] for token in tokens)
    return np.array([int(head) for head in heads if head.isdigit() and len(head) < 10 and int(head) < 2**31], np.int64)


def svmlight_entries(block: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Return labels, and row, index and value of each entry, of svmlight lines; None if a line is not plain and valid.

    Every token but the first of a line must be digits, one colon and something that is not blank; together they must
    make the expected count of numbers; indices must rise. Other lines, also those with comments and `qid:`, are read
    one by one.
    """
    if b"#" in block or b"q" in block or block.count(b"\r") != block.count(b"\r\n"):
        return None
    text = np.frombuffer(block + b"\n", np.uint8)
    colon, end = text == ord(":"), text == ord("\n")
    blank = end | (text == ord(" ")) | (text == ord("\t")) | (text == ord("\r"))
    first = ~blank & np.append(True, blank[:-1])
    starts, places = np.flatnonzero(first), np.flatnonzero(colon)
    line = np.cumsum(end)[starts]  # the newlines before a token
    opening = np.append(True, line[1:] != line[:-1])[: len(starts)]
    entries = starts[~opening]
    if len(places) != len(entries) or not len(starts):
        return None
    ends = np.append(starts[1:], len(text))[~opening]
    if ((places <= entries) | (places >= ends)).any() or blank[places + 1].any():
        return None
    digits = np.append(0, np.cumsum((text >= ord("0")) & (text <= ord("9"))))
    if (digits[places] - digits[entries] != places - entries).any():
        return None
    plus = np.flatnonzero(text == ord("+"))
    if len(plus) and not (_among(text[plus - 1], b" \t\n:eE") & _among(text[plus + 1], b"0123456789.")).all():
        return None
    numbers = _numbers(block)
    if numbers is None or len(numbers) != len(starts) + len(entries):
        return None
    at = np.cumsum(np.where(opening, 1, 2)) - 1  # of each token's last number
    row = (np.cumsum(opening) - 1)[~opening]
    index = numbers[at[~opening] - 1]
    falls = (np.diff(index) <= 0) & (np.diff(row) == 0)
    if (index >= 2**31).any() or falls.any():
        return None
    return numbers[at[opening]], row, index.astype(np.int64), numbers[at[~opening]]


def _among(text: np.ndarray, which: bytes) -> np.ndarray:
    return np.isin(text, np.frombuffer(which, np.uint8))


def _numbers(block: bytes) -> np.ndarray | None:
    """Return the numbers between blanks and colons, each rounded as `float` does; None if a text is no number."""
    try:
        arrow: Any = importlib.import_module("pyarrow")
        csv: Any = importlib.import_module("pyarrow.csv")
    except ImportError:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a text that is no number ends the numbers with a warning
            try:
                return np.fromstring(block.translate(_SPACES), sep=" ")
            except (DeprecationWarning, ValueError):
                return None
    try:
        lines = block.translate(_LINES, b"+")
        column = csv.read_csv(
            arrow.BufferReader(lines),
            csv.ReadOptions(column_names=["number"], use_threads=False, block_size=len(lines) + 1),
            csv.ParseOptions(delimiter=",", quote_char=False),
            csv.ConvertOptions(column_types={"number": arrow.float64()}, null_values=[]),
        )
        return np.from_dlpack(column.column(0).combine_chunks())  # `to_numpy` imports pandas: 0.3 s
    except arrow.ArrowInvalid:
        return None


_SPACES = bytes.maketrans(b":", b" ")
_LINES = bytes.maketrans(b": \t\r", b"\n\n\n\n")
