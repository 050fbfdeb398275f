"""Convert folds (a number, a splitter, pairs, numbers of folds) to masks; `path.solve.solve_parts` solves them."""

import warnings
from collections.abc import Iterable, Mapping, Set
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from jaxtyping import Bool, Int

from jaxsvm.errors import InputError, require

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

FORMS = (
    "a number of folds, a splitter of scikit-learn, pairs (train, test) of indices or boolean masks, or the fold of "
    "each sample are needed"
)


class Fold(NamedTuple):
    """Masks of the samples that train and of those held out; a sample may do neither, and never both."""

    train: Bool[np.ndarray, " n"]
    test: Bool[np.ndarray, " n"]


class Splitter(Protocol):
    """A splitter of scikit-learn."""

    def split(self, X: Any, y: Any, groups: Any, /) -> Iterable[Any]:  # noqa: N803
        """Return pairs of indices of the samples that train and of those held out."""
        ...


Folds: TypeAlias = "int | Splitter | ArrayLike | Iterable[tuple[ArrayLike, ArrayLike]]"
"""A number of folds, a splitter, the fold of each sample `(n,)`, or pairs of indices or masks (`cross_validate`)."""


def fold_masks(labels: np.ndarray, folds: "Folds", seed: int = 0) -> list[Fold]:
    """Return the folds as masks, of any form that `cross_validate` takes; a number of them is dealt class by class."""
    n = len(labels)
    count = _count(folds)
    if count is not None and not 2 <= count <= n:
        raise InputError(f"folds is {count}: from 2 to the number of samples, {n}, is needed.")
    numbers = _fold_numbers(folds, n) if count is None else _stratified(labels, count, seed)
    if numbers is not None:
        masks = [Fold(numbers != number, numbers == number) for number in np.unique(numbers[numbers >= 0])]
    else:
        splits = hasattr(folds, "split") and not isinstance(folds, str | bytes)
        masks = _of_pairs(_split(folds, labels) if splits else folds, n)
    require(len(masks) > 0, f"folds holds no fold (a generator can be used once only): {FORMS}.")
    return masks


def require_classes(masks: list[Fold], labels: np.ndarray, weights: np.ndarray, name: str = "folds") -> None:
    """Refuse folds that train on less than two classes, or hold out no sample; absent samples do not count."""
    for number, fold in enumerate(masks):
        trained = np.unique(labels[fold.train & (weights > 0)]).tolist()
        held_out = (fold.test & (weights > 0)).any()
        if len(trained) < 2 or not held_out:
            rest = f"samples of class {trained[0]!r} alone" if trained else "no sample"
            wrong = f"trains on {rest}: two classes are needed" if len(trained) < 2 else "has no sample held out"
            raise InputError(f"{name}: fold {number} {wrong} (of positive weight): use fewer or other folds.")


def _count(folds: Any) -> int | None:
    """Return the number of folds if `folds` is an integer; True is none."""
    if hasattr(folds, "dtype") and np.ndim(folds) == 0 and np.asarray(folds).dtype.kind in "iu":
        return int(folds)
    return int(folds) if isinstance(folds, Integral) and not isinstance(folds, bool) else None


def _fold_numbers(folds: Any, n: int) -> Int[np.ndarray, " n"] | None:
    """Return the fold of each sample if `folds` is one axis of integers."""
    if isinstance(folds, list | tuple | range):
        if not len(folds) or not all(isinstance(number, Integral) for number in folds):
            return None
    elif not hasattr(folds, "__array__"):
        return None
    numbers = np.asarray(folds)
    if numbers.ndim != 1 or numbers.dtype.kind == "O":  # pairs, perhaps
        return None
    if numbers.shape != (n,) or numbers.dtype.kind not in "iu":
        raise InputError(
            f"folds has {len(numbers)} values of type {numbers.dtype}: folds of samples are {n} integers; {FORMS}."
        )
    return numbers.astype(np.int64)


