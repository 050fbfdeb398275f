"""What the programs of the five papers share: sets, CPU seconds, counted kernel values, tables, verdicts.

    python benchmarks/papers/NAME.py [PART ...]    run these experiments, or all; keep results/papers/NAME.json
    python benchmarks/papers/NAME.py --quick       small sizes, compiled without most optimisations; nothing kept
    python benchmarks/papers/NAME.py --table       the claims in Markdown, from what is kept: the table of the page

A program ends in `Paper(name, claims).main(part, ...)`. Claims are `{number: (what the paper says, our verdict)}`, with
a reason where the verdict needs one. A part `f(run)` reads `run.quick`, calls `run.check(
number, holds, found)` with a condition that can fail and a sentence of figures, and returns what is to be kept.
"""

import argparse
import dataclasses
import json
import sys
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse as sp

import jaxsvm
from jaxsvm.kernels.contract import pytree

ROOT = Path(__file__).resolve().parents[2]
DATA, RESULTS = ROOT.parent / "shared" / "data", ROOT / "benchmarks" / "results" / "papers"


class Skip(Exception):
    """Why a part, or a set in it, is not run."""


class Data(NamedTuple):
    """Points in float32, dense up to 1,000 columns, else CSR, and labels; of training and of test."""

    x: Any
    y: np.ndarray
    x_test: Any
    y_test: np.ndarray

    def majority(self):
        """The share of the test part that the most frequent label gets right."""
        labels, counts = np.unique(self.y, return_counts=True)
        return float((self.y_test == labels[counts.argmax()]).mean())

    def signs(self, positive):
        """+1 for this class, or these, against the rest."""
        y, y_test = (np.where(np.isin(labels, positive), 1, -1) for labels in (self.y, self.y_test))
        return self._replace(y=y, y_test=y_test)

    def some(self, rows, seed=0):
        """Random rows of the training part."""
        kept = np.random.default_rng(seed).permutation(len(self.y))[:rows]
        return self._replace(x=self.x[kept], y=self.y[kept])


def load(name, rows_of=None, test=0.3, seed=0):
    """A set of ../shared/data, its published test part or a random share; or stored rows ("a1a") against all others."""
    path = DATA / f"{name}.npz"
    if not path.exists():
        raise Skip(f"{path} is absent")
    with np.load(path) as archive:
        stored = dict(archive)

    def points(key):
        if key in stored:
            return stored[key].reshape(len(stored[key]), -1).astype(np.float32)
        parts = (stored[f"{key}_data"].astype(np.float32), stored[f"{key}_indices"], stored[f"{key}_indptr"])
        rows = sp.csr_matrix(parts, shape=tuple(stored[f"{key}_shape"]))
        return rows.toarray() if rows.shape[1] <= 1000 else rows

    x, y = points("X"), stored["y"].astype(int)
    if rows_of is None and "yt" in stored:
        return Data(x, y, points("Xt"), stored["yt"].astype(int))
    kept = stored[rows_of] if rows_of else np.random.default_rng(seed).permutation(len(y))[round(test * len(y)) :]
    rest = np.setdiff1d(np.arange(len(y)), kept)
    return Data(x[kept], y[kept], x[rest], y[rest])


def counted(kernel):
    """The kernel, slower, and a function: how many of its values were computed since it was last asked, for anybody."""
    counts = [0]

    @pytree
    class Counting(type(kernel)):
        def matrix(self, x, z, **how):
            jax.debug.callback(lambda: counts.append(x.shape[0] * z.shape[0]))
            return super().matrix(x, z, **how)

    def since():
        jax.effects_barrier()
        found, counts[:] = sum(counts), []
        return found

    return Counting(*(getattr(kernel, field.name) for field in dataclasses.fields(kernel))), since


def timed(work, warm=None):
    """What `work()` returns and its CPU seconds, after `warm()`, which compiles (by default the same work)."""
    (warm or work)()
    start = time.process_time()
    return jax.block_until_ready(work()), time.process_time() - start


