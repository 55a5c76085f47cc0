"""Pictures of models: what is drawn where."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensors import labels_of

import amped
from amped import InputError, KruskalTensor
from amped.report.calendar import calendar_order
from amped.report.pictures import COLOURS
from partitioner.tensors.labels import as_labels

pytest.importorskip("matplotlib")

NAMES = ["weekday", "emission", "place"]
WEEK = "Mon Tue Wed Thu Fri Sat Sun".split()


@pytest.fixture
def model() -> KruskalTensor:
    """A model of weekdays in alphabetical order, wavelengths, and places."""
    rng = np.random.default_rng(0)
    factors = [rng.random((7, 2)), rng.random((20, 2)), rng.random((9, 2))]
    factors[0][3] = 0  # on a Sat no component has anything
    made = KruskalTensor(np.array([2.0, 1.0]), factors)
    axis = 250 + 2.5 * np.arange(20)
    places = [f"place {n}" for n in range(9)]
    return made.labelled(labels_of(sorted(WEEK), axis, places, names=NAMES, units=[None, "nm", None]))


def grid(figure: Any, rows: int, columns: int) -> np.ndarray:
    assert len(figure.axes) == rows * columns
    return np.array(figure.axes).reshape(rows, columns)


def bars(axes: Any) -> dict[str, float]:
    """Return the lengths of the bars of the first column by label, from top to bottom."""
    names = [text.get_text() for text in axes.get_yticklabels()]
    return dict(zip(names, [bar.get_width() for bar in axes.containers[0]], strict=True))


def test_curves_bars_and_titles(model: KruskalTensor) -> None:
    axes = grid(model.plot(top=4), 2, 3)
    assert [each.get_title() for each in axes[0]] == ["weekday", "emission (nm)", "place"]
    for r, row in enumerate(axes):
        assert list(bars(row[0])) == WEEK, "a calendar is complete and in order"
        day = dict(zip(sorted(WEEK), model.factors[0][:, r], strict=True))
        assert bars(row[0]) == {name: day[name] for name in WEEK}
        (line, _) = row[1].lines
        np.testing.assert_array_equal(line.get_xdata(), 250 + 2.5 * np.arange(20))
        np.testing.assert_array_equal(line.get_ydata(), model.factors[1][:, r])
        assert line.get_drawstyle() == "default", "measurements are lines"
        largest = np.argsort(-model.factors[2][:, r])[:4]
        assert list(bars(row[2])) == [f"place {n}" for n in largest]
        assert row[0].get_ylabel() == f"{r + 1}\n{model.shares()[r]:.0%}"


def test_names_of_bars_are_legible() -> None:
    """A year has more bars than `top`."""
    months = "January February March April May June July August September October November December".split()
    model = KruskalTensor(np.ones(2), [np.ones((12, 2)), np.ones((1, 2))]).labelled([months, ["the only one"]])
    figure = model.plot(top=3)
    figure.draw_without_rendering()
    year, one = figure.axes[:2]
    places = [text.get_window_extent() for text in year.get_yticklabels()]
    assert [text.get_text() for text in year.get_yticklabels()] == months
    assert all(low.y1 < high.y0 for high, low in pairwise(places))
    (bar,) = one.patches
    assert bar.get_height() < abs(np.ptp(one.get_ylim())) / 3


def test_modes_components_labels_and_titles(model: KruskalTensor) -> None:
    own = np.arange(20) * np.timedelta64(3, "h")
    how: dict[str, Any] = {"labels": {"emission": own}, "titles": {2: "where"}}
    axes = grid(model.plot(modes=["place", 1], components=[1], **how), 1, 2)
    assert [each.get_title() for each in axes[0]] == ["where", "emission (hours)"]
    np.testing.assert_array_equal(axes[0, 1].lines[0].get_xdata()[1:-1], 3.0 * np.arange(20))
    np.testing.assert_array_equal(axes[0, 1].lines[0].get_ydata()[1:-1], model.factors[1][:, 1])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"modes": ["hour"]}, "modes: 'hour' is none of 'weekday', 'emission', 'place'"),
        ({"modes": [3]}, "modes 3: expected an integer from 0 to 2"),
        ({"components": [2]}, "components 2: expected an integer from 0 to 1"),
        ({"labels": {1: [1, 2]}}, r"labels of mode emission: shape \(2,\), expected \(20,\)"),
        ({"overlay": {"x": np.ones(3)}}, "overlay: a ndarray, expected a KruskalTensor"),
        ({"top": 0}, "top 0"),
        ({"path": "x.gif"}, r"x\.gif: unknown picture format"),
    ],
)
def test_what_is_invalid(model: KruskalTensor, how: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model.plot(**how)


def test_axes_of_the_caller(model: KruskalTensor) -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    single = figure.subplots()
    assert model.plot(ax=single, modes=["emission"]) is figure
    assert [line.get_label() for line in single.lines[::2]] == ["component 1", "component 2"]
    np.testing.assert_array_equal(single.lines[2].get_ydata(), model.factors[1][:, 1])
    assert [text.get_text() for text in single.get_legend().get_texts()] == ["component 1", "component 2"]
    pair = Figure().subplots(1, 2)
    model.plot(ax=pair, modes=[0, 1], components=[0])
    assert [each.get_title() for each in pair] == ["weekday", "emission (nm)"]
    column = Figure().subplots(2, 1)
    model.plot(ax=column, modes=[1])
    np.testing.assert_array_equal(column[1].lines[0].get_ydata(), model.factors[1][:, 1])
    with pytest.raises(InputError, match="ax: 1 x 2 axes for 2 x 2 panels"):
        model.plot(ax=pair, modes=[0, 1])


def test_models_over_each_other(model: KruskalTensor, folder: Path) -> None:
    second = KruskalTensor(model.weights[::-1] * 7, [factor[:, ::-1] for factor in model.factors])
    second.factors = [-4 * second.factors[0], -second.factors[1], second.factors[2].copy()]
    second.factors[2] = second.factors[2][:-1]  # it lacks a place
    second.labelled(labels_of(sorted(WEEK), model.labels[1], model.labels[2][:-1], names=NAMES))  # type: ignore[index]
    figure = model.plot("x.svg", top=9, overlay={"other": second})
    assert Path("x.svg").exists()
    axes = grid(figure, 2, 3)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["this model", "other"]
    for row in axes:
        first, other = row[1].lines[0], row[1].lines[2]
        np.testing.assert_allclose(other.get_ydata(), first.get_ydata(), atol=1e-12)
        mine, theirs = row[0].containers
        np.testing.assert_allclose([bar.get_width() for bar in theirs], [bar.get_width() for bar in mine], atol=1e-12)
        names = [text.get_text() for text in row[2].get_yticklabels()]
        lengths = dict(zip(names, [bar.get_width() for bar in row[2].containers[1]], strict=True))
        assert [name for name, length in lengths.items() if length == 0] == ["place 8"]


def copies(model: KruskalTensor, *components: int) -> KruskalTensor:
    """Return a model of some components of another one, without labels."""
    return KruskalTensor(model.weights[[*components]], [factor[:, [*components]] for factor in model.factors])


@pytest.mark.parametrize("replaced", [False, True])
def test_models_with_and_without_labels_over_each_other(model: KruskalTensor, replaced: bool) -> None:
    unlabelled, labelled = copies(model, 0, 1), copies(model, 0, 1).labelled(model.labels)
    how: dict[str, Any] = {"labels": {"emission": np.arange(20) * 7.0}} if replaced else {}
    axis = 7.0 * np.arange(20) if replaced else 250 + 2.5 * np.arange(20)
    axes = grid(model.plot(top=9, overlay={"a": unlabelled, "b": labelled}, **how), 2, 3)
    for row in axes:
        assert [bar.get_width() for bar in row[0].containers[1]] == list(bars(row[0]).values())
        assert [bar.get_width() for bar in row[2].containers[2]] == list(bars(row[2]).values())
        for line in row[1].lines[::2]:
            np.testing.assert_array_equal(line.get_xdata(), axis)
    axes = grid(unlabelled.plot(overlay={"a": model}), 2, 3)
    np.testing.assert_array_equal(axes[0, 2].lines[2].get_xdata(), [-0.5, *range(9), 8.5])


def test_labels_that_are_replaced_are_those_of_all_models(model: KruskalTensor) -> None:
    other = copies(model, 0, 1)
    rows = [5, 3, 8]
    other.factors[1] = other.factors[1][rows]
    assert model.labels is not None
    other.labelled(model.labels.replaced([model.labels[0], model.labels[1][rows] + [0, 0, 0.1], model.labels[2]]))
    figure = model.plot(modes=[1], overlay={"other": other}, labels={1: np.arange(20) * 10})
    np.testing.assert_array_equal(figure.axes[0].lines[2].get_xdata(), [20, 30, 50, 60])
    scaled = figure.axes[0].lines[2].get_ydata()[1:-1] / other.factors[1][[1, 0], 0]
    assert scaled[0] == pytest.approx(scaled[1])
    figure = model.plot(modes=[1], overlay={"other": other})
    np.testing.assert_allclose(figure.axes[0].lines[2].get_xdata(), [257.5, 262.5, 270.1])
    other.labelled(model.labels.replaced([model.labels[0], as_labels(list("abc")), model.labels[2]]))
    assert len(model.plot(modes=[1], overlay={"other": other}).axes[0].lines) == 2, "there is no place for texts"


def test_colours_and_the_legend_are_those_of_models(model: KruskalTensor) -> None:
    from matplotlib.colors import to_hex

    model.factors[0][:, 0] -= 0.5
    figure = model.plot(overlay={"a": copies(model, 1), "b": copies(model, 0, 1), "c": copies(model, 0)})
    axes = grid(figure, 2, 3)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["this model", "b", "c", "a"]
    colours = dict(zip(["this model", "a", "b", "c"], COLOURS, strict=False))
    for row in axes:
        for line in row[1].lines[::2]:
            assert line.get_color() == colours[line.get_label()]
        for container in row[0].containers:
            assert {to_hex(bar.get_facecolor()) for bar in container} == {colours[container.get_label()]}
    assert [len(row[1].lines[::2]) for row in axes] == [3, 3]
    alone = model.plot(components=[0], overlay={"a": copies(model, 1)}).axes[0]
    assert {to_hex(bar.get_facecolor()) for bar in alone.containers[0]} == {COLOURS[0]}
    signs = model.plot(components=[0]).axes[0].containers[0]
    assert {to_hex(bar.get_facecolor()) for bar in signs} == {COLOURS[0], COLOURS[1]}


def test_starts_over_each_other() -> None:
    array = np.einsum("ir,jr,kr->ijk", *np.random.default_rng(0).random((3, 6, 2)))
    starts = [
        amped.cp_als(array, 2, seed=seed, max_iters=300, tol=0, precision="fp64", device="cpu") for seed in (0, 1)
    ]
    axes = grid(starts[0].plot(overlay={"seed 1": starts[1]}), 2, 3)
    for each in axes.ravel():
        np.testing.assert_allclose(each.lines[2].get_ydata(), each.lines[0].get_ydata(), atol=0.02)


def test_a_figure_is_shown_in_notebooks(model: KruskalTensor) -> None:
    assert model.plot()._repr_png_().startswith(b"\x89PNG")


def test_panels_of_a_scan(folder: Path) -> None:
    from matplotlib.figure import Figure

    array = np.random.default_rng(0).random((6, 5, 4))
    found = amped.scan(array, "1-2", starts=2, max_iters=5, halves=False, device="cpu")
    assert [each.get_ylabel() for each in found.plot("x.png").axes] == ["explained", "match", "core consistency, %"]
    single = Figure().subplots()
    assert found.plot(panels=["consistency"], ax=single) is single.figure
    curve = next(
        line
        for line in single.lines
        if line.get_marker() == "None" and len(line.get_xdata()) == 2 and line.get_xdata()[0] == 1
    )
    np.testing.assert_allclose(curve.get_ydata(), [max(-100, each.consistency) for each in found.tried])
    for how, message in (
        ({"panels": ["fit"]}, r"panels: \['fit'\]: expected some of"),
        ({"ax": [single]}, "ax: 1 axes for 3"),
    ):
        with pytest.raises(InputError, match=message):
            found.plot(**how)


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["Sun", "Mon", "Sat"], [1, 2, 0]),
        (["friday", "Thursday"], [1, 0]),
        (["Dec.", "jan", "Sept"], [1, 2, 0]),
        (["May", "March"], [1, 0]),
        (["Mon"], None),
        (["Mon", "Mon"], None),
        (["Mon", "Monday"], None),
        (["Mon", "x"], None),
        (["Mon", "Jan"], None),
        (["M", "T"], None),
        ([1, 2], None),
        (["Mon", None], None),
    ],
)
def test_calendars(names: list[Any], order: list[int] | None) -> None:
    assert calendar_order(names) == order


def test_units_of_xarray_go_with_the_model(folder: Path) -> None:
    xarray = pytest.importorskip("xarray")
    array = np.random.default_rng(0).random((3, 4, 5))
    coordinates = {"time": [0, 1, 2], "emission": ("emission", [250.0, 260, 270, 280], {"units": "nm"})}
    data = xarray.DataArray(array, dims=("time", "emission", "place"), coords=coordinates)
    model = amped.cp_als(data, 1, max_iters=2, device="cpu")
    model.save("m.npz")
    for each in (model, amped.load("m.npz"), model.arranged()):
        assert each.labels is not None
        assert each.labels.units == (None, "nm", None)
        assert [axes.get_title() for axes in each.plot().axes] == ["time", "emission (nm)", "place"]
    score = model.score(data.transpose("place", "time", "emission"))
    assert score == pytest.approx(model.score(data))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"modes": []}, "modes: expected at least one"),
        ({"components": []}, "components: expected at least one"),
        ({"components": 2}, "components 2: expected an integer from 0 to 1"),
        ({"labels": [WEEK]}, "labels is of type list: expected a mapping"),
        ({"titles": ["day"]}, "titles is of type list: expected a mapping"),
        ({"titles": {"days": "x"}}, "titles: 'days' is none of 'weekday', 'emission', 'place'"),
        ({"overlay": ["model"]}, "overlay is of type list: expected a mapping"),
    ],
)
def test_wrong_arguments(model: KruskalTensor, how: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model.plot(**how)


def test_one_mode_and_one_component_without_lists(model: KruskalTensor) -> None:
    figures = [model.plot(modes=1, components=np.int64(0)), model.plot(modes="emission", components=0)]
    for figure in figures:
        (axes,) = figure.axes
        assert np.array_equal(axes.lines[0].get_ydata(), model.factors[1][:, 0])
