"""Print what kills, signals and forks do: `python tests/faults.py saves | signals KIND | command | forks`.

Times are of a machine that others may use too: the load stands beside them. A signal comes from a thread at a random
time of a long call whose programs are compiled; the call says how it ended.
"""

import contextlib
import json
import math
import os
import random
import signal
import subprocess
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


# --- saves ---


def _writers(folder):
    """Formats: a function of a value and a path, and two values; models are read from `folder`."""
    import jaxsvm
    from jaxsvm import coresets
    from jaxsvm.coresets.summary import Coreset
    from jaxsvm.models import interchange

    def models():
        return [jaxsvm.load_model(Path(folder, f"{k}.npz")) for k in range(2)]

    def smalls():
        x, y = rows(400)
        return [Coreset(k + x, y, 1.0 + k + np.ones(len(y)), {"C": 1.0}) for k in range(2)]

    functions = {"model.npz": (jaxsvm.Model.save, models), "model.txt": (interchange.to_libsvm, models)}
    functions |= {"model.onnx": (interchange.to_onnx, models)}
    return functions | {"small.npz": (lambda small, path: coresets.save_coreset(path, small), smalls)}


SERVER = """
import os, sys, faults
import jaxsvm, jaxsvm.models.interchange, jaxsvm.coresets
function, values = faults._writers(sys.argv[3])[sys.argv[1]]
for line in sys.stdin:
    child = os.fork()  # before JAX is used
    if not child:
        made, k = values(), 0
        function(made[0], sys.argv[2])  # imports what it needs: else kills come before any write
        print(os.getpid(), flush=True)
        while True:
            function(made[k % 2], sys.argv[2])
            k += 1
    os.waitpid(child, 0)
"""


def saves(count=200, *only):
    """Kills: each process is stopped by kill -9 at a random time of its saves; what is there is old or new."""
    import jaxsvm

    with tempfile.TemporaryDirectory() as source:
        x, y = rows(400)
        problem = jaxsvm.svm_problem(jaxsvm.gram(jaxsvm.kernels.RBF(0.2), x), y)
        for k, C in enumerate((0.1, 1.0)):
            jaxsvm.compact(jaxsvm.fit(problem.at(C)), problem.at(C)).save(Path(source, f"{k}.npz"))
        for name, (function, values) in _writers(source).items():
            if only and name not in only:
                continue
            with tempfile.TemporaryDirectory() as folder:
                _killed(name, function, values(), Path(folder), source, -(-count // 6))


def _killed(name, function, values, folder, source, count):
    known, seen, left = [], [], 0
    for value in values:
        function(value, folder / name)
        known.append(tuple(p.read_bytes() for p in sorted(folder.iterdir())))
    partly = [files[:1] for files in known if len(files) > 1]
    command = [sys.executable, "-c", SERVER, name, str(folder / name), source]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), sys.path[0]])}
    server = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment)
    while len(seen) < count:
        server.stdin.write("\n")
        server.stdin.flush()
        child = int(server.stdout.readline())
        time.sleep(random.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        time.sleep(0.05)
        for old in folder.glob(".jaxsvm-*"):
            old.unlink()
            left += 1
        found = tuple(p.read_bytes() for p in sorted(folder.iterdir()))
        seen.append("older or newer" if found in known else "no second file" if found in partly else "damaged or mixed")
    server.stdin.close()
    said = {word: seen.count(word) for word in seen}
    print(f"{name}: {len(seen)} kills, {json.dumps(said)}, {left} temporary files left", flush=True)


# --- signals ---


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
        x, y = rows(400_000, 60)
        design = designs.from_arrays(x, y)
        return lambda long: kept(designs.fit(design, np.geomspace(0.01, 100, 12), tol=1e-12))
    if kind == "relational.fit":
        from test_relational import PATH, join_of

        join = join_of(PATH, n=4000)
        return lambda long: str(relational.fit(join, 1e-4, tol=1e-12, max_steps=10**6 if long else 12).status.name)
    x, y = rows(60_000)
    path, checkpoint = Path(folder, "rows.csv"), Path(folder, "state.npz")
    np.savetxt(path, np.column_stack([x, y]), delimiter=",", fmt="%.5g")

    def stream(long):
        checkpoint.unlink(missing_ok=True)
        return str(len(coresets.of_rows(designs.from_files(path), 1.0, 200, checkpoint=checkpoint)))

    return stream


def signals(kind, count=20):
    from jaxsvm.loop.interruption import Interruption

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        call = _calls(kind, folder)
        call(False)
        started = time.monotonic()
        if kind in ("solve_path", "cross_validate", "designs.fit", "coresets.of_rows"):
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
                outcome = call(True)
            except KeyboardInterrupt:
                outcome = "KeyboardInterrupt"
            ended = time.monotonic(), time.process_time()
            with contextlib.suppress(KeyboardInterrupt):  # of a signal after the end, which does not count
                thread.join()
            if sent and sent[0][0] < ended[0]:
                found.append((ended[0] - sent[0][0], ended[1] - sent[0][1], outcome))
        seconds, cpu, outcomes = zip(*found, strict=True)
        said = {outcome: outcomes.count(outcome) for outcome in outcomes}
        took = f"seconds median {np.median(seconds):.2f} largest {max(seconds):.2f}, CPU seconds largest {max(cpu):.2f}"
        print(f"{kind}: {count} signals, {took}, {json.dumps(said)}, load {os.getloadavg()[0]:.0f}", flush=True)


def command(count=20):
    """Signals from the first tenth of a second to the end of a path with folds."""
    with tempfile.TemporaryDirectory() as folder:
        x, y = rows(4000)
        np.savetxt(Path(folder, "rows.csv"), np.column_stack([x, y]), delimiter=",", fmt="%.5g")
        for _ in range(count):
            out = Path(folder, "model.npz")
            out.unlink(missing_ok=True)
            arguments = ["path", "rows.csv", "--folds", "3", "--tol", "1e-6", "--out", "model.npz"]
            process = subprocess.Popen(
                [sys.executable, "-m", "jaxsvm", *arguments], cwd=folder, stdout=-1, stderr=-1, text=True,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
            )  # fmt: skip
            delay = random.uniform(0.1, 40)
            time.sleep(delay)
            sent = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=120)
            lines = [line[:90] for line in error.splitlines() if "error" in line or "Exception" in line]
            took = f"signal at {delay:.1f} s, ended after {time.monotonic() - sent:.2f} s"
            kept = f"exit code {process.returncode}, model {out.exists()}, {lines}"
            print(f"command: {took}, {kept}, load {os.getloadavg()[0]:.0f}", flush=True)


