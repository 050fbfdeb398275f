"""Must show: random schemas of random types against DuckDB: rows, moments and scores equal (1e-12), or refused by name.

    python benchmarks/join_types.py --count 500 --seed 0

Each schema is joined where it lies in DuckDB, and from two other forms of its tables (Arrow, polars, pandas, ...).

    python benchmarks/join_types.py --names --count 300 --seed 0 [--postgres HOST --user USER]

With names that collide, columns without a name, missing keys and NULLs: notes and scores, in DuckDB
or on a PostgreSQL server.
"""

import argparse
import collections
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from random_joins import Names, judged

from jaxsvm import relational


def with_names(seed, host, user):
    """Judge a schema of colliding names in a new DuckDB, or in a new schema of a PostgreSQL server."""
    if host is None:
        import duckdb

        db = duckdb.connect()
        return Names(
            lambda query: db.execute(query).fetchall(),
            lambda *a, **o: relational.from_database(db, *a, **o),
            "main",
            seed,
        ).judged()
    import ibis
    import psycopg

    with psycopg.connect(host=host, user=user, dbname="postgres", autocommit=True) as db:

        def run(query):
            cursor = db.execute(query)
            return cursor.fetchall() if cursor.description else []

        schema, there = f"names_{seed}", ibis.postgres.connect(host=host, user=user, database="postgres")
        run(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        run(f"CREATE SCHEMA {schema}")
        try:
            return Names(run, lambda *a, **o: relational.from_database(there, *a, **o), schema, seed).judged()
        finally:
            there.disconnect()
            run(f"DROP SCHEMA {schema} CASCADE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop", action="store_true", help="Stop at the first that is wrong.")
    parser.add_argument("--names", action="store_true", help="Names that collide, missing keys and NULLs.")
    parser.add_argument("--postgres", metavar="HOST", help="A server, or the directory of its socket.")
    parser.add_argument("--user", default="postgres")
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(options.seed, options.seed + options.count):
        try:
            found = with_names(seed, options.postgres, options.user) if options.names else judged(seed)
            counts.update(f"{form}: {outcome}" for form, outcome in found.items())
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
