"""How Sphinx builds the site of these pages: `launch/docs`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import jupyter_cache.executors.utils as executor
from jupyter_cache import get_cache
from matplotlib.figure import Figure
from sphinx.application import Sphinx
from sphinx_gallery.scrapers import figure_rst, matplotlib_scraper

from amped import __version__

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "build" / "notebooks"  # outputs of tutorials

project, author = "amped", "the amped developers"
version = release = __version__
extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["gallery"]  # sources of the pages in `questions`
nitpicky = True  # a name in the reference that is not there is a warning, and `launch/docs` takes none

html_theme = "pydata_sphinx_theme"
html_title = f"amped {version}"
html_theme_options = {
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc", "notebook"],
}
templates_path = ["_templates"]
html_static_path, html_css_files, html_js_files = ["_static"], ["site.css"], ["print.js"]
html_sidebars = {"index": []}
html_copy_source = html_show_sourcelink = False
copybutton_exclude = ".linenos, .gp, .go"

# Pages are read on a plain repository page, too: links are relative, and headings are what they are called there.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]


def built_on() -> str:
    """Return a digest of what tutorials run beside their cells: amped, this file, Python, and what is installed."""
    files = [path for room in ("amped", "partitioner") for path in ROOT.joinpath(room).rglob("*") if path.is_file()]
    digest = hashlib.sha256(sys.version.encode())
    for path in (Path(__file__), *sorted(path for path in files if path.suffix != ".pyc")):
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    for line in sorted(f"{package.name} {package.version}" for package in distributions()):
        digest.update(line.encode())
    return digest.hexdigest()[:16]


# Tutorials are run when the site is built, in a folder of their own. What fails is a warning. Their outputs are kept,
# and used again by builds with the same cells, code and packages.
nb_execution_mode = "cache"
nb_execution_cache_path = str(NOTEBOOKS / built_on())
nb_execution_in_temp = True
nb_execution_show_tb = True
nb_execution_timeout = 240  # seconds of a cell, on a busy machine
# A cell's text is one, not in pieces; kernels on this machine need not warn that they are spoken to without encryption.
executor.executenb = partial(executor.executenb, coalesce_streams=True, extra_arguments=["--log-level=ERROR"])
os.environ.setdefault("COLUMNS", "92")  # lines of the text that tutorials print


def save_figures(block: Any, variables: dict[str, Any], settings: dict[str, Any]) -> str:
    """Save the figures of pyplot, and the figure that a block of a gallery page ends with; return references."""
    references = matplotlib_scraper(block, variables, settings, bbox_inches="tight")
    figure = variables["example_globals"].get("___")
    if isinstance(figure, Figure):
        path = next(variables["image_path_iterator"])
        figure.savefig(path, dpi=80)
        references += figure_rst([path], str(ROOT / "docs"))
    return str(references)


# The gallery is run when the site is built, one script after the other. An error in a script fails the build.
suppress_warnings = ["config.cache"]  # `save_figures` cannot be pickled
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "questions",
    "image_scrapers": (save_figures,),
    "capture_repr": ("_repr_html_",),
    "notebook_extensions": set(),  # myst_nb would build them as pages
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "min_reported_time": 3600,
    "show_signature": False,
    "write_computation_times": False,
}

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
    "RT01": [r"\A\s*(Return|Read|Tell|Give|Turn) [^\n]*\Z", r"\A\s*Return the (same )?tensor with"],
}
# Tuples of results are not made by users.
RESULTS = (
    "Scan|ScannedRank|Suggestion|Component|Components|Residuals|Entry|Finding|SliceResiduals|Comparison|ComponentPair|"
    "LabelChange|CommonMode|RunPlan|ModelView"
)
numpydoc_validation_exclude = {rf"\.({RESULTS})$"}


def to_pages(text: str) -> str:
    """Return text whose links to files beside `docs` lead to the pages that include these."""
    pages = {"README": "index", "CHANGELOG": "changelog", "CONTRIBUTING": "contributing"}
    return re.sub(rf"\]\((?:\.\./)*({'|'.join(pages)})\.md", lambda found: f"](/{pages[found[1]]}.md", text)


# Where a part of a name of code ends: `re<wbr>.sub`, `test_<wbr>site`, `docs/<wbr>conf`, `abs(<wbr>x`, `on-<wbr>disk`
ENDS = re.compile(
    r"""(?<=[\w)])(?<=..)(?=\.\w\w)(?!\.\w{1,4}$) | (?<=\w\w_)(?=\w\w)
    | (?<=\w[/(=,])(?=[\w"'[&]) | (?<=\w{3}-)(?=\w{3})""",
    re.VERBOSE,
)
LONG = 200  # characters of text in a row of a table, on average


def for_narrow_pages(body: str) -> str:
    """Return a page's HTML in which long names of code may break, and tables of paragraphs are of class `long`."""

    def marked(found: re.Match[str]) -> str:
        size = len(re.sub(r"<[^>]*>|\s+", "", found[0])) / found[0].count("<tr")
        return f"{found[1]}{' long' * (size > LONG)}{found[2]}"

    body = re.sub(r'(?<=<span class="pre">)[^<]{13,}', lambda found: ENDS.sub("<wbr>", found[0]), body)
    return re.sub(r'(<table class="[^"]*)(".*?</table>)', marked, body, flags=re.DOTALL)


def setup(app: Sphinx) -> None:
    """Mend links of pages, and of what they include; adapt them to narrow ones; lay notebooks beside tutorials."""

    def read(_app: Sphinx, _name: str, text: list[str]) -> None:
        text[0] = to_pages(text[0])

    def included(_app: Sphinx, _path: Path, _name: str, text: list[str]) -> None:
        text[0] = to_pages(text[0]).replace("](CITATION.cff)", "](/citation.md)")

    def written(_app: Sphinx, _name: str, _template: str, context: dict[str, Any], _tree: Any) -> None:
        if "body" in context:
            context["body"] = for_narrow_pages(context["body"])

    def is_left_out(_app: Sphinx, _what: str, _name: str, member: Any, _skip: bool, _options: Any) -> bool | None:
        """Leave out fields of tuples, which the classes describe."""
        return True if str(member.__doc__).startswith("Alias for field number") else None

    def copy_notebooks(app: Sphinx, _error: Exception | None) -> None:
        for notebook in Path(app.outdir, "..", "jupyter_execute", "tutorials").glob("*.ipynb"):
            shutil.copy(notebook, Path(app.outdir, "tutorials"))

    def make_cache(_app: Sphinx) -> None:
        kept = Path(nb_execution_cache_path)
        for other in set(NOTEBOOKS.glob("*")) - {kept}:
            shutil.rmtree(other, ignore_errors=True)
        get_cache(kept).list_cache_records()  # makes the database, before processes that read pages use it

    app.connect("builder-inited", make_cache)
    app.connect("build-finished", copy_notebooks)
    app.connect("source-read", read)
    app.connect("include-read", included)
    app.connect("html-page-context", written)
    app.connect("autodoc-skip-member", is_left_out)
