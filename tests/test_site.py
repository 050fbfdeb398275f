"""The site in a browser: pages fit a desk and a phone, say no error, and ask nothing of other machines.

The pictures stay in `build/pictures`, to be looked at: `python -m pytest -m slow tests/test_site.py`.
"""

import json
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "", "layer/", "anywhere/", "mathematics/", "papers/frank_wolfe/", "notebooks/01_a_first_path/", "reference/core/",
)  # fmt: skip
WIDTHS = (1280, 400)

WATCH = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(String(event.message || event.target.src || event.target.href)), true);
const said = console.error;
console.error = (...words) => { errors.push(words.join(" ")); said(...words); };
addEventListener("load", () => {
  const wide = [...document.querySelectorAll("pre code")].filter((block) => block.scrollWidth > block.clientWidth + 1);
  const found = {
    errors,
    width: innerWidth,
    page: document.documentElement.scrollWidth,
    blocks: wide.map((block) => block.textContent.slice(0, 80)),
    asked: performance.getEntriesByType("resource").map((entry) => entry.name),
  };
  parent.postMessage(JSON.stringify(found), "*");
});
</script>"""

FRAME = """<!doctype html><style>body { margin: 0 } iframe { border: 0; width: WIDTHpx; height: 1600px }</style>
<script>addEventListener("message", (event) => document.body.setAttribute("data-found", event.data));</script>
<body><iframe src="PAGE"></iframe></body>"""
"""A page in a frame of a phone's width: a window of Chromium is at least 500 pixels wide."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed")
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--no-directory-urls", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for page in folder.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace("<head>", f"<head>{WATCH}", 1), encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_in_a_browser(site, page, width, tmp_path):
    file = site / "frame.html"
    file.write_text(FRAME.replace("WIDTH", str(width)).replace("PAGE", f"{page.rstrip('/') or 'index'}.html"))
    pictures = ROOT / "build" / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    picture = pictures / f"{page.replace('/', '-').strip('-') or 'start'}-{width}.png"
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    browser += [f"--window-size={max(width, 500)},1600", "--hide-scrollbars", "--virtual-time-budget=3000"]
    for what in ("--dump-dom", f"--screenshot={picture}"):
        done = subprocess.run([*browser, what, file.as_uri()], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        if what == "--dump-dom":
            seen = re.search(r'data-found="([^"]*)"', done.stdout)
            assert seen, done.stdout[:500]
            found = json.loads(unescape(seen.group(1)))
    assert found["width"] == width and found["page"] <= width, (found["width"], found["page"])
    assert found["errors"] == [], found["errors"]
    assert [name for name in found["asked"] if not name.startswith("file:")] == []
    assert width < 1280 or found["blocks"] == [], found["blocks"]
    assert picture.stat().st_size > 5000
