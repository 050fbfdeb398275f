"""Designs on a Dask cluster whose worker dies in a pass."""

import os
import signal
import threading

import numpy as np
import pytest

from jaxsvm import designs


@pytest.mark.slow
def test_a_worker_that_dies_in_a_pass_changes_nothing(tmp_path):
    distributed = pytest.importorskip("distributed")
    da = pytest.importorskip("dask.array")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3)).astype(np.float32)
    y = np.where(x[:, 0] + rng.normal(size=2000) > 0, 1, -1)
    expected = designs.fit(designs.from_arrays(x, y), tol=1e-6)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        rows = designs.from_dask((da.from_array(x, chunks=(250, 3)), da.from_array(y, chunks=250)))
        pids = client.run(os.getpid)

        def die(passes, gaps):
            if passes == 3:
                threading.Timer(0.05, os.kill, (min(pids.values()), signal.SIGKILL)).start()  # in the next pass

        fit = designs.fit(rows, tol=1e-6, callback=die)
        again = designs.fit(rows, tol=1e-6)
    for found in (fit, again):
        np.testing.assert_allclose(found.coef, expected.coef, atol=1e-9)
        assert found.status.name == "CONVERGED"
