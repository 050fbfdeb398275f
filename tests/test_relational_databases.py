"""The pushed-down SQL on another engine: PostgreSQL through ibis, started here where its programs are installed."""

import functools
import getpass
import glob
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_relational_fit import shop

from jaxsvm import relational
from jaxsvm.errors import InputError
from jaxsvm.relational.tables import pushdown


def _program(name):
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return found[-1] if found else shutil.which(name)


@pytest.fixture(scope="module")
def postgres():
    """A server of our own on a socket in a temporary directory: its address."""
    pytest.importorskip("ibis", reason="ibis is not installed: pip install 'ibis-framework[postgres]'")
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'psycopg[binary]'")
    programs = [_program(name) for name in ("initdb", "pg_ctl")]
    if None in programs:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    initdb, control = programs
    home = Path(tempfile.mkdtemp(prefix="postgres-"))  # pytest's own directories are closed to other users
    data, options = str(home / "data"), f"-k {home} -c listen_addresses='' -c fsync=off"
    # Nothing is piped: the server would keep the pipe open.
    run: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": 120}
    user, started = getpass.getuser(), False
    try:
        if os.geteuid() == 0:  # it refuses to run as root
            user = "postgres"
            run |= {"user": user, "group": user, "extra_groups": [], "cwd": home}
            shutil.chown(home, user, user)
        subprocess.run([initdb, "-D", data, "-A", "trust", "-U", user], check=True, **run)
        subprocess.run([control, "-D", data, "-o", options, "-l", str(home / "log"), "-w", "start"], check=True, **run)
        started = True
        yield {"host": str(home), "user": user, "database": "postgres"}
    except (subprocess.SubprocessError, OSError, LookupError) as error:
        pytest.skip(f"PostgreSQL does not start here: {error}")
    finally:
        if started:
            subprocess.run([control, "-D", data, "-m", "immediate", "stop"], check=True, **run)
        shutil.rmtree(home, ignore_errors=True)


def test_postgresql_types_keep_their_identity(postgres):
    """Enumerations, padded texts, NUMERIC of any width, UUIDs, NULLs; a subquery as a table; against its own SQL."""
    import ibis
    import psycopg

    with psycopg.connect(host=postgres["host"], user=postgres["user"], dbname=postgres["database"]) as other:
        other.execute("""CREATE TYPE size AS ENUM('small', 'large', 'huge');
            CREATE TYPE mood AS ENUM('huge', 'small', 'large');
            CREATE TABLE f AS SELECT (ARRAY['small', 'large', 'huge'])[1 + i % 3]::size s, (10 * (i % 4))::numeric n,
                (ARRAY['x', 'y'])[1 + i % 2]::char(3) c, NULLIF(i % 3, 1) kind, (i % 5 = 0) flag,
                i * 0.12345678901234567890::numeric price, i % 2 = 0 AS y FROM generate_series(0, 59) t(i);
            CREATE TABLE "D" AS SELECT * FROM (VALUES ('small'::mood, 0::bigint, 'x'::text, 1.5::real),
                ('large', 10, 'y', 0.1), ('huge', 20, 'x', NULL), ('huge', 30, 'y', 7)) t(s, n, c, z)""")
    connection = ibis.postgres.connect(**postgres)
    options: dict[str, Any] = {"categorical": {"f": ["kind"]}, "missing": "impute"}
    sources = {"f": "f", "D": '(SELECT s, n, c, z FROM "D")'}
    join = relational.from_database(connection, sources, ("f", "y"), **options)
    query = 'FROM f JOIN "D" d ON f.s::text = d.s::text AND f.n = d.n AND f.c = d.c'
    with psycopg.connect(host=postgres["host"], user=postgres["user"], dbname=postgres["database"]) as other:
        rows = other.execute(f"SELECT f.price, d.z, f.kind, f.flag, f.y {query}").fetchall()
        assert join.size == len(rows) > 10
        assert join.feature_names == [
            "f.price", "f.kind=0", "f.kind=2", "f.kind IS NULL", "f.flag=false", "f.flag=true", "D.z"
        ]  # fmt: skip
        y = np.array([1.0 if row[4] else -1.0 for row in rows])
        z = np.array([np.nan if row[1] is None else np.float32(row[1]) for row in rows], float)
        z = np.where(np.isnan(z), join.blocks[1].fill[0], z)
        x = np.column_stack([
            [float(row[0]) for row in rows], *([row[2] == k for row in rows] for k in (0, 2, None)),
            *([row[3] is k for row in rows] for k in (False, True)), z,
        ])  # fmt: skip
        np.testing.assert_allclose(join.moments().label_mean, y @ x / len(y), rtol=0, atol=1e-12)
        fit = relational.fit(join, 0.01)
        found = other.execute(f"SELECT score FROM ({fit.to_sql()}) AS scored").fetchall()
    np.testing.assert_allclose(
        np.sort([float(row[0]) for row in found]), np.sort(x @ fit.coef + fit.intercept), rtol=0, atol=1e-12
    )
    with pytest.raises(InputError, match=r"keys join f\.flag \(bool\), D\.n \(int8\)"):
        relational.from_database(connection, ["f", "D"], ("f", "y"), keys={("f", "D"): {"flag": "n"}})
    with pytest.raises(InputError, match="the database refuses a query"):
        relational.from_database(connection, ["f", "absent"], ("f", "y"))
    connection.disconnect()


