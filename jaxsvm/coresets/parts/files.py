"""Coresets of files that are larger than memory: a stream of their rows, which can be killed and resumed.

With `passes=2` a first pass counts rows and features, finds the labels and computes what standardises the columns; the
shares of the regulariser are then exact. With `passes=1` labels must be known, and so must d of svmlight files. Rows
come in their order, a piece at a time. Files that are sorted by label make chunks of one class, which is no error, but
larger chunks are better then.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxsvm.coresets.measured import MEASURED
from jaxsvm.coresets.parts.stream import Stream, StreamState
from jaxsvm.coresets.parts.whole import drawn_globally
from jaxsvm.coresets.summary import Coreset, as_key
from jaxsvm.datasets.labels import Texts, index_of, value_of
from jaxsvm.datasets.layout import Piece, Place
from jaxsvm.datasets.shards.source import Scan, Source, counted, dense, different, files_of, scan
from jaxsvm.errors import DataError, InputError
from jaxsvm.runtime.arrays import transfers
from jaxsvm.runtime.checks import require_one_of, require_positive
from jaxsvm.runtime.files import require_writable


@transfers
def from_files(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], C: float, size: int, key: Array | int = 0, *,
    passes: int = 2, damaged: str = "stop", checkpoint: str | os.PathLike[str] | None = None,
    standardise: bool = False, label: str | int | None = None, positive: str | float | None = None,
    features: int | None = None, zero_based: bool | None = None, header: bool | None = None, format: str | None = None,
    chunk: int | None = None, m: int | None = None, mode: str = "tree",
    progress: Callable[[int, int | None], object] | None = None,
) -> Coreset:  # fmt: skip
    """Make a coreset of the rows of svmlight, CSV, npz or Parquet files, in memory independent of their length.

    Args:
        paths: One file, or several of one kind of rows: shards, read in this order. A name may have `*` as in
            a shell. Text may be compressed. Columns that have names are put in the order of the first file, or refused.
        C: The factor of the loss, positive; the coreset serves every smaller C.
        size: Points of each node of the merge tree.
        key: A random key, or a seed.
        passes: 2: a first pass counts, as above. 1: none; labels are -1 and +1, or `positive` is the label of +1.
        damaged: What to do with a line that is no sample: "stop" raises with its number, "skip" counts it
            (`info["damaged"]`, and messages about the first 20 in `info["damaged_lines"]`).
        checkpoint: A file to keep the state in; if it exists, the run resumes from it and ends with the same coreset,
            bit for bit. A run with other arguments, or of files that have changed since (in size or time), is refused.
            It is removed at the end.
        standardise: Bring all columns to mean 0 and variance 1 as measured by the first pass (`info["mean"]`,
            `info["scale"]`): the coreset is one of the standardised rows.
        label: Column (CSV, Parquet; the last one by default) or key (npz) of the labels.
        positive: The label that is +1, against all others.
        features: d, if it is known.
        zero_based: Whether svmlight indices count from 0; None: from 0 if the index 0 occurs (two passes), else 1.
        header: Whether CSV files have a header; None: if no field of the first line is a number.
        format: "svmlight", "csv", "npz" or "parquet", for files whose names do not tell.
        chunk: Points that are gathered before they are reduced, at least `2 size`; None: `8 size`.
        m: Reduce the union of the nodes to so many points; None: leave it.
        mode: "tree": the merge tree's coreset. "global": the tree's is a summary by which each row is drawn from the
            files themselves in two more passes, with no error of merging (`whole.py`): m points expected (`size` if m
            is None); needs `passes=2`.
        progress: Called with rows done and rows in all (None if not known) after every piece, of all passes but the
            first.

    Returns:
        The coreset, with `info["classes"]`.

    Raises:
        DataError: If a line is damaged and `damaged` is "stop", or files hold something else.
        InputError: If an argument cannot be used.
    """
    _check(damaged, label, passes, mode, standardise)
    require_positive("C", C)
    require_writable("checkpoint", checkpoint)
    source = Source(files_of(paths), features, label, zero_based, header, format)
    wanted: dict[str, Any] = {"C": float(C), "size": size, "chunk": chunk, "passes": passes, "mode": mode}
    wanted |= {"standardise": standardise, "positive": repr(positive), "damaged": damaged}
    wanted |= {"key": np.asarray(jax.random.key_data(as_key(key))).tolist()}
    wanted |= dataclasses.asdict(source) | {"paths": list(source.paths), "what the files hold": source.stamps()}
    state, kept = _resumed(checkpoint, wanted)
    first = Scan(**kept["scan"]) if kept.get("scan") else None
    if first is None and passes == 2:
        first = scan(source, damaged)
    if first is not None:
        source = dataclasses.replace(source, features=first.features, zero_based=first.zero_based)
    elif source.features is None and any(source.kind(path) == "svmlight" for path in source.paths):
        raise InputError("features is None: svmlight files do not say d before their end; name it, or take two passes.")
    stream = Stream(C, size, chunk, None if first is None else float(first.rows))
    state = stream.init(key) if state is None else state
    rows = None if first is None else (3 if mode == "global" else 1) * first.rows

    def report(done: int) -> None:
        if progress is not None:
            progress(done, rows)

    classes = None if first is None else _classes(", ".join(source.paths), first.labels, positive)
    run = _Run(source, stream, state, first, damaged, classes, positive, standardise, report)
    run.stream_rows(checkpoint, wanted, kept, save_end=mode == "global")
    small = run.drawn(size if m is None else m) if mode == "global" else stream.finalize(run.state, m)
    small.info.update(damaged=run.bad, damaged_lines=run.lines, files=source.paths)
    classes = classes or ((-1, 1) if positive is None else ("rest", positive))
    small.info["classes"] = tuple(classes)
    if standardise and first is not None:
        small.info.update(mean=np.asarray(first.mean), scale=np.asarray(first.scale))
    if checkpoint is not None and os.path.exists(checkpoint):
        os.unlink(checkpoint)
    return small


def _check(damaged: str, label: Any, passes: int, mode: str, standardise: bool) -> None:
    """Refuse arguments that no file could fit."""
    require_one_of("damaged", damaged, ("stop", "skip"))
    if isinstance(label, bool):
        raise InputError(f"label is {label}: a column's name or index, or an npz key is needed: coresets have labels.")
    if passes not in (1, 2):
        raise InputError(f"passes is {passes}: 1, or 2 with a first pass over the files, is needed.")
    require_one_of("mode", mode, ("tree", "global"))
    if mode == "global" and passes == 1:
        raise InputError("mode is 'global' with passes=1: it reads the files more than once.")
    if standardise and passes == 1:
        raise InputError("standardise is True with passes=1: measuring the scale of the columns takes a pass.")


@dataclasses.dataclass
class _Run:
    """A run over files and its state."""

    source: Source
    stream: Stream
    state: StreamState
    first: Scan | None
    damaged: str
    classes: tuple[Any, Any] | None
    positive: Any
    standardise: bool
    report: Callable[[int], None]
    bad: int = 0
    lines: list[str] = dataclasses.field(default_factory=list)
    passes_done: int = 0

    def stream_rows(self, checkpoint: Any, wanted: dict[str, Any], kept: dict[str, Any], save_end: bool) -> None:
        """Give all rows to the stream, from the place of a checkpoint on."""
        place = Place(*kept["place"]) if kept else Place()
        self.bad, self.lines = (kept["bad"], kept["lines"]) if kept else (0, [])

        def save() -> None:
            if checkpoint is not None:
                first = None if self.first is None else dataclasses.asdict(self.first)
                more = {"wanted": wanted, "place": place, "bad": self.bad, "lines": self.lines, "scan": first}
                self.state.save(checkpoint, **more)

        for number, piece in enumerate(self.source.pieces(place), 1):
            self.bad, self.lines = counted(piece, self.damaged, self.bad, self.lines)
            self.state, place = self.stream.update(self.state, *self._data_of(piece)), piece.after
            self.report(self.state.rows)
            if number % MEASURED.pieces_between_saves == 0:
                save()
        where = ", ".join(self.source.paths)
        if not self.state.rows:
            raise DataError(f"{where}: no line is a sample.")
        signs = np.unique(self.stream.union(self.state).y)
        if not {-1.0, 1.0} <= set(signs.tolist()):
            label = self.classes[1] if self.classes else 1 if self.positive is None else self.positive
            have = "no row" if signs.max() < 1 else "every row"
            raise DataError(f"{where}: {have} has the label {label!r} of +1: rows of two classes are needed.")
        if save_end:
            save()
        self.passes_done = 1

    def drawn(self, m: int) -> Coreset:
        """Draw from the files in two more passes, by the summary that the stream made."""
        state, stream = self.state, self.stream
        info = {"n": state.rows, "U": state.weight, "sampler": "mixture", "bound": "dir", "chunks": state.chunks}
        key, seed = jax.random.fold_in(state.base_key(), 2**31 - 2), tuple(state.key.tolist())
        clusters = 64  # as `coreset` takes for many points
        summary = stream.union(state)
        return drawn_globally(summary, m, stream.C, key, clusters, seed, self._over_pieces, state.dtype, info)

    def _over_pieces(self, f: Callable[..., Any]) -> list[Any]:
        """Map a function over the pieces, in one pass over the files."""
        results, done = [], self.passes_done * self.state.rows
        self.passes_done += 1
        for number, piece in enumerate(self.source.pieces()):
            x, y = self._data_of(piece)
            if len(y):
                results.append(f(number, x, y, np.ones(len(y))))
            done += len(y)
            self.report(done)
        return results

    def _data_of(self, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        x, first = dense(piece.x), self.first
        x = x if not self.standardise or first is None else (x - np.asarray(first.mean)) / np.asarray(first.scale)
        return x, _signs(piece.label, self.classes, self.positive)


def _classes(where: str, present: list[Any], positive: Any) -> tuple[Any, Any]:
    """Return the labels of -1 and +1."""
    if positive is not None:
        index = index_of(positive, present)
        if index is None:
            raise InputError(f"positive is {positive!r}: {where} has the labels {present[:6]}.")
        rest = present[:index] + present[index + 1 :]
        return (rest[0] if len(rest) == 1 else "rest", present[index])
    if len(present) == 2:
        return (present[0], present[1])
    raise InputError(f"{where}: has {len(present)} labels, {present[:6]}: two are needed, or positive= for +1.")


def _signs(label: Any, classes: tuple[Any, Any] | None, positive: Any) -> np.ndarray:
    """Return -1 and +1; written labels are compared as numbers if the classes are numbers."""
    values, codes = different(label)
    numbers = [value_of(value) for value in values] if isinstance(label, Texts) else values
    if classes is not None:
        wanted = classes[1]
        known = values if isinstance(wanted, str) else numbers
        new = [value for value in known if positive is None and value not in classes]
        if new:
            raise DataError(f"the files have the label {new[0]!r}, which they did not have in the first pass.")
        chosen = [value == wanted for value in known]
    elif positive is not None:
        chosen = [index_of(positive, [number]) == 0 for number in numbers]
    elif all(number in (-1, 1) for number in numbers):
        chosen = [number == 1 for number in numbers]
    else:
        raise InputError("the labels are not -1 and +1: say positive= for +1, or take two passes.")
    return np.where(chosen, 1.0, -1.0)[codes]


def _resumed(checkpoint: Any, wanted: dict[str, Any]) -> tuple[StreamState | None, dict[str, Any]]:
    """Return the state of a checkpoint and the values saved with it, if it exists; refuse one of another run."""
    if checkpoint is None or not os.path.exists(checkpoint):
        return None, {}
    state, kept = StreamState.restore(checkpoint)
    if kept.get("wanted") != wanted:
        before = kept.get("wanted") or {}
        other = [name for name in wanted if before.get(name) != wanted[name]]
        raise InputError(
            f"checkpoint is {os.fspath(checkpoint)!r}: it is of another run ({', '.join(other)} differ); remove it or "
            "name another file."
        )
    return state, kept
