"""Print how long calls take to obey a signal: `python tests/faults.py KIND [COUNT]`. Kills and forks have tests.

Times are of a machine that others may use too: the load stands beside them. A signal comes from a thread at a random
time of a long call whose programs are compiled; the call says how it ended.
"""

import json
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))


def rows(n, d=8, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, np.where(x[:, 0] + x[:, 1] ** 2 + rng.normal(size=n) > 0.7, 1.0, -1.0)


def _calls(kind, folder):
    """Return a long call of a kind (`long`: whole, else only what compiles) that returns what it kept."""
    import jaxsvm
    from jaxsvm import coresets, designs, relational
    from jaxsvm.estimators import SVC

    x, y = rows(3000)
    if kind in ("fit", "solve_path", "cross_validate"):
        problem = jaxsvm.svm_problem(jaxsvm.gram(jaxsvm.kernels.RBF(0.2), x.astype(np.float32)), y, 1e3)
        Cs = np.geomspace(0.01, 1e3, 12)

    def kept(fits):
        gaps, codes = np.ravel(fits.certificate.relative_gap), np.ravel(fits.status.code)
        return f"{(codes == 0).sum()} certified, {np.isfinite(gaps).sum()} with a gap, of {len(gaps)}"

    if kind == "SVC.fit":
        return lambda long: str(SVC(C=1e4, gamma=0.3, tol=1e-7, max_iter=-1 if long else 1).fit(x, y).fit_status_)
    if kind == "fit":
        solver = jaxsvm.FrankWolfe(variant="classic", tol=1e-12, max_steps=2**30)
        return lambda long: kept(jaxsvm.fit(problem, solver, max_seconds=60 if long else 1))
    if kind == "solve_path":
        return lambda long: kept(jaxsvm.solve_path(problem, Cs, tol=1e-6))
    if kind == "cross_validate":
        return lambda long: kept(jaxsvm.cross_validate(problem, Cs, 3, tol=1e-6).fits)
    if kind == "designs.fit":
        x, y = rows(400_000, 20)
        design = designs.from_arrays(x, y)
        return lambda long: kept(designs.fit(design, [0.1, 1.0, 10.0], tol=1e-12, max_passes=10**6 if long else 12))
    if kind == "relational.fit":
        from test_relational import PATH, join_of

        join = join_of(PATH, n=4000)
        return lambda long: str(relational.fit(join, 1e-4, tol=1e-12, max_steps=10**6 if long else 12).status.name)
    x, y = rows(60_000)
    path, checkpoint = Path(folder, "rows.csv"), Path(folder, "state.npz")
    np.savetxt(path, np.column_stack([x, y]), delimiter=",", fmt="%.5g")

    def stream(long):
        checkpoint.unlink(missing_ok=True)
        return str(len(coresets.from_files(path, 1.0, 200, checkpoint=checkpoint)))

    return stream


def signals(kind, count=20):
    from jaxsvm.loop.interruption import Interruption

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        call = _calls(kind, folder)
        call(False)
        started = time.monotonic()
        if kind in ("solve_path", "cross_validate", "coresets.from_files"):
            call(True)
        length, found = min(max(time.monotonic() - started, 4.0), 15.0), []
        while len(found) < count:
            Interruption.last, sent = -math.inf, []

            def press(sent=sent):
                time.sleep(random.uniform(0.02, 0.7) * length)
                sent.append((time.monotonic(), time.process_time()))
                os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=press, daemon=True)
            thread.start()
            try:
                outcome, ended = call(True), (time.monotonic(), time.process_time())
                thread.join()
            except KeyboardInterrupt:
                outcome, ended = "KeyboardInterrupt", (time.monotonic(), time.process_time())
            if sent and sent[0][0] < ended[0]:
                found.append((ended[0] - sent[0][0], ended[1] - sent[0][1], outcome))
        seconds, cpu, outcomes = zip(*found, strict=True)
        said = {outcome: outcomes.count(outcome) for outcome in outcomes}
        took = f"seconds median {np.median(seconds):.2f} largest {max(seconds):.2f}, CPU seconds largest {max(cpu):.2f}"
        print(f"{kind}: {count} signals, {took}, {json.dumps(said)}, load {os.getloadavg()[0]:.0f}", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    signals(sys.argv[1], *map(int, sys.argv[2:]))
