"""Eleven everyday tasks, each as a new user would do it in a process of its own, and the seconds that each takes.

    python benchmarks/everyday_tasks.py [--tasks NAME ...] [--states cold warm] [--data DIR] [--json FILE]
                                        [--before CHECKOUT]

A task is a short script or a few commands. What counts is wall seconds from the start of the process to its last line,
imports and compilation included; CPU seconds are beside them, since the machine may be busy. Of commands only the
commands count, not the making of their files. `cold` begins with an empty cache of compiled programs, `warm` with the
one that the cold run left (the command keeps programs by itself, scripts call `jaxsvm.keep_programs`). Python keeps
bytecode, as it does where a package is installed. Each task checks its outcome against scikit-learn or the truth, and
fails if it is wrong; what scikit-learn takes for that is left out and shown apart.

`--before` runs each task on the code of another checkout too, in turns, and prints the ratio of CPU seconds.

Data sets are those that scikit-learn ships; where DIR (`../shared/data`) holds them the svmlight file is pendigits, and
C is chosen on spambase.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

CHECK = {"wall": 0.0, "cpu": 0.0}
"""Seconds of this process that the task itself did not take."""

COMMANDS = {"wall": 0.0, "cpu": 0.0}
"""Seconds of the commands of a task."""


@contextlib.contextmanager
def checking():
    """Around what is done for the check alone: scikit-learn's own answer."""
    wall, used = time.perf_counter(), time.process_time()
    yield
    CHECK["wall"] += time.perf_counter() - wall
    CHECK["cpu"] += time.process_time() - used


def command(*arguments, fails=False):
    """Run `jaxsvm ...`; what it says on stdout, or on stderr where it is to refuse."""
    begun, began = used_by_children(), time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-c", "from jaxsvm.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    COMMANDS["wall"] += time.perf_counter() - began
    COMMANDS["cpu"] += used_by_children() - begun
    if ran.returncode != (2 if fails else 0):
        raise SystemExit(f"jaxsvm {' '.join(map(str, arguments))}: exit code {ran.returncode}\n{ran.stderr}")
    return ran.stderr if fails else ran.stdout


def used_by_children():
    """CPU seconds of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cancer(folder):
    """Breast cancer as CSV with text labels, cut in two; the frames."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split

    found = load_breast_cancer(as_frame=True)
    frame = found.frame.drop(columns="target").assign(diagnosis=found.target_names[found.target])
    train, test = train_test_split(frame, test_size=0.3, random_state=0, stratify=frame["diagnosis"])
    train.to_csv(folder / "train.csv", index=False)
    test.to_csv(folder / "test.csv", index=False)
    return train, test


