"""Every block of Python in README.md and docs/ runs, and so do the commands; links lead somewhere; notebooks are true.

Blocks of a page share a namespace, in order. What a page takes for granted (`x`, a file) stands before its block in an
HTML comment that begins with `setup`, which readers do not see.
"""

import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import jaxsvm
from jaxsvm import cli, coresets, estimators, kernels, relational, screening

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
BLOCK = re.compile(r"^(?:<!-- setup\n(?P<setup>.*?)-->|```(?P<kind>\w*)\n(?P<code>.*?)^```)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FAST = {"coming_from.md", "model_file.md"}


def blocks(page):
    """Pairs of kind ("python", "console", ...) and text, with the line at which it begins."""
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        kind = "python" if found["kind"] is None else found["kind"]
        begin = found.start("setup") if found["kind"] is None else found.start("code")
        yield kind, found["setup"] or found["code"], text[:begin].count("\n") + 1


def runs(page):
    return any(kind in ("python", "console") for kind, _, _ in blocks(page))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=() if page.name in FAST else pytest.mark.slow)
        for page in PAGES
        if runs(page)
    ],
)
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    for kind, code, line in blocks(page):
        if kind == "python":
            padded = "\n" * (line - 1) + code  # so that a traceback names the page's own line
            exec(compile(padded, str(page), "exec"), namespace)
        elif kind == "console":
            for command in code.splitlines():
                if command.startswith("jaxsvm "):
                    result = CliRunner().invoke(cli.app, shlex.split(command, comments=True)[1:])
                    assert result.exit_code == 0, f"{page.name}: {command}\n{result.output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)):
        if not target.startswith(("http:", "https:", "#", "mailto:")):
            assert (page.parent / target.split("#")[0]).exists(), f"{page.name}: {target}"


def test_all_pages_are_in_the_navigation():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"^ +- (?:.*: )?(\S+\.md)$", site, re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert named == pages - {"status.md", "learned.md"} | {f"notebooks/{script.stem}.md" for script in NOTEBOOKS}
    listed = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert re.findall(r"\.\./notebooks/(\w+)\.ipynb", listed) == [script.stem for script in NOTEBOOKS]


def test_the_reference_names_what_is_there():
    for page in (ROOT / "docs").rglob("*.md"):
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            found = pkgutil.resolve_name(name)
            assert found is not None and (found.__doc__ or "").strip(), f"{page.name}: {name}"


@pytest.mark.parametrize(
    "module", [jaxsvm, coresets, estimators, kernels, relational, screening], ids=lambda one: one.__name__
)
def test_all_that_is_public_is_in_the_reference(module):
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)}
    public = {
        name for name in module.__all__ if f"jaxsvm.{name}" not in sys.modules
    }  # packages have pages of their own
    assert {f"{module.__name__}.{name}" for name in public} <= named


def test_the_page_of_results_is_that_of_the_files():
    command = [sys.executable, str(ROOT / "benchmarks" / "results_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "squared_hinge" in (tmp_path / "site" / "reference" / "core" / "index.html").read_text(encoding="utf-8")
    for script in NOTEBOOKS:
        page = (tmp_path / "site" / "notebooks" / script.stem / "index.html").read_text(encoding="utf-8")
        assert "<strong>Learned.</strong>" in page and f"{script.stem}_1.png" in page


def cells(script):
    """Sources of the cells of a percent script, without marks of markdown."""
    parts = re.split(r"^# %%(.*)\n", script.split("# ---\n", 2)[2], flags=re.MULTILINE)[1:]
    for kind, text in zip(parts[::2], parts[1::2], strict=True):
        lines = text.strip("\n").split("\n")
        yield "\n".join(re.sub(r"^# ?", "", line) for line in lines) if "[markdown]" in kind else "\n".join(lines)


@pytest.mark.parametrize("script", NOTEBOOKS, ids=lambda script: script.stem)
def test_a_notebook_beside_its_script_is_the_same_and_was_executed(script):
    stored = json.loads(script.with_suffix(".ipynb").read_text(encoding="utf-8"))
    there = ["".join(cell["source"]).strip() for cell in stored["cells"]]
    assert there == [cell.strip() for cell in cells(script.read_text(encoding="utf-8"))], "run `make notebooks`"
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" or output.get("name") == "stderr" for output in outputs)
    assert "**Learned.**" in there[-1] and sum("assert " in cell for cell in there) >= 2
    assert script.with_suffix(".ipynb").stat().st_size < 500_000


@pytest.mark.slow
@pytest.mark.parametrize("script", NOTEBOOKS, ids=lambda script: script.stem)
def test_a_notebook_runs(script, tmp_path):
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    environment["JAX_COMPILATION_CACHE_DIR"] = os.environ.get("JAXSVM_TEST_CACHE", str(ROOT / ".jax-cache"))
    copy = shutil.copy(script, tmp_path)
    done = subprocess.run(
        [sys.executable, copy], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
