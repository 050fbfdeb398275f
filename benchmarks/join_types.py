"""Must show: random schemas of random types against DuckDB: rows, moments and scores equal (1e-12), or refused by name.

    python benchmarks/join_types.py --count 500 --seed 0

Each schema is joined where it lies in DuckDB, and from two other forms of its tables (Arrow, polars, pandas, ...).
"""

import argparse
import collections
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from random_joins import judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop", action="store_true", help="Stop at the first that is wrong.")
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(options.seed, options.seed + options.count):
        try:
            counts.update(f"{form}: {outcome}" for form, outcome in judged(seed).items())
        except Exception:  # whatever is raised is a wrong answer
            counts["WRONG"] += 1
            print(f"seed {seed}:", traceback.format_exc(limit=-3), flush=True)
            if options.stop:
                break
    for outcome, many in sorted(counts.items()):
        print(f"{many:6d}  {outcome}")
    print(f"{options.count} schemas, {sum(counts.values())} joins: {counts['WRONG']} wrong")
    sys.exit(bool(counts["WRONG"]))


if __name__ == "__main__":
    main()
