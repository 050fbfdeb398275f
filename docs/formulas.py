"""Hook of mkdocs: formulas between dollar signs become MathML while the site is built; a browser needs nothing else."""

import html
import re

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)


def on_page_content(content, page, config, files):
    """Put MathML in place of what `pymdownx.arithmatex` marked; a formula that cannot be read ends the build."""
    del page, config, files
    content = DISPLAY.sub(lambda found: f'<div class="formula">{mathml(found[1], "block")}</div>', content)
    return INLINE.sub(lambda found: mathml(found[1], "inline"), content)


def mathml(latex, display):
    """Convert one formula; what the converter does not know it would leave as it is."""
    converted = convert(html.unescape(latex).strip(), display=display)
    if re.search(r">[\\&]", converted.replace(">&#", "")):
        raise PluginError(f"a formula holds what latex2mathml does not know: {latex}")
    return converted
