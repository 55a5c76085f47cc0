"""How Sphinx builds the site of these pages: `launch/docs`."""

from __future__ import annotations

import os
import re
import shutil
from functools import partial
from pathlib import Path

import jupyter_cache.executors.utils as executor
from sphinx.application import Sphinx

from amped import __version__

project, author = "amped", "the amped developers"
version = release = __version__
extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx_copybutton"]
nitpicky = True  # a name in the reference that is not there is a warning, and `launch/docs` takes none

html_theme = "pydata_sphinx_theme"
html_title = f"amped {version}"
html_theme_options = {
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc", "notebook"],
}
templates_path = ["_templates"]
html_static_path, html_css_files = ["_static"], ["site.css"]
html_sidebars = {"index": [], "readme": []}
html_copy_source = html_show_sourcelink = False
copybutton_exclude = ".linenos, .gp, .go"

# Pages are read on a plain repository page, too: links are relative, and headings are what they are called there.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# Tutorials are run when the site is built, in a folder of their own. What fails is a warning.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_show_tb = True
nb_execution_timeout = 240  # seconds of a cell, on a busy machine
# A cell's text is one, not in pieces; kernels on this machine need not warn that they are spoken to without encryption.
executor.executenb = partial(executor.executenb, coalesce_streams=True, extra_arguments=["--log-level=ERROR"])
os.environ.setdefault("COLUMNS", "92")  # lines of the text that tutorials print

# The reference. Parameters' types are in their sections, not in signatures.
default_role = "autolink"  # `cp_als` is a link where that is a name, and `rank` is not
# Fields that are called as a module or function is, and what another library has.
nitpick_ignore = [("py:obj", name) for name in ("models", "squared", "read", "sparse.COO")]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False
numpydoc_validation_checks = {"GL03", "GL08", "GL09", "GL10", "SS02", "SS03", "SS05", "PR01", "PR02", "PR03", "PR04",
                              "PR06", "PR07", "RT01", "RT03", "YD01"}  # fmt: skip
# A docstring of one line that says what is returned needs no section for it.
numpydoc_validation_overrides = {
    "RT01": [r"\A\s*(Return|Read|Tell|Give|Turn) [^\n]*\Z", r"\A\s*Return the (same )?tensor with"]
}
# Tuples of results are not made by users.
numpydoc_validation_exclude = {r"\.(Scan|Tried|Suggestion|Component|Residuals|Entry)$"}


def to_pages(text: str) -> str:
    """Return text whose links to files beside `docs` lead to the pages that include these."""
    return re.sub(r"\]\((?:\.\./)*(README|CHANGELOG|CONTRIBUTING)\.md", lambda found: f"](/{found[1].lower()}.md", text)


def setup(app: Sphinx) -> None:
    """Mend links of pages, and of what they include; lay notebooks beside tutorials."""

    def read(_app: Sphinx, _name: str, text: list[str]) -> None:
        text[0] = to_pages(text[0])

    def included(_app: Sphinx, _path: Path, _name: str, text: list[str]) -> None:
        text[0] = to_pages(text[0]).replace("](CITATION.cff)", "](/citation.md)")

    def copy_notebooks(app: Sphinx, _error: Exception | None) -> None:
        for notebook in Path(app.outdir, "..", "jupyter_execute", "tutorials").glob("*.ipynb"):
            shutil.copy(notebook, Path(app.outdir, "tutorials"))

    app.connect("build-finished", copy_notebooks)
    app.connect("source-read", read)
    app.connect("include-read", included)