def _stratified(labels: np.ndarray, count: int, seed: int) -> Int[np.ndarray, " n"]:
    """Return the fold of each sample, stratified: those of scikit-learn's `StratifiedKFold(shuffle=True)`."""
    n = len(labels)
    _, first, codes = np.unique(labels, return_index=True, return_inverse=True)
    codes = np.argsort(np.argsort(first))[codes]  # classes in the order in which they occur
    ordered, random, numbers = np.sort(codes), np.random.RandomState(seed), np.empty(n, np.int64)
    for code in range(len(first)):
        sizes = [int((ordered[fold::count] == code).sum()) for fold in range(count)]
        shuffled = np.repeat(np.arange(count), sizes)
        random.shuffle(shuffled)
        numbers[codes == code] = shuffled
    return numbers


def _split(splitter: Any, labels: np.ndarray) -> list[Any]:
    """Return the pairs of a splitter."""
    if isinstance(splitter, type):
        raise InputError(f"folds is the class {splitter.__name__}: make a splitter of it, {splitter.__name__}(...).")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)  # classes are checked later
        try:
            return list(splitter.split(np.zeros((len(labels), 1)), labels))
        except (ValueError, TypeError) as refused:
            raise InputError(
                f"folds: {type(splitter).__name__} cannot split these samples: {refused} (with groups of samples pass "
                "the pairs, `splitter.split(x, y, groups)`)"
            ) from refused


def _of_pairs(pairs: Any, n: int) -> list[Fold]:
    scalar = hasattr(pairs, "dtype") and np.ndim(pairs) == 0  # an array without an axis to iterate over
    if scalar or isinstance(pairs, str | bytes | Mapping | Set) or not isinstance(pairs, Iterable):
        raise InputError(f"folds is {_short(pairs)}: {FORMS}.")
    return [_of_pair(pair, n, number) for number, pair in enumerate(pairs)]


def _of_pair(pair: Any, n: int, number: int) -> Fold:
    sized = isinstance(pair, list | tuple) or hasattr(pair, "__array__") and np.ndim(pair) > 0
    if not sized or len(pair) != 2:
        raise InputError(
            f"folds: fold {number} is {_short(pair)}: a pair (train, test) is needed; a single pair stands in a list, "
            "[(train, test)]."
        )
    train, test = (
        _mask(part, n, f"folds: fold {number}, {name} part,")
        for part, name in zip(pair, ("train", "test"), strict=True)
    )
    if (both := np.flatnonzero(train & test)).size:
        raise InputError(f"folds: fold {number} has sample {both[0]} in both parts: it trains or it is held out.")
    return Fold(train, test)


def _mask(part: Any, n: int, where: str) -> Bool[np.ndarray, " n"]:
    """Return one part of a pair as a mask."""
    try:
        array = np.asarray(part)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.ndim == 1 and array.dtype == bool:
        require(len(array) == n, f"{where} is a mask of {len(array)}: {n} are needed, one a sample.")
        return array.copy()
    if array.ndim == 1 and not len(array):
        return np.zeros(n, bool)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"{where} is {_short(part)}: indices of samples, or a boolean mask of {n}, are needed.")
    if (outside := array[(array < 0) | (array >= n)]).size:
        raise InputError(f"{where} names sample {outside[0]}: from 0 to {n - 1} there are.")
    counts = np.bincount(array, minlength=n)
    if counts.max() > 1:
        raise InputError(f"{where} names sample {counts.argmax()} twice: give it a sample_weight instead.")
    return counts > 0


def _short(value: Any) -> str:
    if hasattr(value, "dtype"):
        return f"an array of shape {np.shape(value)} and type {value.dtype}"
    text = repr(value)
    size = f" of {len(value)}" if hasattr(value, "__len__") else ""
    return text if len(text) <= 60 else f"a {type(value).__name__}{size}"
