"""Find which tables join with which: test acyclicity by ear removal, and choose a cheap join tree.

A join is a hypergraph: its key attributes are the vertices, its tables the edges. It is acyclic if there is a tree over
the tables in which the tables of each attribute are connected; then one pass over the tree counts the join. GYO
(Graham; Yu and Ozsoyoglu 1979) removes ears until one table is left; the tables it cannot remove are the cyclic core.
The tree is a spanning tree of maximum weight, where the weight of an edge is the number of attributes that it shares
(Bernstein and Goodman 1981).
"""

from collections.abc import Sequence

from jaxsvm.errors import InputError


def cyclic_core(tables: Sequence[frozenset[str]]) -> list[int]:
    """Return the tables that ear removal leaves, given the key attributes of each: none if the join is acyclic."""
    alive = set(range(len(tables)))

    def is_ear(i: int) -> bool:
        shared = {a for a in tables[i] if any(a in tables[k] for k in alive - {i})}
        return any(shared <= tables[w] for w in alive - {i})

    while len(alive) > 1:
        ear = next((i for i in sorted(alive) if is_ear(i)), None)
        if ear is None:
            return sorted(alive)
        alive.remove(ear)
    return []


def join_tree(names: Sequence[str], tables: Sequence[frozenset[str]], label: int) -> list[tuple[int, int]]:
    """Return the edges of a join tree.

    Args:
        names: Names of the tables, for the error.
        tables: The key attributes of each.
        label: The table with the label: a good hub.

    Returns:
        `m - 1` pairs of tables. Among trees of maximum weight, one of small degrees: a node's messages cost a product
        for each neighbour beyond the second.

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
    part = list(range(len(tables)))  # the connected part of each table
    degree = [0] * len(tables)
    shared = {(i, j): len(tables[i] & tables[j]) for i in range(len(tables)) for j in range(i)}
    edges: list[tuple[int, int]] = []
    while len(edges) < len(tables) - 1:
        i, j = min(shared, key=lambda e: (-shared[e], max(degree[e[0]], degree[e[1]]), label not in e))
        part = [part[j] if p == part[i] else p for p in part]
        shared = {edge: many for edge, many in shared.items() if part[edge[0]] != part[edge[1]]}
        degree[i], degree[j] = degree[i] + 1, degree[j] + 1
        edges.append((i, j))
    return edges
