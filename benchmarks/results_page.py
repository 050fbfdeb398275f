"""docs/results.md and its chart from what lies in benchmarks/results/: run it after a benchmark has written there.

    python benchmarks/results_page.py [--check]

Numbers are those of the files, as they are; the sentences beside them say what was compared, and where we lose.
"""

import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "results.md"
CHART = ROOT / "docs" / "ratios.svg"

HEAD = """# Results

Written by `benchmarks/results_page.py` from `benchmarks/results/`, on two CPU cores; "certified" is the gap that a fit
claims, "judged" the same from a float64 objective outside the solvers. Ratios above 1 say that we are faster. Each
section names the command that measures it again.
Compilation is apart: a first call takes .7 to 5 s more, in later processes .05 to .8 s.

![Seconds of others over ours, as bars on a logarithmic axis, with the least ratio as a mark](ratios.svg)

*Seconds of others over ours, in the geometric mean of the rows below; the mark is the least of them.*
"""
PEERS = {
    "jaxsvm": "jaxsvm, squared hinge, tol 1e-3",
    "aocl32": "AOCL-DA, float32",
    "aocl64": "AOCL-DA, float64",
    "sklearnex": "scikit-learn-intelex",
    "SVC": "scikit-learn's `SVC`",
    "libsvm_squared": "LIBSVM's solver on our squared hinge",
    "thundersvm": "ThunderSVM",
}


