"""The report of a model: what is in it, and how it behaves in a browser."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, browser
from command import on_ranks, refused, run_amped, small_tns, succeeded
from forms import exhaustive

import amped
from amped.models import evaluation
from amped.report import charts, facts, page, timing
from amped.report.changes import Other
from amped.report.core_terms import largest_terms
from partitioner.wording import readable

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

EVIL = [
    "<script>document.title = 'taken'</script>",
    '"><img src=https://example.org/x.png onerror="document.title=\'taken\'">',
    "line one\nline two\ttab",
    "snow ☃ and 😀",
    "'quoted' & \"quoted\" {{ 7 * 7 }} ${x}",
    "</style></title></script><b>bold</b>",
    "long " * 2000,
    "plain",
]


@pytest.fixture
def model() -> amped.KruskalTensor:
    """Three components of hours, of labels of any kind, and of days; the last two are alike."""
    rng = np.random.default_rng(3)
    hours, names, days = (rng.dirichlet(np.ones(n), 3).T for n in (24, len(EVIL), 40))
    for factor in (hours, names, days):
        factor[:, 2] = factor[:, 1] * (1 + 0.1 * rng.random(len(factor)))
        factor[:, 2] /= factor[:, 2].sum()
    found = amped.KruskalTensor(np.array([5.0, 3.0, 2.0]), [hours, names, days], fits=(0.1, 0.4, 0.5))
    found.labelled([np.arange(24), EVIL, np.arange("2014-04-01", "2014-05-11", dtype="M8[D]")])
    assert found.labels is not None
    found.labels.names = ("hour", "<i>who</i>", "day")
    return found


class Text(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.text = list[str](), list[tuple[str, str | None]](), list[str]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def text_of(html: str) -> str:
    return " ".join(" ".join(Text(html).text).split())


def test_labels_are_text_whatever_they_hold(model: amped.KruskalTensor) -> None:
    html = page.page(model)
    read = Text(html)
    assert read.tags.count("script") == 1
    assert not {"img", "b", "i", "iframe", "link", "object"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on")]
    told = "".join(read.text)
    for part in ("<script>document.title", "onerror=", "snow ☃ and 😀", "{{ 7 * 7 }} ${x}", "<i>who</i>"):
        assert part in told
    assert "line one line two tab" in told
    assert "long " * 60 not in html, "long labels are cut"


def test_nothing_in_it_has_an_address(model: amped.KruskalTensor) -> None:
    html = page.page(model)
    places = {value for name, value in Text(html).attributes if name in ("src", "href", "xlink:href", "action", "data")}
    assert places
    assert all(value is not None and value.startswith("#") for value in places)
    assert "@import" not in html
    assert set(re.findall(r"url\(([^)]*)\)", html)) <= set(re.findall(r"url\((#[^)]*)\)", html))
    assert "default-src 'none'" in html


def test_names_within_charts_are_those_of_one_chart(model: amped.KruskalTensor) -> None:
    html = page.page(model)
    names = re.findall(r'\bid="([^"]*)"', html)
    assert len(names) == len(set(names))
    assert set(re.findall(r"(?:xlink:href=\"|url\()#([mp][0-9a-f]{10})", html)) <= set(names)


def later(model: amped.KruskalTensor) -> amped.KruskalTensor:
    """Return a model whose first component has other hours, and whose last one is missing."""
    factors = [factor[:, :2].copy() for factor in model.factors]
    factors[0][:, 0] = np.roll(np.eye(24)[:, 0] + 0.01, 3) / 1.24
    assert model.labels is not None
    found = amped.KruskalTensor(model.weights[:2], factors).labelled(list(model.labels))
    assert found.labels is not None
    found.labels.names = model.labels.names
    return found


def test_two_models(model: amped.KruskalTensor) -> None:
    html = page.page(model, other=Other(later(model), ("March", EVIL[0])))
    read, text = Text(html), text_of(html)
    assert read.tags.count("script") == 1
    for part in ("March and <script>document.title", "What changed", "1 changed", "1 only in the first model",
                 "Only in March component 3: ", "Component 1 and 1: changed", "Component 2 and 2: same",
                 "gained 3 "):  # fmt: skip
        assert part in text, part
    compared = model.compare(later(model))
    (changed,) = [pair for pair in compared.pairs if pair.status == "changed"]
    assert f"hour ({changed.by_mode[0]:.2f})" in text, "congruence per mode"
    names = re.findall(r'\bid="([^"]*)"', html)
    assert len(names) == len(set(names))
    assert html.count("stroke: var(--second)") >= 2, "curves of hours and days of each pair"
    assert html.count('class="both"') == 2 * len(EVIL[:-2]), "bars of labels"
    assert "What changed" not in page.page(model)


def test_the_command_for_two_models(folder: Path, model: amped.KruskalTensor) -> None:
    model.save("a.npz")
    later(model).save("b.npz")
    assert "report in a.changes.html" in succeeded(run_amped("report", "a.npz", "b.npz")).out
    text = text_of((folder / "a.changes.html").read_text())
    assert "a.npz and b.npz" in text
    assert "first model is a.npz, the second one b.npz" in text
    model.report("c.html", title="Two springs", other=later(model))
    assert "this model" in text_of((folder / "c.html").read_text())
    refused(run_amped("report", "a.npz", "b.npz"), "a.changes.html: exists already")
    refused(run_amped("report", "a.npz", "b.npz", "--output", "b.npz", "--force"), "b.npz")
    refused(run_amped("report", "a.npz", "none.npz"), "none.npz")
    amped.TuckerTensor(np.ones((1, 1)), [np.ones((2, 1)), np.ones((3, 1))]).save("t.npz")
    refused(run_amped("report", "a.npz", "t.npz"), "t.npz: is a Tucker model: only CP models can be compared")
    refused(run_amped("report", "t.npz", "a.npz"), "t.npz: is a Tucker model: only CP models can be compared")
    with pytest.raises(amped.InputError, match="other: a TuckerTensor is not a CP model"):
        model.report("d.html", other=amped.load("t.npz"))


def test_a_tucker_model(folder: Path) -> None:
    """Its components are the core elements, the largest first."""
    core = np.array([[3.0, 0.0], [1.0, -4.0]])
    model = amped.TuckerTensor(core, [np.eye(3, 2), np.eye(4, 2)], [0.5], True)
    model = model.labelled({"who": ["Ann", "Bob", "Cy"], "what": ["tea", "jam", "rye", "egg"]})
    terms = largest_terms(model)
    assert terms.weights.tolist() == [4, 3, 1]
    np.testing.assert_array_equal(terms.full(), model.full())
    model.save("t.npz")
    np.save("x.npy", model.full())
    run = succeeded(run_amped("report", "t.npz", "--tensor", "x.npy", "--output", "cli.html"))
    assert "report in cli.html" in run.out
    model.report("python.html", model.full(), title="Breakfast")
    for name, title in (("cli.html", "a Tucker model"), ("python.html", "Breakfast")):
        text = text_of((folder / name).read_text())
        assert f"{title} Tucker model with a core of 2 × 2 of who × what" in text
        assert "the 3 largest of 4; shares are of these. 62% of the model: who: Bob; what: jam" in text
        assert "core 2 × 2" in text
        assert "fit 1.0000" in text, "of the whole model to the tensor"


def test_it_tells_what_was_asked_and_what_came_out(folder: Path) -> None:
    path = small_tns(folder)
    told = succeeded(run_amped("cpd", path, "--rank", 2, "--nonnegative", "--output", "out", "--report", "r.html")).out
    assert "report in r.html" in told
    read = text_of((folder / "r.html").read_text())
    record = json.loads((folder / "out" / "run.json").read_text())
    for part in ("small.tns", "mode 0 (9) × mode 1 (7) × mode 2 (5)", "nonzeros 80", "random, seed 0",
                 f"fit {record['fits'][-1]:.4f}", "amped cpd small.tns --rank 2 --nonnegative", "count as 0",
                 "Largest residuals", f"numpy {np.__version__}", "fit after each iteration"):  # fmt: skip
        assert part in read, part
    assert "report" not in record["command"]


def test_its_command_makes_the_model_again(folder: Path) -> None:
    flags = ["--rank", 2, "--loss", "poisson", "--method", "pqnr", "--max-iters", 3, "--seed", 5, "--inner-iters", 4]
    succeeded(run_amped("cpd", small_tns(folder, "a b.tns"), *flags, "--precision", "fp64", "--output", "one"))
    record = json.loads((folder / "one" / "run.json").read_text())
    program, *line = shlex.split(record["command"])
    assert program == "amped"
    succeeded(run_amped(*line, "--output", "two"))
    for one, two in zip(amped.load(folder / "one").factors, amped.load(folder / "two").factors, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_table_is_told_by_its_keys_and_read_again_by_them(folder: Path) -> None:
    pytest.importorskip("duckdb")
    rows = [f"{'abc'[n % 3]},{n % 4},{n % 7},{n % 5}" for n in range(60)]
    (folder / "t.csv").write_text("\n".join(["who,what,day,size", *rows]) + "\n")
    keys = ["--key", "who", "--key", "what", "--key", "day"]
    flags = [*keys, "--where", "size > 0", "--value", "size", "--rank", 2, "--output", "out"]
    succeeded(run_amped("cpd", folder / "t.csv", *flags, "--report", "first.html"))
    succeeded(run_amped("report", "out", "--tensor", "t.csv"))
    for report in ("first.html", "out/report.html"):
        read = text_of((folder / report).read_text())
        for part in ("tensor t.csv modes", "keys who; what; day", "value size", "rows where size > 0",
                     "amped cpd t.csv --rank 2", "Largest residuals"):  # fmt: skip
            assert part in read, (report, part)
        assert str(folder) not in read, "paths are relative to the folder of the run"
    (folder / "other.csv").write_text((folder / "t.csv").read_text().replace("c", "d"))
    refused(
        run_amped("report", "out", "--tensor", "other.csv", "--force"), "other.csv: labels that the model does not know"
    )


def test_counts_are_told_by_likelihood_and_deviance(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rates = [rng.dirichlet(np.ones(n), 2).T for n in (8, 9, 10)]
    expected = np.einsum("r,ir,jr,kr->ijk", [4000.0, 3000.0], *rates)
    X = amped.SparseTensor(np.argwhere(expected >= 0), rng.poisson(expected).ravel().astype(float), expected.shape)
    found = amped.cp_apr(X, rank=2, max_iters=60)
    found.report(folder / "r.html", X)
    read = text_of((folder / "r.html").read_text())
    counts = X.todense()

    def deviance(model: np.ndarray) -> float:
        logs = np.where(counts > 0, counts * np.log(np.where(counts > 0, counts, 1) / model), 0)
        return float(2 * (logs - counts + model).sum())

    explained = 1 - deviance(found.full()) / deviance(np.full(counts.shape, counts.mean()))
    shown = float(re.search(r"explained deviance ([\d.]+)%", read)[1])  # type: ignore[index]
    assert abs(shown - 100 * explained) < 0.06
    assert "log-likelihood after each iteration" in read
    assert "KKT violation" in read


@pytest.mark.parametrize("poisson", [False, True])
def test_only_the_residuals_of_the_page_are_computed(poisson: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    found = amped.KruskalTensor(np.array([9.0, 5.0]), [rng.random((n, 2)) for n in (6, 5, 4)])
    if poisson:
        found.series["loglikelihood"] = (0.0,)
    counts = rng.poisson(found.full()).astype(float)
    X = amped.SparseTensor(np.argwhere(counts), counts[counts > 0], counts.shape)
    want = [
        [*map(str, each.labels), readable(each.value), readable(each.expected)] for each in found.residuals(X).entries
    ]

    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(evaluation, "residuals", fail)
    rows = page.page(found, X).split("Largest residuals</h2>")[1].split("<tbody>")[1].split("</tbody>")[0]
    assert [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows.split("<tr>")[1:]] == want


def test_similar_components_are_told(model: amped.KruskalTensor) -> None:
    read = text_of(page.page(model))
    assert re.search(r"Component 2 .*? similar to component 3 \(congruence (0\.9\d|1\.00)\)", read)
    cancelling = amped.KruskalTensor(np.ones(2), [np.ones((4, 2)), np.array([[1.0, -1.0]] * 5), np.ones((3, 2))])
    assert "cancels component 2 (congruence -1.00)" in text_of(page.page(cancelling))


@pytest.mark.exhaustive
def test_many_components_stay_small(folder: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = (5000, 24, 900, 366)
    found = amped.KruskalTensor(np.ones(12), [rng.random((length, 12)) for length in lengths])
    names = [f"a label of some length, as people have them, number {n}" for n in range(5000)]
    days = np.arange("2024-01-01", "2025-01-01", dtype="M8[D]")
    found.labelled([names, np.arange(24), rng.random(900).cumsum(), days]).report(folder / "r.html")
    assert (folder / "r.html").stat().st_size < 3e6


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["-200000-01-01", "NaT", "200000-01-01", *["2000-01-01"] * 9], "M8[D]"),
        np.array([np.inf, -np.inf, np.nan, *range(9)]),
        np.array([2**63 + n for n in range(12)], np.uint64),
        np.array([np.timedelta64("NaT", "h"), *np.arange(11, dtype="m8[h]")]),
        np.array([True] * 12),
    ],
    ids=["years far away", "infinities", "large numbers", "durations", "truths"],
)
def test_curves_are_drawn_over_labels_of_any_kind(labels: np.ndarray) -> None:
    found = amped.KruskalTensor(np.ones(1), [np.ones((12, 1)), np.full((2, 1), np.nan)])
    found.labelled([labels, ["a", None]])
    assert page.page(found).count("<article") == 1


def test_curves_keep_their_peaks() -> None:
    column = np.zeros(100_001)
    column[77_777], column[33_333] = 5.0, -1.0
    kept = charts._thinned(column)
    assert {77_777, 33_333} <= set(kept.tolist())
    assert kept.size <= charts.POINTS
    assert len(charts.column_chart(None, column, "x")) < 12_000


@pytest.mark.parametrize(
    "record",
    [
        *(
            dict.fromkeys(facts.KINDS, wrong)
            for wrong in (None, "text", {"a": "b"}, [{"a": "b"}, {"compute": []}], [[1], [2, 3]])
        ),
        *(exhaustive(dict.fromkeys(facts.KINDS, wrong)) for wrong in (3, [1, "a"], [["a"]], {"a": 1}, [], [77])),
    ],
)
def test_a_record_that_someone_has_changed_is_no_danger(model: amped.KruskalTensor, record: dict[str, object]) -> None:
    assert page.page(model, run=record).count("<article") == 3


def test_ranks_are_told_apart() -> None:
    seconds = [{"compute": 3.0, "exchange": 0.5}, {"compute": 1.0, "exchange": 2.5}]
    found = timing.balance({"seconds_by_rank": seconds, "nonzeros_by_rank": [[10, 2000], [10, 1990]]}, 2)
    assert found is not None
    assert [rank.cells for rank in found.ranks] == [["3 s", "0.5 s", "10", "2,000"], ["1 s", "2.5 s", "10", "1,990"]]
    assert "50.0% longer than the mean" in found.summary
    assert timing.balance({"seconds_by_rank": seconds[:1]}, 2) is None
    stages = timing.stages({"stages": {"read": 2.0, "iterate": 1.0}, "seconds_by_kind": {"compute": 0.5, "tune": 9.0}})
    assert [(span.name, span.within) for span in stages] == [
        ("reading", False),
        ("iterations", False),
        ("MTTKRP", True),
    ]


@pytest.mark.parametrize(("verb", "rank"), [("cpd", "2"), ("tucker", "2,2,2")])
def test_ranks_write_one_report(folder: Path, verb: str, rank: str) -> None:
    small_tns(folder)
    done = on_ranks(2, verb, "small.tns", "--rank", rank, "--report", "r.html", "--output", "out", cwd=folder)
    assert done.code == 0, done.err
    read = text_of((folder / "r.html").read_text())
    assert "Balance over ranks" in read
    assert f"mpirun -n 2 amped {verb} small.tns --rank {rank}" in read
    assert sorted(each.name for each in folder.iterdir()) == ["out", "r.html", "small.tns"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["cpd", "small.tns", "--rank", 2, "--report", "there.html"], ("there.html", "exists already; --force")),
        (["cpd", "small.tns", "--rank", 2, "--report", "no/r.html"], ("no/r.html", "folder does not exist")),
        (["cpd", "small.tns", "--rank", 2, "--report", "small.tns", "--force"], ("both",)),
        (["report", "model.npz", "--output", "there.html"], ("there.html", "exists already; --force")),
        (["report", "model.npz", "--output", "model.npz", "--force"], ("both",)),
        (["cpd", "small.tns", "--rank", 2, "--report", "r.pdf"], ("r.pdf", "an .html file: name it r.html")),
        (["report", "model.npz", "--output", "r.docx"], ("r.docx", "an .html file: name it r.html")),
        (["report", "nothing"], ("nothing", "No such file")),
        (["report", "model.npz", "--tensor", "small.tns"], ("9 x 7 x 5", "4 x 5")),
        (["report", "tucker.npz", "model.npz"], ("Tucker", "CP models")),
    ],
)
def test_what_cannot_be_reported_is_refused(folder: Path, arguments: list[str], parts: tuple[str, ...]) -> None:
    small_tns(folder)
    (folder / "there.html").write_text("mine")
    amped.KruskalTensor(np.ones(1), [np.ones((4, 1)), np.ones((5, 1))]).save(folder / "model.npz")
    amped.TuckerTensor(np.ones((1, 1)), [np.ones((4, 1)), np.ones((5, 1))]).save(folder / "tucker.npz")
    before = sorted(each.name for each in folder.iterdir())
    refused(run_amped(*arguments), *parts)
    assert sorted(each.name for each in folder.iterdir()) == before
    assert (folder / "there.html").read_text() == "mine"


def test_a_library_that_is_missing_is_told_beforehand(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_tns(folder)
    monkeypatch.setattr(page, "find_spec", lambda module: None)
    refused(run_amped("cpd", "small.tns", "--rank", 2, "--report", "r.html"), "Jinja2", "amped[report]")
    refused(run_amped("report", "model.npz"), "Jinja2", "amped[report]")
    assert [each.name for each in folder.iterdir()] == ["small.tns"]


def test_a_report_that_fails_leaves_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise RuntimeError("no\nmore")

    monkeypatch.setattr(page, "page", fail)
    done = run_amped("cpd", small_tns(folder), "--rank", 2, "--report", "r.html", "--output", "out")
    assert done.code == 3
    assert done.err == "amped: r.html: no\\nmore; the model is written, its report is not\n"
    assert (folder / "out" / "model.npz").exists()
    assert not (folder / "r.html").exists()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


SHOWN = "[...document.querySelectorAll('.card')].filter(c => c.getClientRects().length).map(c => +c.dataset.number)"


def test_a_browser_shows_it_sorted_and_searched_and_fetches_nothing(
    folder: Path, model: amped.KruskalTensor, chromium: Browser
) -> None:
    model.weights = np.array([5.0, 3.0, 2.0])
    model.report(folder / "r.html")
    chromium.requests.clear()
    chromium.complaints.clear()
    chromium.show_as(1200, 900)
    chromium.open(folder / "r.html")
    assert chromium.value("document.title") == "a CP model: 3 components"
    assert chromium.value(SHOWN) == [1, 2, 3]
    assert chromium.value("document.getElementById('count').textContent") == "3 of 3 shown"

    chromium.value("document.getElementById('sort').value = 'alike'")
    chromium.value("document.getElementById('sort').dispatchEvent(new Event('change'))")
    assert chromium.value(SHOWN) == [2, 3, 1], "those that are alike come first"
    chromium.value("document.getElementById('sort').value = 'number'")
    chromium.value("document.getElementById('sort').dispatchEvent(new Event('change'))")
    assert chromium.value(SHOWN) == [1, 2, 3]

    chromium.type("#find", "no such label")
    assert chromium.value(SHOWN) == []
    assert chromium.value("document.getElementById('none').getClientRects().length") == 1
    chromium.type("#find", "SNOW ☃")
    assert chromium.value(SHOWN) == [1, 2, 3]
    assert chromium.value("document.querySelector('.found .label').textContent") == "snow ☃ and 😀"

    chromium.click("#component-2 .panel:nth-child(2) .label")
    wanted = chromium.value("document.querySelector('#component-2 .panel:nth-child(2) .label').textContent")
    assert chromium.value("document.getElementById('find').value")[:50] == wanted[:50]
    chromium.type("#find", "")
    chromium.click("#component-3 .alike a")
    assert chromium.value("location.hash") == "#component-2"

    assert chromium.requests == [(folder / "r.html").as_uri()]
    assert chromium.complaints == []


def test_search_unfolds_what_it_finds(folder: Path, chromium: Browser) -> None:
    column = np.linspace(1, 0.5, 26)[:, None]
    other = np.roll(column, 13, axis=0)
    found = amped.KruskalTensor(np.ones(2), [np.hstack([column, other]), np.ones((3, 2))])
    found.labelled([[f"label {chr(97 + n)}" for n in range(26)], [1, 2, 3]]).report(folder / "r.html")
    chromium.show_as(1200, 900)
    chromium.open(folder / "r.html")
    opened = "[...document.querySelectorAll('details')].map(d => d.open)"
    assert not any(chromium.value(opened))
    chromium.type("#find", "label k")
    assert chromium.value(f"{opened}.slice(0, 1)") == [True]
    chromium.type("#find", "")
    assert not any(chromium.value(opened))


def test_it_suits_phones_the_dark_and_paper(folder: Path, model: amped.KruskalTensor, chromium: Browser) -> None:
    model.report(folder / "r.html")
    light = "getComputedStyle(document.body).backgroundColor"
    for scheme, colour in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 26)")):
        chromium.show_as(375, 700, scheme)
        chromium.open(folder / "r.html")
        assert chromium.value(light) == colour
        assert chromium.value("document.documentElement.scrollWidth") <= 375, "nothing to scroll sideways"
    chromium.show_as(1200, 900, "dark", "print")
    assert chromium.value(light) == "rgb(255, 255, 255)"
    assert chromium.value("document.querySelector('.controls').getClientRects().length") == 0
    assert chromium.printed().startswith(b"%PDF")
    bar = chromium.value("getComputedStyle(document.querySelector('.bar')).backgroundImage")
    assert "rgb(" in bar
    assert "rgba(" not in bar, "viewers of PDF files draw a black line where a gradient becomes transparent"


def test_models_know_how_they_were_made(folder: Path) -> None:
    path = small_tns(folder)
    made = amped.cp_als(path, rank=2, max_iters=3, seed=4, starts=2, tol=0)
    assert (made.run["method"], made.run["iterations"], made.run["tensor"]) == ("als", 3, str(path))
    assert made.run["seed"] in (4, 5)
    made.report("one.html", path)
    read = text_of((folder / "one.html").read_text())
    for part in (
        "small.tns",
        f"random, seed {made.run['seed']}",
        "3, not converged",
        "Largest residuals",
        "numpy",
    ):
        assert part in read, part
    again = amped.cp_als(path, rank=2, max_iters=1, init=made.factors)
    assert (again.run["seed"], again.run["init"]) == (None, "")
    amped.KruskalTensor(made.weights, made.factors).report("two.html")
    read = text_of((folder / "two.html").read_text())
    assert "the model has no record of its run" in read
    assert "numpy" not in read


def test_models_are_loaded_with_their_records(folder: Path) -> None:
    succeeded(run_amped("cpd", small_tns(folder), "--rank", 2, "--max-iters", 2, "--output", "out"))
    found = amped.load("out")
    assert isinstance(found, amped.KruskalTensor)
    assert found.run == json.loads((folder / "out" / "run.json").read_text())
    assert found.arranged().run == found.run
    found.save("out/other.npz")
    assert amped.load("out/other.npz").run == found.run, "a model keeps its record under any name"
    (folder / "out" / "run.json").write_text("{")
    assert amped.load("out").run["rank"] == 2, "the model's file has a record, too"  # type: ignore[union-attr]
    for verb in ("show", "report"):
        refused(run_amped(verb, "out"), "run.json", "not a valid record of a run")


def test_a_run_that_goes_on_replaces_its_report(folder: Path) -> None:
    line = ["cpd", small_tns(folder), "--rank", 2, "--tol", 0, "--checkpoint", "c", "--output", "out", "--report"]
    succeeded(run_amped(*line, "--max-iters", 2))
    refused(run_amped(*line, "--max-iters", 4), "exists already")
    succeeded(run_amped(*line, "--max-iters", 4, "--resume"))
    read = text_of((folder / "out" / "report.html").read_text())
    assert "iterations 4, not converged" in read
    assert "--resume" not in read


def test_reports_are_beside_their_models(folder: Path, model: amped.KruskalTensor) -> None:
    model.save("some.npz")
    succeeded(run_amped("report", "some.npz"))
    succeeded(run_amped("cpd", small_tns(folder), "--rank", 2, "--report", "--nonnegative", "--ridge", 0.1))
    assert {"some.html", "small-rank2"} < {each.name for each in folder.iterdir()}
    assert "objective after each iteration" in text_of((folder / "small-rank2" / "report.html").read_text())


@pytest.mark.parametrize("nonnegative", [False, True])
def test_a_tucker_decomposition_writes_its_report(folder: Path, nonnegative: bool) -> None:
    path = small_tns(folder)
    model = amped.tucker(path, (2, 2, 2), nonnegative=nonnegative, max_iters=4, tol=0, report="python.html")
    flags = ["--nonnegative"] if nonnegative else []
    succeeded(run_amped("tucker", path, "--rank", "2,2,2", "--max-iters", 4, "--tol", 0, "--report", *flags))
    for name in ("python.html", "small-tucker/report.html"):
        read = text_of((folder / name).read_text())
        assert "Tucker model with a core of 2 × 2 × 2" in read
        assert f"{model.fits[-1]:.4f}" in read or f"{model.fits[-1]:.3f}" in read
    with pytest.raises(amped.InputError, match=r"r\.pdf: a report is an \.html file"):
        amped.tucker(path, (2, 2, 2), report="r.pdf")


def test_hundreds_of_components_are_labels_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PICTURED", 4)
    rng = np.random.default_rng(0)
    found = amped.KruskalTensor(np.ones(300), [rng.random((20, 300)) for _ in range(3)])
    found.report("r.html")
    html = (folder / "r.html").read_text()
    assert html.count("<article") == 300
    assert html.count("<svg") == 3 * page.PICTURED
    assert len(html) < 3e6


def test_days_of_the_week_are_complete_and_in_order() -> None:
    names = sorted("Mon Tue Wed Thu Fri Sat Sun".split())
    column = np.array([[3.0], [1], [0], [2], [5], [4], [6]])  # of a Sat nothing
    model = amped.KruskalTensor(np.ones(1), [column, np.ones((2, 1))]).labelled([names, ["a", "b"]])
    days = re.findall(r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b", page.page(model).split('id="components"')[-1])
    assert list(dict.fromkeys(days)) == "Mon Tue Wed Thu Fri Sat Sun".split()


def test_axes_of_series_need_no_room_for_a_common_factor() -> None:
    chart = charts.series_chart([3.61e6, 3.705e6, 3.707e6], "log-likelihood")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", chart)
    assert "1e6" not in texts
    assert any(text.endswith("M") for text in texts)
    assert "0.8" in re.findall(r"<text[^>]*>([^<]*)</text>", charts.series_chart([0.5, 0.9], "fit"))
    for numbers, shown in (([2.2, 0.3, 0.19, 0.4], {"2", "1", "0.5", "0.2"}), ([30.0, 0.002], {"10", "0.1", "0.01"})):
        chart = charts.series_chart(numbers, "KKT violation", logarithmic=True)
        assert shown <= set(re.findall(r"<text[^>]*>([^<]*)</text>", chart)), "no powers, and nothing between"
        assert "tspan" not in chart


def test_sentences_and_a_title_come_first(folder: Path) -> None:
    model = amped.KruskalTensor(np.array([3.0, 1.0]), [np.eye(4, 2), np.ones((1, 2))]).labelled([list("abcd"), ["x"]])
    model.report("r.html", title="Spring & summer")
    read = text_of(Path("r.html").read_text())
    assert read.index("Spring & summer") < read.index("75% of the model: mode 0: a; mode 1: x")
    assert read.index("25% of the model: mode 0: b; mode 1: x") < read.index("Component 1")
    model.save("model.npz")
    succeeded(run_amped("report", "model.npz", "--title", "Autumn"))
    assert "Autumn" in text_of(Path("report.html").read_text())
