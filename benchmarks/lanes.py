"""Fits over C in lanes: `jit(vmap(fit))` against `jit(lax.map(fit))` and a Python loop of a jitted fit, run times.

    python benchmarks/lanes.py [--n 20 50 200 1000] [--lanes 8 64] [--busy]

RBF kernel, default solver, C from 0.1 to 10, float32, x64 off. The least of five runs, in ms; compilation apart, in CPU
seconds. `--busy`: beside a process that spins.
"""

import argparse
import multiprocessing
import time
from time import process_time as cpu

import jax
import numpy as np

import jaxsvm
from jaxsvm.kernels import RBF

RUNS = 5


def spin() -> None:
    while True:
        pass


def least(call) -> float:
    jax.block_until_ready(call())
    spent = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        jax.block_until_ready(call())
        spent.append(time.perf_counter() - begun)
    return 1e3 * min(spent)


def row(loss: str, n: int, lanes: int) -> str:
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, 10)).astype(np.float32)
    y = np.where(x[:, 0] + rng.normal(size=n) > 0, 1, -1)
    Cs = np.geomspace(0.1, 10, lanes).astype(np.float32)
    gram = jaxsvm.gram(RBF(0.1), x)
    make = jaxsvm.svm_problem if loss == "squared" else lambda *given: jaxsvm.hinge_problem(*given, bias="free")

    def fit(C):
        return jaxsvm.fit(make(gram, y, C))

    ways = {"vmap": jax.jit(jax.vmap(fit)), "map": jax.jit(lambda Cs: jax.lax.map(fit, Cs)), "loop": jax.jit(fit)}
    took, compiled = {}, {}
    for name, way in ways.items():
        begun = cpu()
        program = way.lower(Cs[0] if name == "loop" else Cs).compile()
        compiled[name] = cpu() - begun
        took[name] = least(lambda p=program, n=name: [p(C) for C in Cs] if n == "loop" else p(Cs))
    times = "".join(f"{took[name]:10.2f}" for name in ways)
    return (
        f"{loss:8}{n:6}{lanes:7}{times}{took['vmap'] / took['map']:10.2f}{compiled['vmap']:10.1f}{compiled['map']:8.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[20, 50, 200, 1000])
    parser.add_argument("--lanes", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--busy", action="store_true")
    arguments = parser.parse_args()
    neighbour = multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
    if arguments.busy:
        neighbour.start()
    print(f"{'loss':8}{'n':>6}{'lanes':>7}{'vmap':>10}{'map':>10}{'loop':>10}{'vmap/map':>10}{'compile':>10}{'':>8}")
    for loss in ("hinge", "squared"):
        for n in arguments.n:
            for lanes in arguments.lanes:
                print(row(loss, n, lanes), flush=True)
    if arguments.busy:
        neighbour.terminate()


if __name__ == "__main__":
    main()