def theirs(train, test, label, machine):
    """What scikit-learn predicts, with a standard scaler in front."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    with checking():
        fitted = make_pipeline(StandardScaler(), machine).fit(train.drop(columns=label), train[label])
        return fitted.predict(test.drop(columns=label))


def stored(options, name):
    """A set of `--data`, `(x, y, x test, y test)`; None where it is not there."""
    file = options.data / f"{name}.npz"
    if not file.exists():
        return None
    with np.load(file) as found:
        return tuple(found[key].astype(float) if key in found else None for key in ("X", "y", "Xt", "yt"))


def csv(folder, options):
    """a CSV with text labels and a missing value, by the command: refused with its line, then fitted"""
    import pandas as pd
    from sklearn.svm import SVC

    train, test = cancer(folder)
    broken = train.copy()
    broken.iloc[17, 3] = np.nan
    broken.to_csv(folder / "broken.csv", index=False)
    said = command("fit", folder / "broken.csv", fails=True)
    assert "line 19: column 3 (mean area) is missing" in said, said
    pd.read_csv(folder / "broken.csv").dropna().to_csv(folder / "train.csv", index=False)
    model, out = folder / "model.npz", folder / "labels.csv"
    command("fit", folder / "train.csv", "--loss", "hinge", "--scale", "standardise", "--out", model)
    command("predict", model, folder / "test.csv", "--out", out)
    labels = pd.read_csv(out)["label"].to_numpy()
    agree = float(np.mean(labels == theirs(broken.dropna(), test, "diagnosis", SVC())))
    assert agree == 1.0, agree
    return f"accuracy {np.mean(labels == test['diagnosis'].to_numpy()):.4f}, agrees with SVC on all"


def svmlight(folder, options):
    """a svmlight file of ten classes, by the command: fit and predict"""
    import pandas as pd
    from sklearn.datasets import dump_svmlight_file, load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.svm import SVC

    found = stored(options, "pendigits")
    if found is None:
        x, y = load_digits(return_X_y=True)
        x, x_test, y, y_test = train_test_split(x, y, test_size=0.3, random_state=0)
    else:
        x, y, x_test, y_test = found
    dump_svmlight_file(x, y, str(folder / "digits"), zero_based=False)  # named as LIBSVM names its files
    dump_svmlight_file(x_test, y_test, str(folder / "digits.t"), zero_based=False)
    model, out = folder / "model.npz", folder / "labels.csv"
    command("fit", folder / "digits", "--loss", "hinge", "--C", 10, "--out", model)
    command("predict", model, folder / "digits.t", "--out", out)
    labels = pd.read_csv(out)["label"].to_numpy()
    with checking():
        agree = float(np.mean(labels == SVC(C=10).fit(x, y).predict(x_test)))
    assert agree > 0.998, agree
    return f"accuracy {np.mean(labels == y_test):.4f} on {len(x)} + {len(x_test)}, agrees with SVC on {agree:.4f}"


def people():
    """A frame of numbers, categories and gaps, and what is to be told of it."""
    import pandas as pd

    rng, n = np.random.default_rng(0), 800
    frame = pd.DataFrame({"age": rng.integers(18, 80, n).astype(float), "income": rng.lognormal(10, 1, n)})
    frame["city"] = pd.Categorical(rng.choice(["Oslo", "Paris", "Rome"], n))
    frame["owner"] = rng.choice(["no", "yes"], n)
    buys = (frame["age"] > 40) ^ (frame["city"] == "Rome") | (frame["owner"] == "yes") & (frame["income"] > 3e4)
    frame.loc[::50, "age"] = np.nan
    return frame, np.where(buys ^ (rng.random(n) < 0.05), "buys", "leaves")


def pipeline(machine):
    """Imputed and scaled numbers, categories one by one, and a machine."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline, make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = [("numbers", numbers, ["age", "income"]), ("kinds", OneHotEncoder(), ["city", "owner"])]
    return Pipeline([("columns", ColumnTransformer(columns)), ("svm", machine)])


def frame(folder, options):
    """a pandas frame with categories and gaps in a Pipeline"""
    from sklearn import svm

    from jaxsvm.estimators import SVC

    x, y = people()
    ours = pipeline(SVC(C=10)).fit(x[:600], y[:600])
    accuracy = ours.score(x[600:], y[600:])
    with checking():
        reference = pipeline(svm.SVC(C=10)).fit(x[:600], y[:600])
        agree = float(np.mean(ours.predict(x[600:]) == reference.predict(x[600:])))
    assert agree > 0.99, agree
    return f"accuracy {accuracy:.4f}, agrees with SVC on {agree:.4f}"


def grid(folder, options):
    """GridSearchCV over four values of C and four of gamma in that Pipeline"""
    from sklearn import svm
    from sklearn.model_selection import GridSearchCV

    from jaxsvm.estimators import SVC

    x, y = people()
    values = {"svm__C": [0.1, 1, 10, 100], "svm__gamma": ["scale", 0.01, 0.1, 1]}
    ours = GridSearchCV(pipeline(SVC()), values, cv=5).fit(x, y)
    with checking():
        reference = GridSearchCV(pipeline(svm.SVC()), values, cv=5).fit(x, y)
    off = float(np.abs(ours.cv_results_["mean_test_score"] - reference.cv_results_["mean_test_score"]).max())
    assert off < 0.01, off
    with checking():
        seconds = [seconds_of_a_search(machine) for machine in (SVC, SVC, svm.SVC)]
    return (
        f"best {ours.best_params_} at {ours.best_score_:.4f}; scores are within {off:.4f} of SVC's; a second search on "
        f"breast cancer takes {seconds[1]:.2f} s of CPU, {seconds[2]:.2f} with SVC"
    )