def solve(problem, solver=None, limit=20.0, **how):
    """`jaxsvm.fit` of at most `limit` seconds, and the CPU seconds of the second of two calls."""
    return timed(*(partial(jaxsvm.fit, problem, solver, max_seconds=s, **how) for s in (limit, min(limit, 1.0))))


def shown(cell):
    """A cell of a table: three digits; the parts of a tuple (ours, the paper's) beside each other; "-" for none."""
    if isinstance(cell, tuple):
        return " / ".join(map(shown, cell))
    text = f"{cell:.3g}" if isinstance(cell, float | np.floating) else str(cell).replace("|", "\\|")
    return "-" if cell is None else text


def table(head, rows):
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(map(shown, line)) + " |" for line in (head, ["---"] * len(head), *rows))


class Paper:
    """The claims of a paper, and what its parts found; a part gets it as `run`."""

    def __init__(self, name, claims):
        self.name, self.claims, self.kept = name, claims, {}  # kept: of each part its seconds, checks and figures

    def check(self, claim, holds, found):
        """Keep whether our verdict of a claim holds, and the figures that say so."""
        self.checks.append({"claim": claim, "holds": bool(holds), "found": found})
        print(f"  {'ok' if holds else 'FAILED'} {claim}, {self.claims[claim][0]}: {found}", flush=True)

    def run(self, part):
        print(f"{part.__name__}: {part.__doc__.splitlines()[0]}", flush=True)
        self.checks, start = [], time.process_time()
        try:
            figures = part(self)
        except Skip as reason:
            return print(f"  skipped: {reason}", flush=True)
        used = round(time.process_time() - start, 1)
        self.kept[part.__name__] = {"seconds": used, "checks": self.checks, "figures": figures}
        return print(f"  {used} CPU s", flush=True)

    def told(self):
        """The checked claims, a row each: number, claim, figures, verdict (and why it is that), parts that show it."""
        checks = [(f"`{part}`", check) for part, of in self.kept.items() for check in of["checks"]]
        for claim, (says, conclusion, *reasons) in self.claims.items():
            verdict = " ".join([conclusion, *(f"({reason})" for reason in reasons)])
            if found := [(part, check["found"]) for part, check in checks if check["claim"] == claim]:
                yield claim, says, "; ".join(text for _, text in found), verdict, ", ".join(dict(found))

    def main(self, *parts):
        named = {part.__name__: part for part in parts}
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(named)}; by default all")
        parser.add_argument("--quick", action="store_true", help="small sizes; nothing is kept")
        parser.add_argument("--table", action="store_true", help="print the claims from what is kept")
        options, file = parser.parse_args(), RESULTS / f"{self.name}.json"
        self.quick = options.quick
        jax.config.update("jax_disable_most_optimizations", self.quick)  # compiling is most of what a small run costs
        warnings.simplefilter("ignore", jaxsvm.ConvergenceWarning)  # statuses and gaps stand in what is found
        if file.exists() and not self.quick:
            self.kept = json.loads(file.read_text())
        if options.table:
            return print(table(("#", "claim", "figures", "verdict", "part"), self.told()).replace("*", "\\*"))
        for name in options.parts or named:
            self.run(named[name])
            jax.clear_caches()  # the parts of one process compile more than Linux has memory maps for
            if not self.quick:
                RESULTS.mkdir(parents=True, exist_ok=True)
                lines = [f"{json.dumps(name)}: {json.dumps(of, default=float)}" for name, of in self.kept.items()]
                file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        verdicts = Counter(row[3].split(" (")[0] for row in self.told())
        failed = [check for of in self.kept.values() for check in of["checks"] if not check["holds"]]
        print(f"{verdicts.total()} of {len(self.claims)} claims: {dict(verdicts)}; {len(failed)} checks failed")
        return sys.exit("\n".join(f"FAILED {check['claim']}: {check['found']}" for check in failed) or None)
