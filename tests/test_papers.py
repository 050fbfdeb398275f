"""Programs about papers run in small, and their pages have the table of what was kept."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))


def told(page, *options):
    command = [sys.executable, f"benchmarks/papers/{page.stem}.py", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_program_finds_in_small_what_its_page_says(page, shared):
    shared("adult")
    done = told(page, "--quick")
    assert done.returncode == 0, done.stderr[-2000:]
    assert " 0 checks failed" in done.stdout and "  ok " in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_table_of_its_program(page):
    done = told(page, "--table")
    lines, there = done.stdout.splitlines(), page.read_text(encoding="utf-8")
    assert done.returncode == 0 and len(lines) > 5, done.stderr[-2000:]
    assert not [line for line in lines if line not in there], "put in what the program says with --table"