@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_names_that_collide_score_as_postgresql_does_or_are_refused_by_name(postgres):
    import ibis
    import psycopg
    from random_joins import Names

    there = ibis.postgres.connect(**postgres)
    with psycopg.connect(host=postgres["host"], user=postgres["user"], dbname="postgres", autocommit=True) as db:

        def run(query):
            cursor = db.execute(query)
            return cursor.fetchall() if cursor.description else []

        for seed in range(10):
            run(f"CREATE SCHEMA names_{seed}")
            read = lambda *a, **options: relational.from_database(there, *a, streamed=seed > 4, **options)  # noqa: B023, E731
            Names(run, read, f"names_{seed}", seed, [("no", "yes"), ("a", "b", "c d")][seed % 2]).judged()
    there.disconnect()


def test_a_cyclic_weighted_left_join_is_that_of_postgresql(postgres):
    """Triangles of a graph whose keys are of two types, beside a table whose rows may be absent."""
    import ibis
    import psycopg

    with psycopg.connect(host=postgres["host"], user=postgres["user"], dbname="postgres", autocommit=True) as db:
        for name, kind in (("r", "int"), ("s", "numeric(6, 1)"), ("t", "int")):
            db.execute(f"""CREATE TABLE tri_{name} AS SELECT NULLIF(i * 7 % 6, 5)::int AS a, (i * i % 5)::{kind} AS b,
                sin(i) AS x, (1 + i % 3) / 2.0 AS w, i % 2 AS y FROM generate_series(0, 40) g(i)""")
        db.execute("CREATE TABLE tri_p AS SELECT i % 3 AS a, cos(i) AS x FROM generate_series(0, 6) g(i)")
        names, pairs = [f"tri_{c}" for c in "rstp"], ("rs", "st", "tr", "rp")
        options: dict[str, Any] = {
            "keys": {(f"tri_{a}", f"tri_{b}"): {"a" if b == "p" else "b": "a"} for a, b in pairs},
            "features": {name: ["x"] for name in names}, "weights": {"tri_s": "w"},
            "optional": ["tri_p"], "missing": "impute",
        }  # fmt: skip
        there = ibis.postgres.connect(**postgres)
        with pytest.raises(InputError, match=r"cyclic join of tri_r, tri_s, tri_t: \d+ different keys"):
            relational.from_database(there, names, ("tri_r", "y"), **options)
        join = relational.from_database(there, names, ("tri_r", "y"), cyclic=1e4, **options)
        fit = relational.fit(join, 0.1)
        rows = db.execute("""SELECT r.x, s.x, t.x, p.x, s.w, 2 * r.y - 1 FROM tri_r r JOIN tri_s s ON r.b = s.a
            JOIN tri_t t ON s.b = t.a AND t.b = r.a LEFT JOIN tri_p p ON r.a = p.a""").fetchall()
        found = db.execute(f"SELECT score FROM ({fit.to_sql()}) AS scored").fetchall()
    there.disconnect()
    x, w, y = (part.squeeze() for part in np.split(np.array(rows, float), [4, 5], axis=1))
    assert np.isnan(x[:, 3]).any() and len(found) == len(rows) > 20
    fill = join.blocks[join.names.index("tri_p")].fill[0]
    x = np.where(np.isnan(x), fill, x)[:, [names.index(name.split(".")[0]) for name in fit.feature_names]]
    np.testing.assert_allclose(join.size, w.sum(), rtol=1e-12)
    np.testing.assert_allclose(join.moments().label_mean, (w * y) @ x / w.sum(), atol=1e-12)
    scores = np.sort(x @ fit.coef + fit.intercept)
    np.testing.assert_allclose(np.sort([float(row[0]) for row in found]), scores, atol=1e-12)


