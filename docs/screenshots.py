"""Make the pictures of the guide again: the report, a notebook, the gallery, and a map of residuals.

    launch/docs && python docs/screenshots.py

Needs Chromium and the extras docs, report and test. The gallery is that of the built site.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from PIL import Image
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

import amped

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))
from browser import Browser, browser  # noqa: E402

GUIDE = ROOT / "docs" / "guide"
PICKUPS = ROOT / "amped" / "data" / "uber_pickups.npz"
COLOURS = 96  # of a picture, which is then smaller
CELLS = (
    'from pathlib import Path\n\nimport amped\n\npickups = amped.read(Path(amped.__file__).parent / "data" / '
    '"uber_pickups.npz")\npickups',
    "model = amped.cp_als(pickups, 4, nonnegative=True)\nmodel",
    'model.plot(modes=["weekday", "hour"], components=[0, 1])',
)
FORMATTER = HtmlFormatter(style="default")
STYLE = f"""body {{ font: 14px sans-serif; margin: 22px }} pre {{ margin: 0; font-size: 13px }}
.cell {{ display: grid; grid-template-columns: 72px 1fr; gap: 5px; margin-bottom: 14px }}
.cell > :nth-child(odd) {{ text-align: right; font: 13px monospace; color: #999; padding-top: 6px }}
.code {{ background: #f5f5f5; border: 1px solid #ddd; padding: 5px }} .output {{ padding-top: 6px; line-height: 1.1 }}
table {{ border-collapse: collapse; font-size: 13px; margin-top: 8px }} td, th {{ padding: 7px 8px; text-align: right }}
thead tr {{ border-bottom: 1px solid #bbb }} tbody tr:nth-child(odd) {{ background: #f5f5f5 }}
{FORMATTER.get_style_defs()}"""


def notebook(cells: Sequence[str]) -> str:
    """Return cells and their outputs as HTML that looks like Jupyter."""
    run = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(run).execute()
    parts = list[str]()
    for number, cell in enumerate(run.cells, 1):
        code = highlight(cell.source, PythonLexer(), FORMATTER)
        parts.append(f"<div>In [{number}]:</div><div class=code>{code}</div>")
        for output in cell.outputs:
            data = output.get("data", {})
            picture = f"<img src='data:image/png;base64,{data.get('image/png', '')}' width=640>"
            shown = picture if "image/png" in data else data.get("text/html") or escape(data["text/plain"])
            parts.append(f"<div>Out[{number}]:</div><div class=output>{shown}</div>")
    return f"<!doctype html><style>{STYLE}</style><div class=cell>{''.join(parts)}</div>"


def save(picture: bytes, name: str) -> None:
    """Write a picture with few colours."""
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS).save(GUIDE / name, optimize=True)
    print(f"docs/guide/{name}: {(GUIDE / name).stat().st_size / 1000:.0f} kB")


def photograph(shown: Browser, page: Path, size: tuple[int, int], name: str) -> None:
    """Save a screenshot of a page."""
    shown.show_as(*size)
    shown.open(page)
    save(shown.picture(), name)


def main() -> None:
    """Make all pictures."""
    with TemporaryDirectory() as place, browser(Path(place)) as shown:
        folder = Path(place)
        model = amped.cp_als(PICKUPS, 6, nonnegative=True, max_iters=500)
        model.report(folder / "report.html", amped.read(PICKUPS), title=PICKUPS.name)
        photograph(shown, folder / "report.html", (1080, 1150), "report.png")
        (folder / "notebook.html").write_text(notebook(CELLS))
        photograph(shown, folder / "notebook.html", (1000, 945), "notebook.png")
        photograph(shown, ROOT / "build" / "docs" / "questions" / "index.html", (1100, 1150), "gallery.png")
        four = amped.cp_als(PICKUPS, 4, nonnegative=True)
        four.plot_residuals(amped.read(PICKUPS), ("weekday", "hour"), folder / "map.png")
        save((folder / "map.png").read_bytes(), "residual-map.png")


if __name__ == "__main__":
    main()