# --- forks ---


def _work(name):
    """What a child computes."""
    import jaxsvm
    from jaxsvm import coresets, designs
    from jaxsvm.estimators import SVC

    x, y = rows(60)
    if name == "gram":
        return jaxsvm.gram(jaxsvm.kernels.RBF(0.2), x).n
    if name == "SVC.fit":
        return SVC().fit(x, y).fit_status_
    if name == "coreset":
        return len(coresets.coreset(x, y, 1.0, 20))
    if name == "designs.fit":
        return designs.fit(designs.from_arrays(x, y), 1.0).passes
    if name == "coresets.of_rows":
        np.savez("/tmp/faults_rows.npz", X=x, y=y)
        return len(coresets.of_rows(designs.from_files("/tmp/faults_rows.npz"), 1.0, 20))
    problem = jaxsvm.hinge_problem(jaxsvm.gram(jaxsvm.kernels.Linear(), x), y)
    if name == "Pegasos.start":
        return type(jaxsvm.Pegasos().start(8, 1e-3)).__name__
    if name == "solve_path":
        return jaxsvm.solve_path(problem, [0.1, 1.0], max_seconds=5).status.name.tolist()
    return str(jaxsvm.fit(problem).status.name)


WORK = (
    *("fit", "solve_path", "gram", "SVC.fit", "coreset", "designs.fit", "coresets.of_rows"),
    "Pegasos.start",
)


def _child(name, queue):
    try:
        queue.put(f"ends: {_work(name)}")
    except Exception as error:
        queue.put(f"{type(error).__name__}: {str(error)[:60]}")


def forks(seconds=90):
    import multiprocessing

    for name in WORK:
        _work(name)  # the parent has used JAX
    for name in WORK:
        said = {}
        for how in ("fork", "spawn"):
            context = multiprocessing.get_context(how)
            queue = context.Queue()
            process = context.Process(target=_child, args=(name, queue))
            process.start()
            try:
                said[how] = queue.get(timeout=seconds)
            except Exception:
                said[how] = "hangs"
            process.kill()
        import joblib

        try:
            said["loky"] = f"ends: {joblib.Parallel(2, timeout=seconds)([joblib.delayed(_work)(name)])[0]}"
        except Exception as error:
            said["loky"] = f"{type(error).__name__}"
        print(f"{name}: {said}", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    kinds = {"saves": saves, "signals": signals, "command": command, "forks": forks}
    kinds[sys.argv[1]](*(int(word) if word.isdigit() else word for word in sys.argv[2:]))
