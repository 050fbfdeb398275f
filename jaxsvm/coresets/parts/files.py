"""Coresets of files that are larger than memory: a stream of their rows, which can be killed and goes on.

With `passes=2` a first look counts rows and features, finds the labels and, on request, what standardises the
columns: the shares of the regulariser are exact then. With `passes=1` there is none: labels must be known, and so must
d of svmlight files. Rows come in their order, a piece at a time; files that are sorted by label make chunks of one
class, which is no error, but larger chunks are better then.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxsvm.coresets.construction.coreset import as_key
from jaxsvm.coresets.construction.sensitivity import require_choice
from jaxsvm.coresets.parts.stream import PILOT_TOL, Stream, StreamState
from jaxsvm.coresets.parts.whole import Sums, drawn, finished, frame, scale, sums
from jaxsvm.coresets.summary import Coreset
from jaxsvm.datasets.labels import Texts, index_of, of_texts, value_of
from jaxsvm.datasets.layout import Piece, Place
from jaxsvm.datasets.refusal import BadRow
from jaxsvm.datasets.scaling import Moments
from jaxsvm.datasets.shards import Source
from jaxsvm.errors import DataError, InputError

NAMED = 20
"""Damaged rows that are kept in words."""
EVERY = 16
"""Pieces between two saved states."""
CLUSTERS = 64
"""Cells a class, where rows are drawn by their part in the whole."""


@dataclasses.dataclass(frozen=True)
class Scan:
    """What a first look at files finds.

    Attributes:
        rows: Rows that are samples.
        damaged: Lines that are not.
        named: The first of them, in words.
        features: d.
        zero_based: Of svmlight files.
        classes: The labels of -1 and +1.
        mean: Of the columns, `(d,)`.
        scale: Their standard deviations, 1 for constant columns, `(d,)`.
    """

    rows: int
    damaged: int
    named: tuple[str, ...]
    features: int
    zero_based: bool | None
    classes: tuple[Any, Any]
    mean: np.ndarray
    scale: np.ndarray


def from_files(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], C: float, size: int, key: Array | int = 0, *,
    passes: int = 2, damaged: str = "stop", checkpoint: str | os.PathLike[str] | None = None,
    standardise: bool = False, label: str | int | None = None, positive: Any = None, features: int | None = None,
    zero_based: bool | None = None, header: bool | None = None, format: str | None = None,
    chunk: int | None = None, m: int | None = None, mode: str = "tree",
    progress: Callable[[int, int | None], Any] | None = None,
) -> Coreset:  # fmt: skip
    """A coreset of the rows of svmlight, CSV, npz or Parquet files, in memory that does not depend on their length.

    Args:
        paths: One file, or several of one kind of rows: shards, read in this order. Text may be compressed. Columns
            that have names are put in the order of the first file, or refused.
        C: What multiplies the loss, positive; the coreset serves every smaller C.
        size: Points of each node of the merge tree.
        key: A random key, or a seed.
        passes: 2: a first look counts, as above. 1: none; labels are -1 and +1, or `positive` says which is +1.
        damaged: What a line that is no sample does: "stop" raises with its number, "skip" counts it
            (`info["damaged"]`, and the first ones in `info["damaged_lines"]`).
        checkpoint: A file to keep the state in; where it exists, the run goes on from it and ends with the same
            coreset, bit for bit. A run with other arguments, or of files that have changed since (in size or time), is
            refused. It is removed at the end.
        standardise: Bring all columns to mean 0 and variance 1 by what the first look found (`info["mean"]`,
            `info["scale"]`): the coreset is one of the standardised rows.
        label: Column (CSV, Parquet; the last one by default) or key (npz) of the labels.
        positive: The label that is +1, against all others.
        features: d, where it is known.
        zero_based: Whether svmlight indices count from 0; None: from 0 where the index 0 occurs (two passes), else 1.
        header: Whether CSV files have a header; None: where no field of the first line is a number.
        format: "svmlight", "csv", "npz", "parquet", where the names do not tell.
        chunk: As for `Stream`.
        m: Reduce the union of the nodes to so many points; None: leave it.
        mode: "tree": the merge tree's coreset. "global": the tree's is a summary by which each row is drawn from the
            files themselves in two more looks, with no error of merging (`whole.py`): m points expected (`size` where m
            is None), for two passes only.
        progress: Called with rows done and rows in all (None where not known) after every piece, of all looks but the
            first.

    Returns:
        The coreset, with `info["classes"]`.

    Raises:
        DataError: On a damaged line, where it stops; on files that hold something else.
        InputError: On arguments that cannot be used.
    """
    require_choice("damaged", damaged, ("stop", "skip"))
    if isinstance(label, bool):
        raise InputError(f"label is {label}: a column's name or index, or an npz key is needed: coresets have labels.")
    if passes not in (1, 2):
        raise InputError(f"passes is {passes}: 1, or 2 with a first look at the files, is needed.")
    require_choice("mode", mode, ("tree", "global"))
    if mode == "global" and passes == 1:
        raise InputError("mode is 'global' with passes=1: it reads the files more than once.")
    if standardise and passes == 1:
        raise InputError("standardise is True with passes=1: what brings the columns to one scale takes a pass.")
    names = (paths,) if isinstance(paths, str | os.PathLike) else tuple(paths)
    source = Source(tuple(os.fspath(name) for name in names), features, label, zero_based, header, format)
    if not source.paths:
        raise InputError("paths is empty: one file at least is needed.")
    wanted: dict[str, Any] = {"C": float(C), "size": size, "chunk": chunk, "passes": passes, "mode": mode}
    wanted |= {"standardise": standardise, "positive": repr(positive), "damaged": damaged}
    wanted |= {"key": np.asarray(_key_data(key)).tolist()} | dataclasses.asdict(source) | {"paths": list(source.paths)}
    wanted["what the files hold"] = source.stamps()
    state, place, counted = _resumed(checkpoint, wanted)
    found = _scan_of(counted) if counted else None
    if found is None and passes == 2:
        found = scan(source, damaged, positive)
    if found is not None:
        source = dataclasses.replace(source, features=found.features, zero_based=found.zero_based)
    _require_known(source, passes)
    stream = Stream(C, size, chunk, None if found is None else float(found.rows))
    state = stream.init(key) if state is None else state
    bad, lines = (counted["bad"], counted["lines"]) if counted else (0, [])
    looks = 3 if mode == "global" else 1
    rows = None if found is None else looks * found.rows

    def data_of(piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        x = np.asarray(piece.x.toarray() if hasattr(piece.x, "toarray") else piece.x, np.float64)
        x = x if not standardise or found is None else (x - found.mean) / found.scale
        return x, _signs(piece.label, found, positive)

    def save(state: StreamState, after: Place) -> None:
        if checkpoint is not None:
            state.save(checkpoint, wanted=wanted, place=after, bad=bad, lines=lines, scan=_plain(found))

    for number, piece in enumerate(source.pieces(place), 1):
        _refuse(piece.damaged, damaged)
        bad, lines, place = bad + len(piece.damaged), (lines + [str(row) for row in piece.damaged])[:NAMED], piece.after
        state = stream.update(state, *data_of(piece))
        if progress is not None:
            progress(state.rows, rows)
        if number % EVERY == 0:
            save(state, place)
    if not state.rows:
        raise DataError(f"{', '.join(source.paths)}: no line is a sample.")
    if mode == "global":
        save(state, place)

        def look(number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            done = number * state.rows
            for piece in source.pieces():
                yield data_of(piece)
                done += piece.x.shape[0]
                if progress is not None:
                    progress(done, rows)

        small = _drawn(stream, state, size if m is None else m, look)
    else:
        small = stream.finalize(state, m)
    small.info.update(damaged=bad, damaged_lines=lines, files=source.paths)
    small.info["classes"] = found.classes if found is not None else (-1, 1) if positive is None else ("rest", positive)
    if standardise and found is not None:
        small.info.update(mean=found.mean, scale=found.scale)
    if checkpoint is not None and os.path.exists(checkpoint):
        os.unlink(checkpoint)
    return small


def _drawn(stream: Stream, state: StreamState, m: int, look: Callable[[int], Iterator[Any]]) -> Coreset:
    """Two more looks at the rows, by what the stream holds of them."""
    summary = stream.union(state)
    base = jax.random.wrap_key_data(jax.numpy.asarray(state.key))
    made = frame(summary, stream.C, jax.random.fold_in(base, 2**31 - 2), CLUSTERS, PILOT_TOL)
    seen = [sums(x, y, np.ones(len(y)), made) for x, y in look(1) if len(y)]
    known = Sums(*(sum(column) for column in zip(*seen, strict=True)))
    by, seed = scale(summary, m, made, known), state.key.tolist()
    draws = [
        drawn(x, y, np.ones(len(y)), (*seed, number), made, known, by)
        for number, (x, y) in enumerate(look(2))
        if len(y)
    ]
    info = {"n": state.rows, "U": state.weight, "sampler": "mixture", "bound": "dir", "chunks": state.chunks}
    return finished(draws, made, known, state.dtype, info)


def scan(source: Source, damaged: str = "stop", positive: Any = None) -> Scan:
    """Look at all rows once.

    Raises:
        DataError: On a damaged line, unless these are skipped; where there are not two classes.
    """
    source = source.found_out()
    bad, named, moments = 0, [], Moments()
    texts: set[str] = set()
    values: set[Any] = set()
    for piece in source.pieces():
        _refuse(piece.damaged, damaged)
        bad, named = bad + len(piece.damaged), (named + [str(row) for row in piece.damaged])[:NAMED]
        (texts if isinstance(piece.label, Texts) else values).update(_different(piece.label)[0])
        if piece.x.shape[0]:
            x = piece.x.toarray() if hasattr(piece.x, "toarray") else piece.x
            moments.add(np.asarray(x, np.float64))
    where = ", ".join(source.paths)
    if not moments.rows:
        raise DataError(f"{where}: no line is a sample.")
    classes = _classes(where, texts, values, positive)
    mean = moments.mean()
    return Scan(moments.rows, bad, tuple(named), len(mean), source.zero_based, classes, mean, moments.spread())


def _different(label: Any) -> tuple[list[Any], np.ndarray]:
    """The different labels of a piece, and which one each row has."""
    if isinstance(label, Texts):
        return label.values, label.codes
    values, codes = np.unique(label, return_inverse=True)
    return values.tolist(), codes


def _classes(where: str, texts: set[str], values: set[Any], positive: Any) -> tuple[Any, Any]:
    """The labels of -1 and +1, of all that were written in text files or are stored in others."""
    found = {*of_texts(where, sorted(texts)).tolist(), *values}
    if len({isinstance(label, str) for label in found}) > 1:
        raise DataError(f"{where}: labels are text in some files and numbers in others: write all of them alike.")
    present = sorted(found)
    if positive is not None:
        index = index_of(positive, present)
        if index is None:
            raise InputError(f"positive is {positive!r}: {where} has the labels {present[:6]}.")
        rest = present[:index] + present[index + 1 :]
        return (rest[0] if len(rest) == 1 else "rest", present[index])
    if len(present) == 2:
        return (present[0], present[1])
    raise InputError(f"{where}: has {len(present)} labels, {present[:6]}: two are needed, or positive= for +1.")


def _signs(label: Any, found: Scan | None, positive: Any) -> np.ndarray:
    """-1 and +1: each different label is looked at, as the number that it is where the classes are numbers."""
    values, codes = _different(label)
    written = isinstance(label, Texts)
    if found is None and positive is None:
        numbers = [value_of(value) if written else value for value in values]
        if not all(number in (-1, 1) for number in numbers):
            raise InputError("the labels are not -1 and +1: say positive= for +1, or take two passes.")
        return np.asarray(numbers, np.float64)[codes]
    if found is not None:
        wanted = found.classes[1]
        is_text = isinstance(wanted, str)
        chosen = [(value if is_text or not written else value_of(value)) == wanted for value in values]
    else:
        chosen = [index_of(positive, [value_of(value) if written else value]) == 0 for value in values]
    return np.where(chosen, 1.0, -1.0)[codes]


def _refuse(damaged: list[BadRow], how: str) -> None:
    if damaged and how == "stop":
        raise DataError(f"{damaged[0]} Mend it, or skip such lines (damaged='skip').")


def _require_known(source: Source, passes: int) -> None:
    if passes == 1 and source.features is None and any(source.kind(path) == "svmlight" for path in source.paths):
        raise InputError("features is None: svmlight files do not say d before their end; name it, or take two passes.")


def _key_data(key: Any) -> Any:
    return jax.random.key_data(as_key(key))


def _plain(found: Scan | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return dataclasses.asdict(found) | {"mean": found.mean.tolist(), "scale": found.scale.tolist()}


def _scan_of(counted: dict[str, Any]) -> Scan | None:
    kept = counted["scan"]
    if kept is None:
        return None
    arrays = {"mean": np.asarray(kept["mean"]), "scale": np.asarray(kept["scale"])}
    return Scan(**(kept | arrays | {"classes": tuple(kept["classes"]), "named": tuple(kept["named"])}))


def _resumed(checkpoint: Any, wanted: dict[str, Any]) -> tuple[StreamState | None, Place, dict[str, Any]]:
    if checkpoint is None or not os.path.exists(checkpoint):
        return None, Place(), {}
    state, more = StreamState.restore(checkpoint)
    if more.get("wanted") != wanted:
        kept = more.get("wanted") or {}
        other = [name for name in wanted if kept.get(name) != wanted[name]]
        raise InputError(
            f"checkpoint is {os.fspath(checkpoint)!r}: it is of another run ({', '.join(other)} differ); remove it or "
            "name another file."
        )
    return state, Place(*more["place"]), more
