"""A batch of small linear SVMs as a layer: value, and gradient by the features, beside qpax and jaxopt.

    PYTHONPATH=.:/path/of/peers python benchmarks/layer.py [--shapes 64x50x32x1 1024x25x64x5] [--ways hinge qpax]

A shape is problems x samples x features x classes (one against the rest, all of a problem on the same points). float32,
x64 off, C = 1, a constant feature for the bias. The loss is the mean square of decision values. `qpax` solves the
hinge's dual by interior points (its derivative is that of a smoothed problem), `jaxopt` by projected gradients to its
default tolerance. Printed are lines of StableHLO, CPU seconds of compilation, the least of five runs in ms, and how far
value and gradient are from those of our hinge.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from lanes import cpu, least

import jaxsvm
from jaxsvm.kernels import Linear

C = 1.0


def hinge(x: Any, y: Any) -> Any:
    return y * jaxsvm.fit(jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x), y, C)).margins


def squared(x: Any, y: Any) -> Any:
    return y * jaxsvm.fit(jaxsvm.svm_problem(jaxsvm.gram(Linear(), x), y, C)).margins


def dual(x: Any, y: Any) -> tuple[Any, Any]:
    K = x @ x.T + 1
    return K * jnp.outer(y, y), K


def by_qpax(x: Any, y: Any) -> Any:
    import qpax

    (Q, K), n, dtype = dual(x, y), len(y), x.dtype
    eye, none = jnp.eye(n, dtype=dtype), jnp.zeros((0, n), dtype)
    G, h = jnp.concatenate([-eye, eye]), jnp.concatenate([jnp.zeros(n, dtype), jnp.full(n, C, dtype)])
    a = qpax.solve_qp_primal(Q, -jnp.ones(n, dtype), none, none[:, 0], G, h)
    return K @ (y * a)


def by_jaxopt(x: Any, y: Any) -> Any:
    import jaxopt

    def objective(a: Any, x: Any, y: Any) -> Any:
        v = jnp.append(x.T @ (y * a), y @ a)
        return v @ v / 2 - a.sum()

    box = jaxopt.projection.projection_box
    solver = jaxopt.ProjectedGradient(objective, box, maxiter=5000)
    a = solver.run(jnp.zeros_like(y), hyperparams_proj=(0.0, C), x=x, y=y).params
    return dual(x, y)[1] @ (y * a)


WAYS = {"hinge": hinge, "squared": squared, "qpax": by_qpax, "jaxopt": by_jaxopt}


def layer(way: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """The mean square of decision values: `x (b, n, d)`, `y (b, c, n)`."""
    decisions = jax.vmap(jax.vmap(way, in_axes=(None, 0)))(x, y)
    return jnp.mean(decisions**2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["64x50x32x1", "1024x25x64x5"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    arguments = parser.parse_args()
    for shape in arguments.shapes:
        b, n, d, c = map(int, shape.split("x"))
        rng = np.random.default_rng(0)
        x = rng.normal(size=(b, n, d)).astype(np.float32)
        kinds = (x[..., 0] > 0) if c == 1 else np.argmax(x[..., :c], axis=-1)
        signs = [np.where(kinds == k, 1, -1) for k in range(max(c, 1))] if c > 1 else [np.where(kinds, 1, -1)]
        y = np.stack(signs, axis=1).astype(np.float32)
        y[..., 0], y[..., 1] = 1, -1  # a sample of each class in every problem
        values = {}
        print(f"{shape}\n{'':10}{'':10}{'lines':>8}{'compile, s':>12}{'run, ms':>10}{'value':>12}")
        for name in arguments.ways:
            value = lambda x, y, way=WAYS[name]: layer(way, x, y)  # noqa: E731
            for what, function in (("value", value), ("gradient", jax.grad(value))):
                try:
                    begun = cpu()
                    lowered = jax.jit(function).lower(x, y)
                    program = lowered.compile()
                    compiled = cpu() - begun
                except ImportError as error:
                    print(f"{name:10}{what:10}  skipped: {error}")
                    continue
                result = np.asarray(program(x, y))
                values[what, name] = result
                mine = values.get((what, "hinge"), result)
                off = np.nan if name == "squared" else np.linalg.norm(result - mine) / np.linalg.norm(mine)
                said = f"{off:12.1e}" if np.isfinite(off) else f"{int(np.isnan(result).sum()):8} NaN"
                lines, took = lowered.as_text().count("\n"), least(lambda p=program, given=(x, y): p(*given))
                row = f"{lines:8}{compiled:12.1f}{took:10.1f}"
                print(f"{name:10}{what:10}{row}{said}", flush=True)


if __name__ == "__main__":
    main()
