"""Counts under one additive inequality from small sorted sketches: each within a factor 1 + eps, at any size.

Abo-Khamis, Im, Moseley, Pruhs, Samadian, "Approximate Aggregate Queries Under Additive Inequalities" (arXiv
2003.10588): Inside-Out in the semiring of multisets of scores (union, sums of pairs), where each multiset is cut down
to a sketch that keeps the order statistics at ranks which grow by a factor. Where we depart from it:

- Ranks are integers, `w_0 = 1, w_(k+1) = max(w_k + 1, floor((1 + eps_0) w_k))`: unfloored powers, as printed, would
  break `count^ <= count` for small counts. Groups of up to `2 / eps` rows are kept exactly.
- One compression a message instead of one for each pairwise union: a union costs nothing (the worse factor of the two
  holds), only compressions and products multiply errors. On a path of m tables they do so m - 1 times at most, so
  `eps_0 = (1 + eps)^(1 / E) - 1` with E from the tree; sketches are a hundred times smaller than by the printed
  analysis.
- A cell of ranks `(w_(k-1), w_k]` has all its mass at one representative: its last rank ("lower": `count / (1 + eps) <=
  count^ <= count`), its first ("upper"), or the middle one ("mid": between the two). Total mass is exact.

Everything is one compiled program a tree with static shapes; groups are padded to classes of sizes and worked on in
chunks whose points stay below `POINTS`. On the CPU NumPy does the sorts, which takes a seventh of the time of XLA's.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsvm.errors import InputError
from jaxsvm.relational import counting
from jaxsvm.relational.far import Far, node_scores, table_counts
from jaxsvm.relational.tree import Tree, grouped

POINTS = 1 << 23
"""Points (score and weight) that are sorted at a time: some 60 bytes each."""
MODES = ("lower", "upper", "mid")
SLACK = 1 - 1e-12
"""Of a rank, for the rounding of masses beyond 2^53."""


def rank_grid(eps: float, size: float) -> np.ndarray:
    """Integer ranks from 1 to `size` or beyond, each at most a factor `1 + eps` (or 1) above the one before."""
    grid = [1.0]
    while grid[-1] < size:
        grid.append(max(grid[-1] + 1, np.floor((1 + eps) * grid[-1])))
    return np.array(grid)


class Step(NamedTuple):
    """One compression of the program; static.

    Attributes:
        name: Of the sketches that it makes.
        node: Whose rows are points, or -1 for a product of two sketches.
        to: The neighbour that the message is for.
        sources: Names of the sketches that are added: "" is that of the score 0 alone.
    """

    name: str
    node: int
    to: int
    sources: tuple[str, ...]


def _message(i: int, j: int) -> str:
    return f"{i}>{j}"


def _product(i: int, near: tuple[int, ...]) -> str:
    return f"{i}<" + "*".join(map(str, near))


class SketchEngine:
    """Configured for a tree and an accuracy; each count is within a factor `1 + eps`."""

    name = "sketch"

    def __init__(self, tree: Tree, eps: float, simplify: bool = True) -> None:
        """Plan: exact sizes of all groups, the accuracy of one compression, grids of ranks, chunks."""
        if not 0 < eps <= 1:
            raise InputError(f"eps is {eps}: the relative accuracy of counts, above 0 and at most 1, is needed.")
        self.tree = tree = tree.simplified if simplify else tree
        self.eps = eps
        totals = counting.messages(tree, tree.weight)
        self.near = {i: sorted(tree.neighbours(i), key=lambda k, i=i: totals[k, i].max()) for i in range(tree.m)}
        self.steps, self.products, self.through = self._program()
        sizes = self._totals([np.asarray(w) for w in tree.weight])
        # A compression of groups that stay exact costs no accuracy.
        free = {name for name, total in sizes.items() if total.max() <= 2 / eps}
        self.exponent = self._exponent(free)
        self.eps0 = (1 + eps) ** (1 / max(self.exponent, 1)) - 1
        grids = {name: rank_grid(self.eps0, total.max()) for name, total in sizes.items()}
        width = {name: len(grid) for name, grid in grids.items()}
        width[""] = 1
        self.width = width
        classes = {step.name: self._classes(step, width) for step in self.steps}
        rows = {i: self._rows_of(i, width) for i in range(tree.m)}
        self.arrays = {
            "grid": grids,
            "classes": classes,
            "rows": rows,
            "weight": {i: np.append(w, 0.0) for i, w in enumerate(tree.weight)},
            "place": {i: self._places(i) for i in range(tree.m)},
        }
        with jax.enable_x64(True):  # counts need float64, whatever the caller's flag says; NumPy arrays come out
            self.arrays = jax.device_put(self.arrays)
            self.totals = [jax.device_put(self._totals(counting.masked(tree, sign))) for sign in (0, 1)]
        self.structure = (tree.m, tuple(self.steps), tuple(self.through))

    def __call__(self, scores: tuple[list[np.ndarray], list[np.ndarray]], mode: str = "mid", tau: float = 1.0) -> Far:
        """Count, as `mode` says."""
        if mode not in MODES:
            raise InputError(f"mode is {mode!r}: one of {', '.join(MODES)} is needed.")
        counts, slacks, slack = [], [], []
        for sign, mask in enumerate(self.tree.masks()):
            s = node_scores(self.tree, scores[sign])
            s[self.tree.label] = np.where(mask > 0, s[self.tree.label], np.inf)
            padded = {i: np.append(part, np.inf) for i, part in enumerate(s)}
            with jax.enable_x64(True):
                far, room = _run(self.structure, mode, self.arrays, self.totals[sign], padded, np.float64(tau))
            far, room = ([np.asarray(part) for part in parts] for parts in (far, room))
            counts.append(table_counts(self.tree, scores[sign], far))
            slacks.append(table_counts(self.tree, scores[sign], room))
            slack.append(float(room[self.tree.label].sum()))
        return Far((counts[0], counts[1]), (slack[0], slack[1]), slacks)

    # --- the plan ---

    def _program(self) -> tuple[list[Step], dict[str, Any], list[tuple[str, str]]]:
        """Compressions in an order that works; for each product its combinations; what makes counts."""
        tree, steps, products = self.tree, [], {}

        def product(i: int, near: tuple[int, ...]) -> str:
            """The name of the sketch of sums over these neighbours of i."""
            if len(near) < 2:
                return _message(near[0], i) if near else ""
            name = _product(i, near)
            if name not in products:
                left = product(i, near[:-1])
                one, two = self._id(i, near[:-1], products), tree.kid[i, near[-1]]
                code, ids = np.unique(one * tree.count[i, near[-1]] + two, return_inverse=True)
                products[name] = (*np.divmod(code, tree.count[i, near[-1]]), ids)
                steps.append(Step(name, -1, -1, (left, _message(near[-1], i))))
            return name

        for i, j in tree.directed:
            others = product(i, tuple(k for k in self.near[i] if k != j))
            steps.append(Step(_message(i, j), i, j, (others,)))
        through = []
        for i in range(tree.m):
            near = self.near[i]
            through.append((product(i, tuple(near[:-1])), _message(near[-1], i) if near else ""))
        return steps, products, through

    def _id(self, i: int, near: tuple[int, ...], products: dict[Any, Any]) -> np.ndarray:
        """Which row of the sketch of these neighbours each row of i looks at."""
        if not near:
            return np.zeros(len(self.tree.weight[i]), np.int64)
        return self.tree.kid[i, near[0]] if len(near) == 1 else products[_product(i, near)][2]

    def _totals(self, factors: list[np.ndarray]) -> dict[Any, np.ndarray]:
        """The mass of each row of each sketch."""
        total: dict[str, np.ndarray] = {
            _message(*edge): sent for edge, sent in counting.messages(self.tree, factors).items()
        }
        for step in self.steps:
            if step.node < 0:
                one, two, _ = self.products[step.name]
                total[step.name] = total[step.sources[0]][one] * total[step.sources[1]][two]
        return total

    def _exponent(self, free: set[Any]) -> int:
        """How often a factor `1 + eps_0` is lost at most, in any count."""
        lost: dict[str, int] = {"": 0}
        for step in self.steps:
            lost[step.name] = sum(lost[name] for name in step.sources) + (step.name not in free)
        return max(lost[a] + lost[b] for a, b in self.through)

    def _classes(self, step: Step, width: dict[Any, int]) -> list[dict[str, np.ndarray]]:
        """Rows of a sketch in classes of equal shape: which points they are made of, padded, in chunks."""
        if step.node < 0:
            one, two, _ = self.products[step.name]
            each = width[step.sources[0]] * width[step.sources[1]]
            kept = max(1, POINTS // each)
            out = np.arange(len(one))
            parts = {"out": (out, len(one)), "one": (one, 0), "two": (two, 0)}
            return [{name: _chunked(values, kept, fill) for name, (values, fill) in parts.items()}]
        i, j = step.node, step.to
        n, each = len(self.tree.weight[i]), width[step.sources[0]]
        order, start = grouped(self.tree.kid[i, j], self.tree.count[i, j])
        size = np.diff(start)
        left, classes = np.argsort(-size, kind="stable"), []
        while len(left):
            most = int(size[left[0]])
            inside = left[size[left] > most // 2]
            left = left[len(inside) :]
            place = np.arange(most)
            points = np.where(place < size[inside][:, None], start[inside][:, None] + place, -1)
            rows = np.where(points >= 0, order[points], n)
            kept = max(1, POINTS // (most * each))
            classes.append({"out": _chunked(inside, kept, len(size)), "rows": _chunked(rows, kept, n)})
        return classes

    def _places(self, i: int) -> dict[str, np.ndarray]:
        """For each row of a node which rows of the sketches it looks at; one row more, for padding."""
        near = self.near[i]
        out = {str(j): np.append(self._id(i, tuple(k for k in near if k != j), self.products), 0) for j in near}
        out["rest"] = np.append(self._id(i, tuple(near[:-1]), self.products), 0)
        out["last"] = np.append(self.tree.kid[i, near[-1]] if near else np.zeros(len(self.tree.weight[i]), int), 0)
        return out

    def _rows_of(self, i: int, width: dict[Any, int]) -> np.ndarray:
        """The rows of a node in chunks for its counts."""
        n = len(self.tree.weight[i])
        return _chunked(np.arange(n), max(1, POINTS // (4 * width[self.through[i][0]])), n)


def _chunked(values: np.ndarray, kept: int, fill: Any) -> np.ndarray:
    """`(chunks, kept, ...)`, the last one filled up."""
    chunks = -(-len(values) // kept)
    kept = -(-len(values) // chunks)
    out = np.full((chunks * kept, *values.shape[1:]), fill, values.dtype)
    out[: len(values)] = values
    return out.reshape(chunks, kept, *values.shape[1:])


# --- the compiled program
# ------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=(0, 1))
def _run(structure: Any, mode: str, arrays: Any, totals: Any, s: Any, tau: Any) -> tuple[list[Any], list[Any]]:
    m, steps, through = structure
    sketches: dict[str, Any] = {"": (jnp.zeros((1, 1)), jnp.ones((1, 1)))}
    for step in steps:
        total, grid = totals[step.name], arrays["grid"][step.name]
        H = jnp.full((len(total) + 1, len(grid)), jnp.inf)
        mass = jnp.zeros((len(total) + 1, len(grid)))
        padded = jnp.append(total, 0.0)
        for part in arrays["classes"][step.name]:

            def chunk(part: Any, step: Step = step, grid: Any = grid, padded: Any = padded) -> tuple[Any, ...]:
                value, weight = _points(step, part, arrays, sketches, s)
                return part["out"], *_compress(value, weight, grid, padded[part["out"]], mode)

            out, new_H, new_mass = lax.map(chunk, part)
            place = out.reshape(-1)
            H = H.at[place].set(new_H.reshape(-1, len(grid)))
            mass = mass.at[place].set(new_mass.reshape(-1, len(grid)))
        sketches[step.name] = (H[:-1], mass[:-1])
    counted = [_through(i, through[i], arrays, sketches, s[i], tau) for i in range(m)]
    return [part[0] for part in counted], [part[1] for part in counted]


def _points(step: Step, part: Any, arrays: Any, sketches: Any, s: Any) -> tuple[Any, Any]:
    """Scores and weights of the points of some rows of a sketch, `(rows, points)` each."""
    if step.node < 0:
        (A, a), (B, b) = (sketches[name] for name in step.sources)
        value = A[part["one"]][:, :, None] + B[part["two"]][:, None, :]
        weight = a[part["one"]][:, :, None] * b[part["two"]][:, None, :]
    else:
        rows, i, j = part["rows"], step.node, step.to
        A, a = sketches[step.sources[0]]
        look = arrays["place"][i][str(j)][rows]
        value = s[i][rows][:, :, None] + A[look]
        weight = jnp.where(jnp.isfinite(value), arrays["weight"][i][rows][:, :, None] * a[look], 0)
    return value.reshape(len(value), -1), weight.reshape(len(value), -1)


def _sorted(value: Any, weight: Any) -> tuple[Any, Any]:
    """Sorted by value along the last axis, and the running sum of weights."""

    def on_host(value: Any, weight: Any) -> tuple[np.ndarray, np.ndarray]:
        value, weight = np.asarray(value), np.asarray(weight)
        order = np.argsort(value, axis=-1)
        return np.take_along_axis(value, order, -1), np.cumsum(np.take_along_axis(weight, order, -1), axis=-1)

    def by_numpy(value: Any, weight: Any) -> tuple[Any, Any]:
        shape = jax.ShapeDtypeStruct(value.shape, value.dtype)
        return jax.pure_callback(on_host, (shape, shape), value, weight, vmap_method="broadcast_all")

    def by_xla(value: Any, weight: Any) -> tuple[Any, Any]:
        value, weight = lax.sort((value, weight), num_keys=1, is_stable=False)
        return value, jnp.cumsum(weight, axis=-1)

    return lax.platform_dependent(value, weight, cpu=by_numpy, default=by_xla)


def _compress(value: Any, weight: Any, grid: Any, total: Any, mode: str) -> tuple[Any, Any]:
    """The sketch `(rows, K)` of points `(rows, points)`: representatives and masses."""
    value, running = _sorted(value, weight)
    high = jnp.minimum(grid, total[:, None])
    below = jnp.append(jnp.zeros(1), grid[:-1])
    mass = jnp.maximum(high - below, 0)
    first = below + 1 + 0 * high
    rank = {"lower": high, "upper": first, "mid": jnp.ceil((first + high) / 2)}[mode]
    rank = jnp.minimum(rank, high) * SLACK
    place = jax.vmap(partial(jnp.searchsorted, side="left"))(running, rank)
    place = jnp.minimum(place, value.shape[1] - 1)
    return jnp.where(mass > 0, jnp.take_along_axis(value, place, axis=1), jnp.inf), mass


def _through(i: int, sources: Any, arrays: Any, sketches: Any, s: Any, tau: Any) -> tuple[Any, Any]:
    """How many far rows go through each row of a node, and the sum of their slacks, `(n_i,)` each."""
    A, a = sketches[sources[0]]
    B, b = sketches[sources[1]]
    # One entry before the first, for thresholds below everything.
    count = jnp.concatenate([jnp.zeros((len(B), 1)), jnp.cumsum(b, axis=1)], axis=1)
    moment = jnp.concatenate([jnp.zeros((len(B), 1)), jnp.cumsum(jnp.where(b > 0, b * B, 0), axis=1)], axis=1)
    place = arrays["place"][i]
    single = sources[1] == ""

    def chunk(rows: Any) -> tuple[Any, Any]:
        t = tau - s[rows]
        near = A[place["rest"][rows]]
        usable = jnp.isfinite(near) & jnp.isfinite(t)[:, None]
        left = jnp.where(usable, t[:, None] - near, 0)
        look = place["last"][rows]
        if single:
            far = (usable & (left >= 0)).astype(left.dtype)
            room = far * left
        else:
            k = _bisect(B, look, left)
            far = jnp.where(usable, count[look[:, None], k], 0)
            room = jnp.where(usable, left * far - moment[look[:, None], k], 0)
        each = arrays["weight"][i][rows][:, None] * a[place["rest"][rows]]
        return (each * far).sum(axis=1), (each * room).sum(axis=1)

    far, room = lax.map(chunk, arrays["rows"][i])
    n = len(s) - 1
    return far.reshape(-1)[:n], room.reshape(-1)[:n]


def _bisect(B: Any, look: Any, left: Any) -> Any:
    """How many entries of the sorted rows `B[look]` are at most `left`, `(rows, k)`."""
    low, high = jnp.zeros(left.shape, jnp.int32), jnp.full(left.shape, B.shape[1], jnp.int32)

    def halve(_: Any, ends: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = ends
        middle = (low + high) // 2
        inside = B[look[:, None], jnp.minimum(middle, B.shape[1] - 1)] <= left
        going = low < high
        return jnp.where(going & inside, middle + 1, low), jnp.where(going & ~inside, middle, high)

    return lax.fori_loop(0, B.shape[1].bit_length() + 1, halve, (low, high))[0]
