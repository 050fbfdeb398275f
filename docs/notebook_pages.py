"""Hooks of mkdocs: the executed notebooks of `notebooks/` are pages of the site, with what they showed."""

import base64
import json
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(((?:\.\./)?)\.\./notebooks/(\w+)\.ipynb\)")


def on_files(files, config):
    """Add a page `notebooks/NAME.md` for each notebook, and its pictures beside it."""
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, pictures = page_of(json.loads(notebook.read_text(encoding="utf-8")), notebook.stem)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turn links to notebooks, and theirs to pages, which are for readers of the repository, into those of the site."""
    del page, config, files
    return LINK.sub(r"](\1notebooks/\2.md)", markdown).replace("](../docs/", "](../")


def page_of(stored, name):
    """Markdown of an executed notebook, and the pictures in it by file name."""
    parts, pictures = [], {}
    for cell in stored["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream" and output["name"] == "stdout":
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif "image/png" in output.get("data", {}):
                file = f"{name}_{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(output["data"]["image/png"])
                parts.append(f"![What this cell draws]({file})")
    parts.insert(1, f"*`notebooks/{name}.ipynb`, as it was executed; `{name}.py` beside it is the same as a script.*")
    return "\n\n".join(parts) + "\n", pictures
