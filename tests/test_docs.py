"""Every block of Python in README.md and docs/ runs as printed, and so do the commands; links lead; notebooks are true.

A block of README.md runs in an interpreter of its own, and so do the blocks of a page of docs/, one after another: x64
is off, as users have it, no number is truncated, and there is nothing that a reader does not see. A block of text under
them is what they print.
"""

import json
import os
import pkgutil
import re
import runpy
import shutil
import subprocess
import sys
import types
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import get_args

import pytest

import jaxsvm
from jaxsvm import coresets, estimators, kernels, relational, screening

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/papers").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
BLOCK = re.compile(r"^```(python|console|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d.]*(?:e-?\d+)?")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
UNUSUAL = ("equinox", "flax")
"""Packages that tests do not need: blocks that import them run where they are installed."""
COMMANDS = """
import shlex, typer.testing, jaxsvm.cli
for command in {!r}:
    done = typer.testing.CliRunner().invoke(jaxsvm.cli.app, shlex.split(command, comments=True)[1:])
    assert done.exit_code == 0, command + done.output
"""


def programs(page):
    """Name, code and printed text (or "") of what an interpreter runs, in the order of the page."""
    text, found = page.read_text(encoding="utf-8"), []
    for block in BLOCK.finditer(text):
        kind, code, line = block[1], block[2], text[: block.start(2)].count("\n")
        if any(re.search(rf"^(import|from) {name} ", code, re.MULTILINE) and not find_spec(name) for name in UNUSUAL):
            continue
        if kind == "text":
            found[-1][2] += code
            continue
        if kind == "console":
            code = COMMANDS.format([command for command in code.splitlines() if command.startswith("jaxsvm ")])
        if not found or page.name == "README.md":
            found.append([f"{page.stem}-{line}" if page.name == "README.md" else page.stem, "", ""])
        found[-1][1] += "\n" * (line - found[-1][1].count("\n")) + code  # at its line, of which a traceback speaks
    return found


@pytest.mark.parametrize(
    ("code", "shown"),
    [pytest.param(*rest, id=name, marks=pytest.mark.thorough) for page in PAGES for name, *rest in programs(page)],
)
def test_blocks_run_as_printed(code, shown, tmp_path):
    (tmp_path / "page.py").write_text(code, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_ENABLE_X64", "JAXSVM_CACHE")}
    environment |= {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment["JAX_COMPILATION_CACHE_DIR"] = os.environ.get("JAXSVM_TEST_CACHE", str(ROOT / ".jax-cache"))
    command = [sys.executable, "-W", "error:Explicitly requested", "page.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    if shown:
        assert NUMBER.sub("#", done.stdout).split() == NUMBER.sub("#", shown).split()  # long lines are wrapped
        for printed, expected in zip(NUMBER.findall(done.stdout), NUMBER.findall(shown), strict=True):
            assert "e" in expected or float(printed) == pytest.approx(float(expected), rel=0.05)  # a gap is as it comes


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)):
        if not target.startswith(("http:", "https:", "#", "mailto:")):
            assert (page.parent / target.split("#")[0]).exists(), f"{page.name}: {target}"


def test_what_is_faster_stands_on_the_start_page_too():
    there = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8").split("## What is faster than what")[1].split("\n## ")[0]
    rows = [line for line in readme.splitlines() if line.startswith("|")]
    assert len(rows) > 5 and "\n".join(rows) in there


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
            assert (found.__doc__ or "").strip() or get_args(found), f"{page.name}: {name}"


@pytest.mark.parametrize(
    "module", [jaxsvm, coresets, estimators, kernels, relational, screening], ids=lambda one: one.__name__
)
def test_all_that_is_public_is_in_the_reference(module):
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)}
    rooms = {name for name in module.__all__ if (ROOT / "jaxsvm" / name).is_dir()}  # which have pages of their own
    public = {*module.__all__} - rooms
    assert {f"{module.__name__}.{name}" for name in public} <= named


def test_the_page_of_results_is_that_of_the_files():
    command = [sys.executable, str(ROOT / "benchmarks" / "results_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_page_of_plans_has_the_tables_of_its_script():
    plan = runpy.run_path(str(ROOT / "benchmarks" / "plan.py"))
    page = (ROOT / "docs" / "planning.md").read_text()
    for lines in (plan["table"](), plan["backends"]()):
        assert "\n".join(lines) in page, "run benchmarks/plan.py"


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    pytest.importorskip("latex2mathml")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "squared_hinge" in (tmp_path / "site" / "reference" / "core" / "index.html").read_text(encoding="utf-8")
    mathematics = (tmp_path / "site" / "mathematics" / "index.html").read_text(encoding="utf-8")
    assert mathematics.count("<math ") > 300 and "arithmatex" not in mathematics and "$$" not in mathematics
    for script in NOTEBOOKS:
        page = (tmp_path / "site" / "notebooks" / script.stem / "index.html").read_text(encoding="utf-8")
        assert "<strong>Learned.</strong>" in page and f"{script.stem}_1.png" in page


def cells(script):
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


def test_links_between_pages_and_notebooks_are_those_of_the_site(monkeypatch):
    """`mkdocs build --strict` ended at a link from a page of a paper to a notebook, and at the one back."""
    for name in ("mkdocs", "mkdocs.structure", "mkdocs.structure.files"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(File=None))
    found = spec_from_file_location("notebook_pages", ROOT / "docs" / "notebook_pages.py")
    hooks = module_from_spec(found)
    found.loader.exec_module(hooks)
    pages = {path.relative_to(ROOT / "docs").as_posix(): path.read_text() for path in (ROOT / "docs").rglob("*.md")}
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        pages[f"notebooks/{path.stem}.md"] = hooks.page_of(json.loads(path.read_text()), path.stem)[0]
    dead, seen = [], 0
    for name, text in pages.items():
        shown = hooks.on_page_markdown(text, None, None, None)
        for target in LINK.findall(re.sub(r"```.*?```|`[^`\n]*`", "", shown, flags=re.DOTALL)):
            place = os.path.normpath(os.path.join(os.path.dirname(name), target.split("#")[0]))
            seen += place.endswith(".md")
            if place.endswith((".md", ".ipynb")) and "://" not in target and place not in pages:
                dead.append((name, target))
    assert dead == [] and seen > 100