def seconds_of_a_search(machine):
    """Processor seconds of `GridSearchCV` over 4 values of C, 4 of gamma and 5 folds of breast cancer."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    values = {f"{machine.__name__.lower()}__{name}": numbers for name, numbers in GRID.items()}
    began = time.process_time()
    GridSearchCV(make_pipeline(StandardScaler(), machine()), values, cv=5).fit(*load_breast_cancer(return_X_y=True))
    return time.process_time() - began


GRID = {"C": [0.1, 1, 10, 100], "gamma": [0.001, 0.01, 0.1, 1]}


def probabilities(folder, options):
    """probability=True, and CalibratedClassifierCV"""
    import warnings

    from sklearn import svm
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.metrics import log_loss

    from jaxsvm.estimators import SVC

    x, y = people()
    warnings.simplefilter("ignore", FutureWarning)  # scikit-learn is about to drop its own

    def loss(machine):
        return log_loss(y[600:], pipeline(machine).fit(x[:600], y[:600]).predict_proba(x[600:]))

    ours = SVC(probability=True, random_state=0), CalibratedClassifierCV(SVC(), ensemble=False)
    losses = [loss(machine) for machine in ours]
    with checking():
        losses.append(loss(svm.SVC(probability=True, random_state=0)))
    assert max(losses[:2]) < losses[2] + 0.02, losses
    return "log losses " + ", ".join(f"{loss:.4f}" for loss in losses) + " (the last one is scikit-learn's)"


def production(folder, options):
    """train, save, predict in another process; and, by a graph of ONNX, without JAX"""
    import joblib
    from sklearn.preprocessing import StandardScaler

    from jaxsvm import interchange
    from jaxsvm.estimators import SVC

    train, test = cancer(folder)
    x, x_test = train.drop(columns="diagnosis"), test.drop(columns="diagnosis")
    scaler = StandardScaler().set_output(transform="pandas").fit(x)
    model = SVC(C=10).fit(scaler.transform(x), train["diagnosis"])
    joblib.dump((scaler, model), folder / "ours.joblib")
    interchange.to_onnx(model, folder / "ours.onnx")
    x_test.to_pickle(folder / "new.pkl")
    scaler.transform(x_test).to_numpy(np.float32).dump(folder / "scaled.pkl")
    scripts = {
        "ours.joblib": "import joblib, pandas; scaler, model = joblib.load(sys.argv[1]); "
        "labels = model.predict(scaler.transform(pandas.read_pickle('new.pkl')))",
        "ours.onnx": "import numpy, onnxruntime; x = numpy.load('scaled.pkl', allow_pickle=True); "
        "labels = onnxruntime.InferenceSession(sys.argv[1]).run(['label'], {'x': x})[0]",
    }
    said = [
        subprocess.run(
            [sys.executable, "-c", f"import sys; {script}; print(*labels, 'jax' in sys.modules)", name],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for name, script in scripts.items()
    ]
    here = model.predict(scaler.transform(x_test)).tolist()
    assert said[0][:-1] == said[1][:-1] == here and said[1][-1] == "False", said
    return f"accuracy {np.mean(test['diagnosis'] == here):.4f} in three processes, one of them without JAX"


def choice(folder, options):
    """C by five folds at the command, with an HTML report"""
    import base64
    import re

    found = stored(options, "spambase")
    if found is None:
        cancer(folder)
    else:
        header = ",".join([*(f"f{j}" for j in range(found[0].shape[1])), "kind"])
        rows = np.column_stack([found[0], found[1]])
        np.savetxt(folder / "train.csv", rows, delimiter=",", header=header, comments="", fmt="%.8g")
    model, page = folder / "best.npz", folder / "path.html"
    asked = ("--folds", 5, "--n-c", 8, "--scale", "standardise", "--out", model, "--report", page, "--json")
    report = json.loads(command("path", folder / "train.csv", *asked))
    scores = {row["C"]: row["cv_accuracy"] for row in report["path"]}
    assert all(row["certified"] for row in report["path"]) and scores[report["chosen_C"]] == max(scores.values())
    text = page.read_text()
    pictures = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", text)
    assert len(pictures) == 2 and all(base64.b64decode(one).startswith(b"\x89PNG") for one in pictures)
    assert "http://" not in text and "https://" not in text and model.exists()  # it needs nothing else
    return f"C = {report['chosen_C']:.4g} of 8 on n = {report['n']}, cv accuracy {max(scores.values()):.4f}; 2 pictures"


def regression(folder, options):
    """a CSV of numbers to be predicted, by the command"""
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import train_test_split
    from sklearn.svm import SVR

    found = load_diabetes(as_frame=True, scaled=False).frame
    train, test = train_test_split(found, test_size=0.3, random_state=0)
    train.to_csv(folder / "train.csv", index=False)
    test.to_csv(folder / "test.csv", index=False)
    model = folder / "model.npz"
    asked = ("--loss", "epsilon_insensitive", "--epsilon", 5, "--C", 30, "--scale", "standardise", "--tol", 1e-6)
    command("fit", folder / "train.csv", *asked, "--out", model)
    report = json.loads(command("predict", model, folder / "test.csv", "--json"))
    reference = theirs(train, test, "target", SVR(C=30, epsilon=5, tol=1e-6))
    off = float(np.abs(np.array(report["labels"]) - reference).max())
    assert off < 0.5, off
    return f"R2 {report['r2']:.4f}; predictions are within {off:.2g} of SVR's"


def picture(folder, options):
    """a path of 30 values of C as in a notebook, with its picture"""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from sklearn.datasets import load_breast_cancer

    import jaxsvm
    from jaxsvm import plots
    from jaxsvm.datasets import Scaling, two_classes
    from jaxsvm.kernels import RBF

    x, labels = load_breast_cancer(return_X_y=True)
    y, _ = two_classes(labels)
    problem = jaxsvm.svm_problem(jaxsvm.gram(RBF(gamma=1 / 30), Scaling.standardise(x)(x)), y)
    Cs = np.geomspace(1e-3, 1e3, 30)
    path, chosen = jaxsvm.solve_path(problem, Cs), jaxsvm.cross_validate(problem, Cs, folds=5)
    jaxsvm.check(path.fits)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    plots.path_scores(chosen, ax=axes[0])
    plots.path_support(path, ax=axes[1])
    figure.savefig(folder / "path.png")
    image = plt.imread(folder / "path.png")
    assert image[..., :3].std() > 0.05 and 0.1 < chosen.C < 100
    return f"30 of 30 certified, C = {float(chosen.C):.3g}"


def novelty(folder, options):
    """OneClassSVM on data without labels: benign tumours are known, malignant ones new"""
    from sklearn import svm
    from sklearn.datasets import load_breast_cancer
    from sklearn.metrics import roc_auc_score
    from sklearn.preprocessing import StandardScaler

    from jaxsvm.estimators import OneClassSVM

    x, benign = load_breast_cancer(return_X_y=True)
    scaler = StandardScaler().fit(x[benign == 1][:250])
    known, new = scaler.transform(x[benign == 1][:250]), scaler.transform(np.r_[x[benign == 1][250:], x[benign == 0]])
    strange = np.r_[np.zeros((benign == 1).sum() - 250), np.ones((benign == 0).sum())]
    ours = OneClassSVM(nu=0.1).fit(known)
    areas = [roc_auc_score(strange, -ours.score_samples(new))]
    with checking():
        reference = svm.OneClassSVM(nu=0.1).fit(known)
        areas.append(roc_auc_score(strange, -reference.score_samples(new)))
    agree = float(np.mean(ours.predict(new) == reference.predict(new)))
    assert areas[0] > 0.9 and abs(areas[0] - areas[1]) < 0.002 and agree > 0.99, (areas, agree)
    return f"area {areas[0]:.4f} (theirs {areas[1]:.4f}), the same verdict on {agree:.4f}"


def inside(folder, options):
    """`fit` inside a user's own jit, vmap and grad"""
    import jax
    import jax.numpy as jnp
    from sklearn import svm
    from sklearn.datasets import load_breast_cancer

    import jaxsvm
    from jaxsvm.kernels import RBF

    x, y = load_breast_cancer(return_X_y=True)
    x, y = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32), 2.0 * y - 1
    (x, x_test), (y, y_test) = ((values[:400], values[400:]) for values in (x, y))

    def decisions(C, gamma):
        problem = jaxsvm.hinge_problem(jaxsvm.gram(RBF(gamma=gamma), x), y, C=C, bias="free")
        return jaxsvm.decision_function(jaxsvm.fit(problem, tol=1e-4), problem, x_test)

    def loss(C, gamma):
        return jnp.mean(jnp.maximum(0, 1 - y_test * decisions(C, gamma)) ** 2)

    def reference(C, gamma):
        values = svm.SVC(C=C, gamma=gamma, tol=1e-9).fit(x, y).decision_function(x_test)
        return np.mean(np.maximum(0, 1 - y_test * values) ** 2)

    seconds = []
    for call in (
        lambda: jax.jit(decisions)(1.0, 1 / 30),
        lambda: jax.jit(jax.vmap(decisions, in_axes=(0, None)))(jnp.array([0.1, 1.0, 10.0]), 1 / 30)[1],
        lambda: jax.jit(jax.grad(loss, argnums=(0, 1)))(1.0, 1 / 30),
    ):
        began = time.perf_counter()
        found = jax.block_until_ready(call())
        seconds.append(time.perf_counter() - began)
        if len(seconds) < 3:
            off = np.abs(found - svm.SVC(gamma=1 / 30, tol=1e-9).fit(x, y).decision_function(x_test)).max()
            assert off < 2e-3, off
    with checking():
        by_c = (reference(1.001, 1 / 30) - reference(0.999, 1 / 30)) / 2e-3
        by_gamma = (reference(1.0, 1 / 30 + 1e-4) - reference(1.0, 1 / 30 - 1e-4)) / 2e-4
    slopes = by_c, by_gamma
    assert np.allclose(found, slopes, rtol=0.01), (found, slopes)
    return "jit {:.1f} s, vmap {:.1f} s, grad {:.1f} s; derivatives are those of SVC's differences".format(*seconds)


