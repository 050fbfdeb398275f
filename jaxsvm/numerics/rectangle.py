"""The maximum of a quadratic of two variables over a rectangle."""

import jax.numpy as jnp
from jaxtyping import Array


def best_in_rectangle(
    g: tuple[Array, Array], Q: tuple[Array, Array, Array], box_i: tuple[Array, Array], box_j: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """Maximise `g't - 1/2 t'Qt` over a rectangle that contains 0, from its interior and its four sides.

    Args:
        g: The two entries of the gradient.
        Q: `Q_ii`, `Q_jj` and `Q_ij`.
        box_i: Bounds of `t_i`, which may be infinite.
        box_j: Bounds of `t_j`.

    Returns:
        `t_i`, `t_j` and the maximum.
    """
    (g_i, g_j), (D_i, D_j, Q_ij) = g, Q

    def value(t_i: Array, t_j: Array) -> Array:
        return g_i * t_i + g_j * t_j - (D_i * t_i * t_i + D_j * t_j * t_j) / 2 - Q_ij * t_i * t_j

    def given(t: Array, g: Array, D: Array, box: tuple[Array, Array]) -> Array:
        return jnp.clip((g - Q_ij * t) / jnp.maximum(D, 1e-12), *box)  # LIBSVM's floor of a curvature

    determinant = D_i * D_j - Q_ij * Q_ij
    scale = jnp.where(determinant > 0, determinant, 1)
    inner_i, inner_j = (g_i * D_j - g_j * Q_ij) / scale, (g_j * D_i - g_i * Q_ij) / scale
    inside = (determinant > 0) & (inner_i >= box_i[0]) & (inner_i <= box_i[1])
    inside = inside & (inner_j >= box_j[0]) & (inner_j <= box_j[1])
    best_i, best_j = jnp.where(inside, inner_i, 0), jnp.where(inside, inner_j, 0)
    best = jnp.where(inside, value(inner_i, inner_j), 0)
    sides = [(end, given(end, g_j, D_j, box_j)) for end in box_i]
    sides += [(given(end, g_i, D_i, box_i), end) for end in box_j]
    for t_i, t_j in sides:
        on_side = value(t_i, t_j)
        better = ~inside & (on_side > best)
        best_i, best_j = jnp.where(better, t_i, best_i), jnp.where(better, t_j, best_j)
        best = jnp.where(better, on_side, best)
    return best_i, best_j, best
