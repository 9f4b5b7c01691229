"""The site: `python dev.py docs` builds it from the pages in this folder, the patches and the changelog."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "_ext"))

project = "lightning-windows-ddp"
author = "The lightning-windows-ddp team"
extensions = ["myst_parser", "sphinxcontrib.svgbob", "patch_set", "measured"]
root_doc = "index"
exclude_patterns = ["README.md"]

nitpicky = True
# The pages that the patches add are upstream's, too: there, these have somewhere to lead
nitpick_ignore_regex = [(r"py:.*", r"(lightning|torch)\..*")]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "DDP on Windows"
html_static_path = ["_static"]
html_css_files = ["diagrams.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
