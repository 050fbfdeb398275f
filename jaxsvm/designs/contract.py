"""The contract of a design: rows that lie anywhere, of which a solver sees sums over all rows only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

from jaxsvm.errors import require_part

# pyright: reportReturnType=false
# (Docstrings are the bodies of members of a protocol.)

Part: TypeAlias = Any
"""An array of NumPy or JAX, or sparse rows: type checkers know no operation that all of them have."""
Total: TypeAlias = Any
"""What a function of a chunk returns, as NumPy arrays of float64."""


class Chunk(NamedTuple):
    """Some rows of a design: arrays of NumPy or JAX. A pytree.

    Attributes:
        x: Features, `(k, d)`: an array, or sparse rows.
        y: The number of each row's class in `Design.classes`, or its target, `(k,)`.
        weight: Weights of the rows, >= 0, `(k,)`; 0 for rows that fill up a chunk.
        first: The number of its first row among all rows, `()`; for chosen rows, each row's number less its index in
            the chunk, `(k,)`.
    """

    x: Part
    y: Part
    weight: Part
    first: Part


OfChunk = Callable[..., Any]
"""A function of a chunk (and arguments) whose values can be summed over chunks: pure, hashable and picklable. Its value
is a pytree of float64 arrays, or flags `(k,)`. Each function is compiled once for a size of chunks."""


class Design(Protocol):
    """Rows in memory, on a mesh, on a cluster, in files or of a join.

    A pass over the rows is one call of `total`; whatever is computed where the rows are is computed in float64.
    """

    @property
    def n(self) -> int:
        """Return the number of rows."""

    @property
    def d(self) -> int:
        """Return the number of features."""

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """Return the labels in sorted order; None in regression."""

    @property
    def features(self) -> tuple[Any, ...]:
        """Return the maps that turn columns of new points into features, in order; empty if columns are features."""

    @property
    def together(self) -> bool:
        """Return whether several processes compute each sum together; they then stop at the same pass."""

    def total(self, function: OfChunk, *arguments: object) -> Total:
        """Return the sum of `function(chunk, *arguments)` over all chunks, as NumPy arrays of float64."""

    def chosen(self, function: OfChunk, *arguments: object) -> Chunk:
        """Return the rows for which `function(chunk, *arguments)` is true, `(k,)`, in order: NumPy arrays, x dense."""


def require_design(design: Any) -> None:
    """Refuse an argument that is no design."""
    need = "rows are needed, such as `jaxsvm.designs.from_arrays(x, y)`"
    for part in ("total", "chosen", "classes", "features", "together", "n", "d"):
        require_part("design", design, part, need)