TASKS = {
    task.__name__: task
    for task in (csv, svmlight, frame, grid, probabilities, production, choice, regression, picture, novelty, inside)
}

# ----------------------------------------------------------------------------------------------- running


COMMAND_TASKS = (csv, svmlight, choice, regression)


def child(name, options):
    """In the fresh process."""
    if TASKS[name] not in COMMAND_TASKS:
        import jaxsvm

        jaxsvm.keep_programs(os.environ["JAXSVM_CACHE"])
    with tempfile.TemporaryDirectory() as folder:
        found = TASKS[name](Path(folder), options)
    print(json.dumps({"found": found, "check": CHECK, "commands": COMMANDS}))


def measured(name, cache, options, code):
    """One task, one process, with the library of a checkout: seconds, and what it found."""
    as_users = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    before, began = used_by_children(), time.perf_counter()
    ran = subprocess.run(
        [sys.executable, os.path.abspath(__file__), "--child", name, "--data", options.data],
        env=as_users
        | {
            "JAXSVM_CACHE": cache,
            "PYTHONPATH": str(code),
            "PYTHONSAFEPATH": "1",
            "PYTHONPYCACHEPREFIX": options.bytecode,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    wall, used = time.perf_counter() - began, used_by_children() - before
    if ran.returncode:
        raise SystemExit(f"{name}: {ran.stderr}")
    said = json.loads(ran.stdout.splitlines()[-1])
    check = said["check"]
    taken = {"wall": wall - check["wall"], "cpu": used - check["cpu"]}
    return {**(said["commands"] if said["commands"]["wall"] else taken), "check": check["wall"], "found": said["found"]}


def of_one_task(name, options, code):
    """The states of a task with the library of a checkout, each in a process of its own."""
    with tempfile.TemporaryDirectory() as cache:
        if "cold" not in options.states:
            measured(name, cache, options, code)
        return {state: measured(name, cache, options, code) for state in options.states}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--states", nargs="*", default=["cold", "warm"], choices=["cold", "warm"])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child, options)
    rows, here = [], Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as options.bytecode:
        for code in filter(None, (options.before, here)):  # writes the bytecode
            for name in ("csv", "novelty"):
                of_one_task(name, options, code.resolve())
        for name in options.tasks:
            then = {} if options.before is None else of_one_task(name, options, options.before.resolve())
            for state, found in of_one_task(name, options, here).items():
                row = {"task": name, "what": TASKS[name].__doc__, "state": state, **found}
                if then:
                    row |= {"cpu_before": then[state]["cpu"], "wall_before": then[state]["wall"]}
                rows.append(row)
                told = f"{name:14}{state:5}{row['wall']:7.1f} s (CPU {row['cpu']:5.1f}; check {row['check']:4.1f})"
                if then:
                    told += f" before {then[state]['cpu']:5.1f}, ratio {row['cpu'] / then[state]['cpu']:.2f}"
                print(told, row["found"], flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
