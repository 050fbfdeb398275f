"""The pushed-down SQL on another engine: PostgreSQL through ibis, started here where its programs are installed."""

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


def _program(name):
    """The path of one of PostgreSQL's programs, which Debian keeps off the PATH."""
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


def test_postgresql_reduces_as_duckdb_does_and_scores_as_we_do(postgres):
    import ibis
    import psycopg

    duckdb = pytest.importorskip("duckdb")
    db = duckdb.connect()
    names, options = shop(db)
    with psycopg.connect(host=postgres["host"], user=postgres["user"], dbname=postgres["database"]) as other:
        for name in names:
            table = db.sql(f"SELECT * FROM {name}").to_arrow_table()
            kinds = [{"int64": "BIGINT", "double": "DOUBLE PRECISION"}.get(str(c.type), "TEXT") for c in table.columns]
            columns = ", ".join(f'"{c}" {kind}' for c, kind in zip(table.column_names, kinds, strict=True))
            other.execute(f'CREATE TABLE "{name}" ({columns})')
            slots = ", ".join(["%s"] * len(kinds))
            other.cursor().executemany(
                f'INSERT INTO "{name}" VALUES ({slots})', [tuple(row.values()) for row in table.to_pylist()]
            )
    connection = ibis.postgres.connect(**postgres)
    here = relational.from_duckdb(db, names, ("sales", "returned"), **options)
    there = relational.from_ibis(connection, names, ("sales", "returned"), **options)
    assert there.size == here.size and there.feature_names == here.feature_names
    one, two = here.moments(), there.moments()
    np.testing.assert_allclose(one.second, two.second, atol=1e-12)
    np.testing.assert_allclose(one.label_mean, two.label_mean, atol=1e-12)
    fit = relational.fit(there, 0.01, scale="standard")
    x, _, _ = fit.join.materialise()
    with psycopg.connect(host=postgres["host"], user=postgres["user"], dbname=postgres["database"]) as other:
        scored = [row[-1] for row in other.execute(f"SELECT score FROM ({fit.to_sql()}) AS scored").fetchall()]
    np.testing.assert_allclose(np.sort(np.array(scored, float)), np.sort(x @ fit.beta), atol=1e-12)
    connection.disconnect()


def test_ibis_on_duckdb():
    duckdb, ibis = pytest.importorskip("duckdb"), pytest.importorskip("ibis")
    db = duckdb.connect()
    names, options = shop(db)
    connection = ibis.duckdb.from_connection(db)
    one = relational.from_ibis(connection, names, ("sales", "returned"), **options)
    two = relational.from_duckdb(db, names, ("sales", "returned"), **options)
    assert one.size == two.size
    np.testing.assert_allclose(one.moments().second, two.moments().second, atol=1e-12)
