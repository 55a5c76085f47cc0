"""The site of the documents in a browser: all of it fits the page, and is legible. `launch/docs` runs this."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
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
PARTS = {  # what must fit; long tables and printed text scroll on phones
    "desktop": f"{TABLES}, {CODE}",
    "phone": f"{CODE}:not(:is({OUTPUT}, .highlight-text) *), .prev-next-area a",
    "paper": f"{TABLES}, {CODE}",
}
TOO_WIDE = """(selector => [...document.querySelectorAll(selector)]
    .filter(each => each.clientWidth && each.scrollWidth > each.clientWidth + 1)
    .map(each => `${each.scrollWidth} of ${each.clientWidth}: ${each.textContent.trim().slice(0, 60)}`))"""

# Texts whose contrast with what is behind them is below 4.5, the least of WCAG 2.1, AA: each kind of element once.
PALE = """(() => {
    const parts = colour => { const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
    const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3]));
    const light = colour => colour.map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = element => element
        ? over(parts(getComputedStyle(element).backgroundColor), behind(element.parentElement)) : [255, 255, 255];
    const contrasts = new Map();
    const texts = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        const kind = `${element.tagName}.${element.className} in ${element.parentElement.tagName}`;
        if (contrasts.has(kind) || !texts.currentNode.textContent.trim() || !element.getClientRects().length) continue;
        const under = behind(element), levels = [under, over(parts(getComputedStyle(element).color), under)].map(light);
        contrasts.set(kind, (Math.max(...levels) + 0.05) / (Math.min(...levels) + 0.05));
    }
    return [...contrasts].filter(each => each[1] < 4.5).map(each => `${each[0]}: ${each[1].toFixed(1)}`);
})()"""

pytestmark = pytest.mark.skipif("AMPED_SITE" not in os.environ, reason="AMPED_SITE: the folder of a site is not given")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def too_wide(shown: Browser, pages: Sequence[Path]) -> list[str]:
    """Return what is wider than the page in any view."""
    wide = list[str]()
    for page in pages:
        shown.open(page)
        for view, (width, height, medium) in VIEWS.items():
            shown.show_as(width, height, media=medium)
            parts = f"html, .bd-article-container, {PARTS[view]}"
            found = shown.value(f"{TOO_WIDE}({parts!r})")
            wide += [f"{page.relative_to(SITE)}, {view}: {each}" for each in found]
    return wide


def test_nothing_is_wider_than_the_page(shown: Browser, tmp_path: Path) -> None:
    pages = [page for page in sorted(SITE.rglob("*.html")) if "_static" not in page.parts]
    assert len(pages) > 60
    with browser(tmp_path) as other, ThreadPoolExecutor(2) as pool:  # a page's style and layout take one core
        wide = [*chain(*pool.map(too_wide, (shown, other), (pages[::2], pages[1::2])))]
    assert not wide, "\n".join(wide)


def test_texts_are_legible_in_both_themes(shown: Browser) -> None:
    shown.show_as(1280, 900)
    pale = set[str]()
    for name in ("questions/plot_table", "tutorials/flights", "reference/functions", "guide/python", "index"):
        shown.open(SITE / f"{name}.html")
        for theme in ("light", "dark"):
            shown.value(f"document.documentElement.dataset.theme = '{theme}'")
            pale |= {f"{theme}: {each}" for each in shown.value(PALE)}
    assert not pale, "\n".join(sorted(pale))


def test_pages_are_printed_in_the_light_theme(shown: Browser) -> None:
    shown.open(SITE / "index.html")
    shown.value("document.documentElement.dataset.theme = 'dark'")
    shown.value("const seen = [], root = document.documentElement.dataset")
    shown.value("addEventListener('beforeprint', () => seen.push(root.theme))")
    shown.printed()
    assert shown.value("[...seen, root.theme]") == ["light", "dark"]
