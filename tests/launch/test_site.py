"""The site of the documents in a browser: nothing is wider than the page. `launch/docs` runs this."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, browser

SITE = Path(os.environ.get("AMPED_SITE", ""))
VIEWS = {"desktop": (1280, 900, ""), "phone": (390, 844, ""), "paper": (728, 1000, "print")}
TABLES, CODE, OUTPUT = (
    ".pst-scrollable-table-container, .output_html, .text_html",
    "article pre",
    ".cell_output, .sphx-glr-script-out",
)
PARTS = {  # what must fit; long tables and printed text scroll on phones, long lines of code on a desktop
    "desktop": TABLES,
    "phone": f"{CODE}:not(:is({OUTPUT}) *)",
    "paper": f"{TABLES}, {CODE}",
}
TOO_WIDE = """(selector => [...document.querySelectorAll(selector)]
    .filter(each => each.clientWidth && each.scrollWidth > each.clientWidth + 1)
    .map(each => `${each.scrollWidth} of ${each.clientWidth}: ${each.textContent.trim().slice(0, 60)}`))"""

pytestmark = pytest.mark.skipif("AMPED_SITE" not in os.environ, reason="AMPED_SITE: the folder of a site is not given")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def test_nothing_is_wider_than_the_page(shown: Browser) -> None:
    pages = [page for page in sorted(SITE.rglob("*.html")) if "_static" not in page.parts]
    assert len(pages) > 60
    wide = list[str]()
    for page in pages:
        shown.open(page)
        for view, (width, height, medium) in VIEWS.items():
            shown.show_as(width, height, media=medium)
            parts = f"html, .bd-article-container, {PARTS[view]}"
            found = shown.value(f"{TOO_WIDE}({parts!r})")
            wide += [f"{page.relative_to(SITE)}, {view}: {each}" for each in found]
    assert not wide, "\n".join(wide)
