"""Which tables join with which: acyclicity by ear removal, and the join tree, a cheap one where there are several.

A join is a hypergraph: its key attributes are the vertices, its tables the edges. It is acyclic where a tree over the
tables exists in which the tables of each attribute are connected; then one pass over the tree counts the join.
GYO (Graham; Yu and Ozsoyoglu 1979) removes ears until one table is left, and what it cannot remove is the cyclic core.
The tree is a spanning tree of maximum weight, where an edge weighs the attributes it shares (Bernstein and Goodman
1981).
"""

from collections.abc import Callable, Sequence

from jaxsvm.errors import InputError


def cyclic_core(tables: Sequence[frozenset[str]]) -> list[int]:
    """The tables that ear removal leaves: none where the join is acyclic.

    Args:
        tables: The key attributes of each table.
    """
    alive = set(range(len(tables)))

    def ear(i: int) -> bool:
        shared = {a for a in tables[i] if any(a in tables[k] for k in alive - {i})}
        return any(shared <= tables[w] for w in alive - {i})

    while len(alive) > 1:
        found = next((i for i in sorted(alive) if ear(i)), None)
        if found is None:
            return sorted(alive)
        alive.remove(found)
    return []


def join_tree(
    names: Sequence[str], tables: Sequence[frozenset[str]], label: int, cost: Callable[[int, int], float]
) -> list[tuple[int, int]]:
    """The edges of a join tree.

    Args:
        names: Of the tables, for the error.
        tables: The key attributes of each.
        label: The table with the label: a good hub.
        cost: Of an edge, where several trees would do: the rows of the join of its two tables.

    Returns:
        `m - 1` pairs of tables. Among trees of maximum weight, one of small degrees, then of cheap edges: a node's
        messages cost a product for each neighbour beyond the second.

    Raises:
        InputError: On a cyclic join, naming its core.
    """
    core = cyclic_core(tables)
    if core:
        parts = "; ".join(f"{names[i]}({', '.join(sorted(tables[i]))})" for i in core)
        raise InputError(
            f"keys make a cyclic join, whose core is {parts}: join some of these tables into one (a view), or leave a "
            "key out."
        )
    parent = list(range(len(tables)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    degree = [0] * len(tables)
    edges: list[tuple[int, int]] = []
    while len(edges) < len(tables) - 1:
        pairs = [(i, j) for i in range(len(tables)) for j in range(i) if root(i) != root(j)]
        heaviest = max(len(tables[i] & tables[j]) for i, j in pairs)
        equal = [(i, j) for i, j in pairs if len(tables[i] & tables[j]) == heaviest]

        def worth(edge: tuple[int, int]) -> tuple[float, ...]:
            i, j = edge
            return max(degree[i], degree[j]), label not in edge, cost(i, j)

        i, j = min(equal, key=worth) if len(equal) > 1 else equal[0]
        parent[root(i)] = root(j)
        degree[i], degree[j] = degree[i] + 1, degree[j] + 1
        edges.append((i, j))
    return edges
