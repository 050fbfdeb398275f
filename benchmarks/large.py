"""n = 100,000 in little memory: rows on demand, to a certified relative gap; peak memory of the process is reported.

Usage: python benchmarks/large.py [--n 100000] [--d 50] [--C 1] [--tol 1e-2] [--loss hinge] [--peers aocl32 SVC]
    [--max-seconds 1200] [--json FILE]

Points are `make_classification` of `single_fit.py`, standardised, gamma 1 / d; the solver is what `fit` chooses.
The hinge has a free bias; peers solve it with tol 1e-3, each in a process of its own that is stopped after
`--max-seconds`. Gaps are judged in float64 from the definitions.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
from peers import hinge_gap, peer
from single_fit import data, judge

import jaxsvm
from jaxsvm.kernels import RBF

PEER_TOL = 1e-3


def peak() -> float:
    """Peak resident memory of this process in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def ours(options):
    """One fit, its certificate, and the same judged outside."""
    x, y, x_test, y_test = data(options.n, options.d)
    started = time.perf_counter()
    gram = jaxsvm.gram(RBF(gamma=1 / options.d), x)
    if options.loss == "squared":
        problem = jaxsvm.svm_problem(gram, y, options.C)
    else:
        problem = jaxsvm.hinge_problem(gram, y, options.C, bias="free")
    fit = jaxsvm.fit(problem, tol=options.tol, max_seconds=options.max_seconds)
    jax.block_until_ready(fit)
    row = {
        "name": "jaxsvm", "n": options.n, "d": options.d, "C": options.C, "loss": options.loss, "tol": options.tol,
        "status": fit.status.name, "solvers": fit.solvers, "seconds": time.perf_counter() - started,
        "certified_gap": float(fit.certificate.relative_gap), "support": len(fit.support), "peak_GiB": peak(),
        "evaluations": fit.kernel_evaluations / options.n**2,
    }  # fmt: skip
    row["accuracy"] = float((np.asarray(jaxsvm.predict(fit, problem, x_test)) == y_test).mean())
    if options.loss == "squared":
        row["judged_gap"] = judge(x, y, options.C, fit.alpha, 1 / options.d)
    else:
        row["judged_gap"] = hinge_gap(
            x, y, options.C, fit.support, np.asarray(fit.dual_coef)[fit.support], 1 / options.d
        )
    return row


def theirs(name, options):
    """One fit of a peer, in this process."""
    x, y, *_ = data(options.n, options.d)
    took, support, coefficients = peer(name, x, y, options.C, 1 / options.d, PEER_TOL)
    gap = hinge_gap(x, y, options.C, support, coefficients, 1 / options.d)
    return {"name": name, "n": options.n, "seconds": took, "support": len(support), "judged_gap": gap,
            "peak_GiB": peak()}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--d", type=int, default=50)
    parser.add_argument("--C", type=float, default=1.0)
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument("--loss", choices=["hinge", "squared"], default="hinge")
    parser.add_argument("--peers", nargs="*", default=[])
    parser.add_argument("--only", help="a peer: run it in this process and nothing else")
    parser.add_argument("--max-seconds", type=float, default=1200)
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(theirs(options.only, options)))
        return
    rows = [ours(options)]
    print(json.dumps(rows[-1]), flush=True)
    for name in options.peers:
        sizes = [f"--{field}={getattr(options, field)}" for field in ("n", "d", "C")]
        command = [sys.executable, __file__, "--only", name, *sizes]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=options.max_seconds)
        except subprocess.TimeoutExpired:
            rows.append({"name": name, "n": options.n, "stopped_after": options.max_seconds})
        else:
            failed = {"name": name, "failed": done.stderr.strip().splitlines()[-1:]}
            rows.append(failed if done.returncode else json.loads(done.stdout))
        print(json.dumps(rows[-1]), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
