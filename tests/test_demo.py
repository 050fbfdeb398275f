"""The demo: a short walk of it writes what it says, certified."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough
def test_demo(demo, tmp_path, capsys):
    assert demo.main(["--out", str(tmp_path), "--n-c", "4"]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report["sets"]) == {"breast-cancer", "digits-8"}
    for name, part in report["sets"].items():
        assert (tmp_path / f"path-{name}.png").read_bytes().startswith(b"\x89PNG")
        np.testing.assert_allclose([row["C"] for row in part["path"]], np.geomspace(1e-2, 1e3, 4))
        for row in part["path"]:
            assert row["status"] == "CONVERGED"
            assert 0 <= row["relative_gap"] <= report["tol"]
            assert row["dual"] <= row["primal"]
        best = max(row["test_accuracy"] for row in part["path"])
        assert part["test_accuracy"] == best > 0.93
    printed = capsys.readouterr().out
    assert "CONVERGED" in printed and "chosen C" in printed


def test_out_that_cannot_be_written(demo, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as stopped:
        demo.main(["--out", str(tmp_path / "file" / "below")])
    assert stopped.value.code == 2 and "--out" in capsys.readouterr().err