def test_a_streamed_join_of_postgresql_has_the_sums_of_its_own_sql(monkeypatch, postgres):
    """NULLs and empty texts, quotes, line ends, NUMERIC, booleans, an optional table, weights; then fits."""
    import ibis
    import psycopg

    with psycopg.connect(host=postgres["host"], user=postgres["user"], dbname="postgres", autocommit=True) as db:
        db.execute("""CREATE TABLE st_f AS SELECT NULLIF(i % 50, 7)::int AS k, sin(i)::float8 AS a, i % 2 = 0 AS y,
            (ARRAY['', NULL, 'a,"b', E'x\ny', 'NULL'])[1 + i % 5] AS c, (i * 0.001)::numeric AS p, 1 + i % 3 AS w
            FROM generate_series(0, 20000) g(i)""")
        db.execute(
            "CREATE TABLE st_d AS SELECT i::bigint AS k, NULLIF(cos(i), 1)::real AS z FROM generate_series(0, 39) g(i)"
        )
        there, options = ibis.postgres.connect(**postgres), {"weights": {"st_f": "w"}, "optional": ["st_d"]}
        read = functools.partial(relational.from_database, there, ["st_f", "st_d"], ("st_f", "y"), missing="impute")
        held, streamed = (read(streamed=way, **options) for way in (False, True))
        assert streamed.size == held.size and streamed.terms == 20_001 and streamed.feature_names == held.feature_names
        assert streamed.notes == [note for note in held.notes if "different ones" not in note]
        one, two = (relational.fit(join, 1e-2, scale="standard", tol=1e-5) for join in (held, streamed))
        monkeypatch.setattr("jaxsvm.relational.schema.join.MOST_TIMES", 0)  # too large to be formed
        large = read(streamed=True, **options)
        for a, b, c in zip(held.moments(), streamed.moments(), large.moments(), strict=True):
            np.testing.assert_allclose([b, c], [a, a], rtol=1e-9, atol=1e-9)
        fit = relational.fit(large, 1e-2, scale="standard")
        assert fit.certificate.dual <= one.certificate.primal and one.certificate.dual <= fit.certificate.primal
        assert fit.status.name == "CONVERGED" and one.score(streamed) == pytest.approx(one.score(held), abs=1e-12)
        assert one.score(large) == pytest.approx(one.score(held), abs=0.01)
        bounds = max(one.certificate.dual, two.certificate.dual), min(one.certificate.primal, two.certificate.primal)
        assert bounds[0] <= bounds[1] and two.status.name == "CONVERGED"
        found = db.execute(f"SELECT COUNT(*), SUM(score) FROM ({two.to_sql()}) AS scored").fetchone()
        average = db.execute(f"SELECT SUM(score * w) / SUM(w) FROM ({two.to_sql()}) AS scored").fetchone()[0]
    there.disconnect()
    assert found[0] == 20_001
    np.testing.assert_allclose(float(average), held.means() @ two.coef + two.intercept, rtol=1e-9)


def test_a_query_of_duckdb_that_is_interrupted_says_so():
    """DuckDB raises a RuntimeError."""
    pytest.importorskip("duckdb")

    class Interrupted:
        def sql(self, query):
            raise RuntimeError("Query interrupted")

    with pytest.raises(KeyboardInterrupt):
        pushdown.of_duckdb(Interrupted()).ask("SELECT 1")


def test_ibis_on_duckdb():
    duckdb, ibis = pytest.importorskip("duckdb"), pytest.importorskip("ibis")
    db = duckdb.connect()
    names, options = shop(db)
    connection = ibis.duckdb.from_connection(db)
    one = relational.from_database(connection, names, ("sales", "returned"), **options)
    two = relational.from_database(db, names, ("sales", "returned"), **options)
    assert one.size == two.size
    np.testing.assert_allclose(one.moments().second, two.moments().second, atol=1e-12)