def read(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def seconds(value):
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def gap(value):
    return "" if value is None else f"{value:.1e}"


def middle(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if len(ordered) % 2 else sum(ordered[len(ordered) // 2 - 1 :][:2]) / 2


def ratios_of(rows, who, ours="ours"):
    """Geometric mean and least of a peer's seconds over ours."""
    ratios = [row[who] / row[ours] for row in rows]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)), min(ratios)


def ratios():
    """What the chart shows, by task: peers, the geometric mean and the least of their seconds over ours."""
    hinge, paths, folds = read("working_sets_hinge"), read("paths_real"), read("cross_validation")["times"]
    yield "one hinge fit", [(who, *ratios_of(hinge, who)) for who in ("SVC", "sklearnex", "aocl64", "aocl32")]
    for loss in ("hinge", "squared"):
        rows = [{"SVC": row["svc"], "aocl32": row["aocl"], **row} for row in paths if row["loss"] == loss]
        yield f"64 values of C, {loss}", [(who, *ratios_of(rows, who, "seconds")) for who in ("SVC", "aocl32")]
    times = {who: middle(seconds) for who, seconds in folds.items()}
    yield "folds x C", [(who, *ratios_of([times], who)) for who in ("grid_search", "aocl64", "aocl32")]
    squared = [
        {row["name"]: row["seconds"] for row in read(name)["rows"] if row["C"] == C}
        for name in ("peers_10000", "peers_30000")
        for C in (1, 100)
    ]
    yield "one squared-hinge fit (of others: hinge)", [("aocl32", *ratios_of(squared, "aocl32", "jaxsvm"))]


def chart():
    """The ratios as bars on a logarithmic axis, green where we are faster; SVG, so that text stays text."""
    left, width, y, names = 150, 290, 30, PEERS | {"grid_search": "GridSearchCV(SVC)", "SVC": "scikit-learn's SVC"}

    def at(ratio):
        return left + width * math.log(ratio / 0.2) / math.log(50 / 0.2)

    parts = []
    for task, peers in ratios():
        halo = 'font-weight="bold" paint-order="stroke" stroke="#fff" stroke-width="5"'  # over the lines
        parts.append(f'<text x="6" y="{y + 12}" {halo}>{task}</text>')
        for who, mean, least in peers:
            y += 20
            begin, end, colour = min(at(1), at(mean)), max(at(1), at(mean)), "#66bb6a" if mean >= 1 else "#ef5350"
            parts.append(f'<text x="{left - 6}" y="{y + 12}" text-anchor="end">{names[who]}</text>')
            parts.append(f'<rect x="{begin:.1f}" y="{y}" width="{end - begin:.1f}" height="16" fill="{colour}"/>')
            parts.append(f'<path d="M{at(least):.1f} {y - 1}v18" stroke="#000" stroke-width="2"/>')
            parts.append(f'<text x="{end + 5:.1f}" y="{y + 12}">{mean:.2g}</text>')
        y += 24
    for ratio in (0.2, 0.5, 1, 2, 5, 10, 20, 50):
        x, colour = at(ratio), "#333" if ratio == 1 else "#ddd"
        parts.insert(0, f'<path d="M{x:.1f} 20V{y}" stroke="{colour}"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 14}" text-anchor="middle">{ratio:g}</text>')
    parts.append(f'<text x="{at(3.2):.1f}" y="{y + 31}" text-anchor="middle">seconds of others / ours</text>')
    parts.append(f'<text x="{at(1) - 6:.1f}" y="14" text-anchor="end" fill="#c62828">others are faster</text>')
    parts.append(f'<text x="{at(1) + 6:.1f}" y="14" fill="#2e7d32">we are faster</text>')
    box = f'viewBox="0 0 {left + width + 40} {y + 38}" font-family="sans-serif" font-size="13"'
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" {box}>', '<rect width="100%" height="100%" fill="#fff"/>']
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def single_fits():
    rows = [
        (f"{row['C']:g}", seconds(row["seconds"]), seconds(row["svc_seconds"]), f"{row['svc_over_ours']:.1f}",
         gap(row["certified_gap"]), gap(row["float64_gap"]), f"{row['accuracy']:.4f}", f"{row['svc_accuracy']:.4f}")
        for row in read("single_fit")
    ]  # fmt: skip
    head = ("C", "ours, s", "SVC, s", "ratio", "certified", "judged", "accuracy", "SVC's accuracy")
    text = (
        "## One fit\n\nRBF, synthetic, n = 10,000, against scikit-learn's `SVC` (the hinge, its own tolerance): "
        "`benchmarks/single_fit.py`.\n\n"
    )
    return text + table(head, rows)


def hinge_fits():
    found = read("working_sets_hinge")
    others = ("aocl32", "aocl64", "sklearnex", "SVC")
    rows = [
        (row["set"], row["n"], row["d"], f"{row['C']:g}", seconds(row["ours"]), *(seconds(row[who]) for who in others),
         gap(row["gap ours"]), f"{row['evaluations']:.2f}")
        for row in found
    ]  # fmt: skip
    means = [(PEERS[who], *(f"{ratio:.2f}" for ratio in ratios_of(found, who))) for who in others]
    head = ("data", "n", "d", "C", "ours, s", "AOCL, float32", "AOCL, float64", "intelex", "`SVC`", "judged gap",
            "entries / n^2")  # fmt: skip
    text = (
        "## One hinge fit on real sets\n\nA free bias, RBF, each to a gap of 1e-3 that is judged (peers: the loosest of three tolerances that "  # noqa: E501
        "reaches it, or their tightest): `benchmarks/working_sets.py --loss hinge`. Entries are kernel values that we compute.\n\n"  # noqa: E501
    )
    of = table(("who", "their seconds / ours, geometric mean", "at least"), means)
    return text + of + "\n\nSeconds:\n\n" + table(head, rows)


def peers():
    rows = [
        (row["n"], f"{row['C']:g}", PEERS.get(row["name"], row["name"]), seconds(row["seconds"]), gap(row["gap"]))
        for name in ("peers_10000", "peers_30000")
        for row in read(name)["rows"]
    ]
    text = (
        "## Beside other libraries\n\nOthers solve the hinge, each with its own rule for stopping; the gap is that of the problem that each solves. "  # noqa: E501
        ""  # noqa: E501
        "**AOCL-DA in float32 is faster than our squared hinge where half of the samples are support**: `benchmarks/peers.py`.\n\n"  # noqa: E501
    )
    return text + table(("n", "C", "who", "s", "judged gap"), rows)


def paths():
    rows = []
    for name in ("path", "path_30000", "path_adult", "path_2000"):
        found = read(name)
        others = [f"{found[who]['ratio']:.1f}" if who in found else "" for who in ("aocl", "svc")]
        rows.append((found["data"], found["n"], found["values"], seconds(found["seconds"]), *others,
                     gap(found["certified"]), seconds(found["first_call"])))  # fmt: skip
    head = (
        "data",
        "n",
        "values of C",
        "ours, s",
        "AOCL-DA / ours",
        "SVC / ours",
        "largest certified gap",
        "first call, s",
    )  # noqa: E501
    growth = [(row["values"], seconds(row["seconds"])) for row in read("path_growth")["rows"]]
    return (
        "## Paths\n\nAll values of C on one kernel matrix, each certified; the others fit each C anew: `benchmarks/path.py`. On adult (n = 32,561) AOCL-DA is as fast.\n\n"  # noqa: E501
        + table(head, rows)
        + "\n\nMore values cost little (n = 10,000):\n\n"
        + table(("values of C", "s"), growth)
    )


def real_paths():
    found, means = read("paths_real"), []
    rows = [
        (row["data"], row["loss"], row["n"], seconds(row["seconds"]), seconds(row["aocl"]), seconds(row["svc"]),
         gap(row["certified"]))
        for row in found
    ]  # fmt: skip
    for loss, bias in (("hinge", "a free bias"), ("squared", "a regularised one")):
        for who, name in (("aocl", PEERS["aocl32"]), ("svc", PEERS["SVC"])):
            mean, least = ratios_of([row for row in found if row["loss"] == loss], who, "seconds")
            means.append((f"{loss}, {bias}", name, f"{mean:.1f}", f"{least:.1f}"))
    text = (
        "## Paths on real sets\n\n64 values of C from 0.01 to 1,000, RBF, certified gaps of 1e-3, beside loops of fits with the peers' default "  # noqa: E501
        "tolerances (6 of 64 values timed, scaled; of the hinge): `benchmarks/path.py --data usps --loss hinge --bias free --tol 1e-3`.\n\n"  # noqa: E501
    )
    head = ("data", "loss", "n", "ours, s", PEERS["aocl32"], PEERS["SVC"], "largest gap")
    of = table(("ours", "who", "their seconds / ours, geometric mean", "at least"), means)
    return text + of + "\n\nSeconds:\n\n" + table(head, rows)


def validation():
    found = read("cross_validation")
    names = {"ours": "`cross_validate`", "aocl64": "AOCL-DA, float64", "aocl32": "AOCL-DA, float32",
             "grid_search": "`GridSearchCV(SVC)`"}  # fmt: skip
    rows = [(names[who], seconds(middle(times))) for who, times in found["times"].items()]
    text = f"## Cross-validation\n\nFolds x C in one computation, largest gap {gap(found['gap'])}; first call {seconds(found['first_call'])} s: `benchmarks/cross_validation.py`.\n\n"  # noqa: E501
    return text + table(("who", "s"), rows)


def joins():
    found = read("papers/relational_gradient_descent")["forming"]["figures"]
    lines = []
    for N, row in found:
        ours, one = row["ours"], {name: f"{seconds(of[0])} ({gap(of[-1])})" for name, of in row.items()}
        others = (one.get(name, "") for name in ("SGD", "LIBLINEAR", "1,000", "100,000"))
        lines.append((f"{N:.2g}", one["ours"], gap(ours[1]), *others))
    text = (
        "## Joins\n\nTwo tables of 50,000 rows, whose join has 1, 10, 100 and 1,000 times the rows of both; CPU seconds. Ours has a proof, the certified gap. In brackets F / D - 1, with D from a fit of ours to 1e-6. The others train on the join that DuckDB forms, while it fits, or on a sample of its rows, and prove nothing: "  # noqa: E501
        "`benchmarks/papers/relational_gradient_descent.py forming`, [the paper's page](papers/relational_gradient_descent.md).\n\n"  # noqa: E501
    )
    head = ("joined rows", "ours", "certified gap", "SGD", "LIBLINEAR", "1,000 rows", "100,000 rows")
    return text + table(head, lines)


def everyday():
    rows = {}
    for row in read("everyday_tasks"):
        rows.setdefault(row["task"], {})[row["state"]] = row
    lines = [
        (
            found["cold"]["what"],
            *(f"{seconds(found[state]['cpu'])} ({seconds(found[state]['cpu_before'])})" for state in ("cold", "warm")),
            found["cold"]["found"],
        )
        for found in rows.values()
    ]
    text = (
        "## Everyday tasks\n\nWhat a new user does first, each in a fresh process: its processor seconds, imports (JAX .5 s, scikit-learn and pandas 1.1 s) and compilation included, in brackets those of an earlier version (a332206), in turns; "  # noqa: E501
        "warm: with the programs that the cold run kept on disk. Of commands only the commands count, and scikit-learn's own answers, with which each is compared, do not. "  # noqa: E501
        "`benchmarks/everyday_tasks.py --before CHECKOUT`.\n\n"
    )
    return text + table(("task", "cold, CPU s", "warm, CPU s", "found"), lines)


def accelerator():
    printed = (RESULTS / "accelerator.txt").read_text(encoding="utf-8").strip()
    text = "\n".join(line.replace(" " * 12, "", 1) for line in printed.splitlines())  # as wide as the page
    return f"""## On one GPU

`benchmarks/accelerator.py` prints:

```
{text}
```

First calls of 2,000 samples there, and what they take in the next process, which loads stored programs: fit of the
squared hinge 3.4 and 1.0 s, of the hinge 5.3 and 1.1, path of 64 values of the hinge 9.8 and 3.8.

Large products and batches of small machines use the card; where a step needs a few rows, it waits for them. Two
engines that were made for such a card lost there too, and went (on an H100). Interior points of a working set took
4.59 s on demand and 3.71 s stored, pair steps .29 and .32 s (n = 20,000, d = 64, C = 1; first calls 11.7 and 6.9 s,
3.2 and 2.9 s). With lanes of Newton's method the path above took 39.0 s (first 60.1), one of 64 values at n = 4,000
.75 for .70 s, of 30 at n = 10,000 and rank 200 .86 for .41 s, with first calls of 20 to 27 s.
**TPUs: not yet measured**; a test lowers
every public function for both."""


def page():
    parts = [HEAD.rstrip(), single_fits(), hinge_fits(), peers(), paths(), real_paths(), validation()]
    parts += [joins(), everyday(), accelerator()]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        if (PAGE.read_text(encoding="utf-8"), CHART.read_text(encoding="utf-8")) != (page(), chart()):
            sys.exit("docs/results.md is not what benchmarks/results/ says: run python benchmarks/results_page.py")
    else:
        PAGE.write_text(page(), encoding="utf-8")
        CHART.write_text(chart(), encoding="utf-8")
