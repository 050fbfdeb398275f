"""Programs of many small problems side by side, as users vectorise them; run by name, in a process of its own.

Usage: python tests/lanes.py [--lanes 1024] NAME...
"""

import argparse
import time

import jax
import jax.numpy as jnp

import jaxsvm
from jaxsvm.kernels import RBF, Linear

N, D = 25, 64
Y = jnp.where(jnp.arange(N) % 2 == 0, 1.0, -1.0)


def linear(x):
    return jaxsvm.gram(Linear(), x)


def radial(x):
    return jaxsvm.gram(RBF(0.01), x, store=True)


def low_rank(x):
    return jaxsvm.gram(RBF(0.01), x, rank=10)


def hinge(gram, bias="regularized"):
    return lambda x: jaxsvm.hinge_problem(gram(x), Y, 1.0, bias=bias)


def squared(gram, bias="regularized"):
    return lambda x: jaxsvm.svm_problem(gram(x), Y, 1.0, bias=bias)


def regression(x):
    q = jnp.concatenate([x[:, 0] - 0.1, -x[:, 0] - 0.1])
    signs = jnp.concatenate([jnp.ones(N), -jnp.ones(N)])
    return jaxsvm.box_problem(radial(jnp.concatenate([x, x])), q, 1.0, y=signs, c=signs)


def gradient(problem, solver=None):
    def coefficients(x):
        made = problem(x)
        return (jaxsvm.fit(made, tol=1e-4) if solver is None else jaxsvm.fit(made, solver)).dual_coef

    return jax.grad(lambda X: jnp.mean(jax.vmap(coefficients)(X) ** 2))


def value(problem, solver=None):
    return jax.vmap(lambda x: jaxsvm.fit(problem(x), solver).R)


PROGRAMS = {
    "hinge": gradient(hinge(linear)),
    "hinge, free bias": gradient(hinge(linear, "free")),
    "hinge, no bias": gradient(hinge(linear, "none")),
    "hinge of low rank": gradient(hinge(low_rank)),
    "hinge, interior points": gradient(hinge(linear, "free"), jaxsvm.InteriorPoint()),
    "hinge, working sets": gradient(hinge(radial), jaxsvm.WorkingSet()),
    "regression": gradient(regression),
    "squared hinge": gradient(squared(linear)),
    "squared hinge, free bias": gradient(squared(radial, "free")),
    "squared hinge of low rank": gradient(squared(low_rank), jaxsvm.Newton()),
    "squared hinge, by products": gradient(squared(radial), jaxsvm.Newton(method="cg")),
    "squared hinge, polished": value(squared(radial), jaxsvm.polished(jaxsvm.FrankWolfe())),
    "slack": value(lambda x: jaxsvm.slack_problem(radial(x), Y, 0.1), jaxsvm.StochasticBatchPerceptron(steps=100)),
    "ball": value(lambda x: jaxsvm.meb_problem(radial(x))),
}


def points(lanes):
    return jax.random.normal(jax.random.key(0), (lanes, N, D), jnp.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=1024)
    parser.add_argument("names", nargs="+")
    arguments = parser.parse_args()
    for name in arguments.names:
        begun = time.perf_counter()
        program = jax.jit(PROGRAMS[name]).lower(points(arguments.lanes)).compile()
        compiled = time.perf_counter()
        found = jax.block_until_ready(program(points(arguments.lanes)))
        took = time.perf_counter() - compiled
        assert jnp.isfinite(found).all(), f"{name}: not finite in {jnp.isnan(found).any(axis=(1, 2)).sum()} lanes"
        print(f"{name}: compiled in {compiled - begun:.1f} s, returned in {took:.2f} s", flush=True)


if __name__ == "__main__":
    main()
