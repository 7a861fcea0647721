"""The report in a browser: what it shows, and that each control works by mouse and by keys."""

import csv
import io
import json
import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from common.config import RunConfig
from experiments.ledger import ledger_of
from experiments.ledger_formats import as_csv
from experiments.report import read_runs, write_report
from experiments.run_data import read_run
from tests.browser import open_page
from tests.federation import history_of, run

pytestmark = pytest.mark.browser
KEYS = {
    "num-clients": 8,
    "clients-per-round": 3,
    "num-rounds": 12,
    "learning-rate": 0.1,
    "noise-sigma": 0.2,
    "straggler-fraction": 0.5,
    "valuation": "gtg",
}
EVIL = "<img src=x onerror='window.hacked=1'></script><script>window.hacked=1</script>"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three runs: two seeds of GreedyFed with faults, one of FedAvg."""
    config = RunConfig.from_flat(KEYS | {"output-dir": str(tmp_path_factory.mktemp("runs"))})
    faults = {2: "nan", 5: "raises"}
    return [
        run(config, faults),
        run(config.with_values(seed=1), faults),
        run(config.with_values(algorithm="fedavg", valuation="none"), faults),
    ]


@pytest.fixture(scope="module")
def reports(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    write_report(read_runs(made[:1]), folder / "one.html")
    write_report(read_runs(made), folder / "three.html")
    return folder


@pytest.fixture(scope="module")
def opened(browser, reports):
    """A page takes seconds to open: the tests share one of each, and leave it as it was."""
    names = ("one", "three")
    return {n: open_page(browser, (reports / f"{n}.html").as_uri()) for n in names}


@pytest.fixture
def one(opened):
    yield opened["one"][0]
    assert opened["one"][1] == []


@pytest.fixture
def three(opened):
    yield opened["three"][0]
    assert opened["three"][1] == []


def visible(page, chart):
    """The names of the series that a chart shows."""
    script = "id => [...new Set(document.querySelector(id).data.filter(t => t.visible !== false)"
    return page.evaluate(f"{script}.map(t => t.meta))]", f"#chart-{chart} .plot")


def x_range(page, chart):
    script = "id => document.querySelector(id).layout.xaxis.range.map(Number)"
    return page.evaluate(script, f"#chart-{chart} .plot")


def shown(page, chart):
    """Scrolls to a chart, which is drawn when it comes near."""
    page.locator(f"#figure-{chart}").scroll_into_view_if_needed()
    page.wait_for_selector(f"#chart-{chart}[data-drawn]")
    return page.locator(f"#figure-{chart}")


def column(page, name):
    return page.locator(f"#ledger td[data-column={name}]").evaluate_all(
        "cells => cells.map(cell => cell.dataset.value)"
    )


def test_page_ledger_and_history_agree_to_the_last_digit(one, made):
    accounts = {a.client: a for a in ledger_of(read_run(made[0])).clients}
    clients = column(one, "client")
    assert clients == list(accounts)
    for name in ("sum", "mean", "latest", "share", "credit", "marginal", "asked", "failed"):
        for client, text in zip(clients, column(one, name), strict=True):
            value = getattr(accounts[client], name)
            assert (float(text) if text else None) == value
    for record, row in zip(history_of(made[0]), one.evaluate("run().values"), strict=True):
        told = {clients[k]: (value, error, total) for k, value, error, total, *_ in row}
        assert told == {
            c: (v, record["std_error"][c], record["cumulative"][c])
            for c, v in record["shapley"].items()
        }
    for key in ("test_accuracy", "val_loss", "evaluations"):
        told = one.evaluate(f"run().rounds.{key}")
        assert told == [record[key] for record in history_of(made[0])]


def test_the_first_screen_answers_three_questions(one):
    answers = one.locator("#answers article")
    expect(answers).to_have_count(3)
    expect(answers.nth(0)).to_contain_text("helped most: its Shapley values of")
    expect(answers.nth(1)).to_contain_text("nats in all")
    expect(answers.nth(2)).to_contain_text("requests failed, by 2 clients")
    assert one.evaluate("document.querySelector('#answers').getBoundingClientRect().top") < 720


def test_hover_shows_figures(one):
    figure = shown(one, "accuracy")
    figure.locator(".plot").hover(position={"x": 200, "y": 120})
    expect(figure.locator(".hoverlayer .legend")).to_contain_text(re.compile(r"test.*0\.\d+"))
    figure = shown(one, "selection")
    box = figure.locator(".plot").bounding_box()
    for share in (0.2, 0.3, 0.4, 0.5, 0.6):  # some client was asked in some of these rounds
        one.mouse.move(box["x"] + share * box["width"], box["y"] + 20)
        one.wait_for_timeout(120)
        if figure.locator(".hovertext").count():
            break
    expect(figure.locator(".hovertext").first).to_contain_text("round")


def test_series_are_hidden_by_mouse_and_by_keys(one):
    figure = shown(one, "accuracy")
    assert visible(one, "accuracy") == ["test", "validation"]
    chip = figure.get_by_role("button", name="test")
    chip.click()
    assert visible(one, "accuracy") == ["validation"]
    expect(chip).to_have_attribute("aria-pressed", "false")
    chip.press("Enter")
    assert visible(one, "accuracy") == ["test", "validation"]


def test_zoom_by_buttons_by_dragging_and_by_keys(one):
    figure = shown(one, "loss")
    whole = x_range(one, "loss")
    figure.get_by_role("button", name="Zoom in").click()
    low, high = x_range(one, "loss")
    assert high - low == pytest.approx((whole[1] - whole[0]) / 2)
    figure.get_by_role("button", name="Reset").click()
    assert x_range(one, "loss") == pytest.approx(whole)
    box = figure.locator(".plot").bounding_box()
    x, y = box["x"] + 150, box["y"] + 100
    one.mouse.move(x, y)
    one.mouse.down()
    one.mouse.move(x + 150, y, steps=5)
    one.mouse.up()
    low, high = x_range(one, "loss")
    assert high - low < (whole[1] - whole[0]) / 2
    one.locator("#chart-loss").press("0")
    assert x_range(one, "loss") == pytest.approx(whole)
    one.locator("#chart-loss").press("+")
    assert x_range(one, "loss") != pytest.approx(whole)
    one.locator("#chart-loss").press("0")


def test_a_chart_is_read_by_keys(one, made):
    history = history_of(made[0])
    figure = shown(one, "accuracy")
    chart, readout = one.locator("#chart-accuracy"), figure.locator(".readout")
    chart.press("ArrowRight")
    chart.press("ArrowRight")
    digits = float(f"{history[1]['test_accuracy']:.4g}")
    expect(readout).to_contain_text(f"round 2: test {digits:g}")
    expect(figure.locator(".hoverlayer .legend")).to_be_attached()
    chart.press("Escape")
    expect(readout).to_be_empty()
    shown(one, "selection")
    one.locator("#chart-selection").press("ArrowRight")
    best = ledger_of(read_run(made[0])).clients[0].client
    expect(one.locator("#figure-selection .readout")).to_contain_text(f"{best}, round 1")
    shown(one, "noise")
    one.locator("#chart-noise").press("ArrowRight")
    expect(one.locator("#figure-noise .readout")).to_contain_text("noise level σ")


def test_tables_sort_by_mouse_and_by_keys(one):
    head = one.locator("#ledger th", has_text="asked")
    head.get_by_role("button").click()
    assert column(one, "asked") == sorted(column(one, "asked"), key=int, reverse=True)
    expect(head).to_have_attribute("aria-sort", "descending")
    head.get_by_role("button").press("Enter")
    assert column(one, "asked") == sorted(column(one, "asked"), key=int)
    expect(head).to_have_attribute("aria-sort", "ascending")
    one.locator("#ledger th", has_text="sum").get_by_role("button").press("Space")
    sums = column(one, "sum")
    known = [float(s) for s in sums if s]
    assert known == sorted(known, reverse=True)
    assert not any(sums[len(known) :])  # clients without a value come last


def test_a_client_of_the_ledger_is_drawn(one):
    shown(one, "values")
    before = visible(one, "values")
    one.locator("#ledger .name").first.click()
    assert visible(one, "values") == before[1:]
    one.locator("#ledger .name").first.press("Enter")
    assert set(visible(one, "values")) == set(before)


def test_dark_mode_by_button_and_by_the_system(one):
    def colours():
        grid = "document.querySelector('#chart-accuracy .plot').layout.xaxis.gridcolor"
        return one.evaluate(f"[getComputedStyle(document.body).backgroundColor, {grid}]")

    shown(one, "accuracy")
    light = colours()
    one.locator("#theme").click()  # light
    assert colours() == light
    one.locator("#theme").press("Enter")  # dark
    dark = colours()
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    one.locator("#theme").click()  # as the system has it
    one.emulate_media(color_scheme="dark")
    one.wait_for_selector("[data-theme=dark]", state="attached")
    assert colours() == dark
    one.emulate_media(color_scheme="light")


@pytest.mark.parametrize("width", [320, 768])
def test_a_narrow_screen_needs_no_scrolling_to_the_side(browser, reports, width):
    size = {"width": width, "height": 800}
    page, complaints = open_page(browser, (reports / "three.html").as_uri(), viewport=size)
    page.evaluate("drawAll()")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    shown(page, "seconds")
    expect(page.locator("#chart-seconds .main-svg").first).to_be_visible()
    page.close()
    assert complaints == []


def test_several_runs_are_compared_and_chosen(three, made):
    rows = three.locator("#comparison tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("GreedyFed")
    last = [history_of(path)[-1]["test_accuracy"] for path in made[:2]]
    told = three.locator("#comparison td[data-column=test_accuracy]").first
    assert float(told.get_attribute("data-value")) == pytest.approx(sum(last) / 2)
    bands = "document.querySelector('#chart-accuracy .plot').data.filter(t => t.fill).length"
    assert three.evaluate(bands) == 2  # GreedyFed's two seeds: test and validation
    three.locator("#run").select_option("2")
    expect(three.locator("#answers")).to_contain_text("values nobody")
    expect(three.locator("#figure-values")).to_be_hidden()
    three.locator("#run").select_option("1")
    clients = [a.client for a in ledger_of(read_run(made[1])).clients]
    assert column(three, "client") == clients


def test_failures_and_configuration_are_listed(one, made):
    failures = [f for record in history_of(made[0]) for f in record["failures"].items()]
    expect(one.locator("#failed tbody tr")).to_have_count(len(failures))
    expect(one.locator("#failed")).to_contain_text("RuntimeError: the disk of this client is full")
    about = json.loads((made[0] / "config.json").read_text())
    expect(one.locator("#settings tbody tr")).to_have_count(
        len(about["config"]) + len(about["versions"])
    )


def test_the_figures_of_a_chart_come_as_a_table(one, made):
    figure = shown(one, "evaluations")
    figure.locator("summary").press("Enter")
    cells, history = figure.locator("td[data-column=c1]"), history_of(made[0])
    expect(cells).to_have_count(len(history))  # it is filled when it has opened
    found = cells.evaluate_all("c => c.map(x => x.dataset.value)")
    assert [int(c) for c in found] == [r["evaluations"] for r in history]


def test_the_ledger_is_saved(one, made):
    with one.expect_download() as download:
        one.get_by_role("button", name="Save CSV").click()
    mine = list(csv.reader(io.StringIO(download.value.path().read_text())))
    ours = list(csv.reader(io.StringIO(as_csv(ledger_of(read_run(made[0]))))))
    assert mine[0] == ours[0]
    for row, other in zip(mine[1:], ours[1:], strict=True):
        assert row[0] == other[0]
        assert [float(c) if c else None for c in row[1:]] == [
            float(c) if c else None for c in other[1:]
        ]
    with one.expect_download() as download:
        one.get_by_role("button", name="Save JSON").click()
    assert json.loads(download.value.path().read_text())["clients"][0]["client"] == ours[1][0]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing(browser, reports, scheme, width):
    size = {"width": width, "height": 900}
    url = (reports / "three.html").as_uri()
    page, _ = open_page(browser, url, viewport=size, color_scheme=scheme, bypass_csp=True)
    page.evaluate("drawAll()")
    for summary in page.locator("summary:visible").all():
        summary.click()
    found = Axe().run(page).response["violations"]
    page.close()
    told = [(v["id"], v["impact"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found]
    assert told == []


def test_on_paper_there_are_figures_and_no_controls(one):
    one.emulate_media(media="print", color_scheme="dark")
    one.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert one.evaluate("charts.every(c => c.element.hidden || c.drawn)")
    assert one.evaluate("getComputedStyle(document.body).color") == "rgb(27, 31, 36)"
    expect(one.locator(".bar")).to_be_hidden()
    expect(one.locator(".tools").first).to_be_hidden()
    assert len(one.pdf()) > 100_000
    one.evaluate("dispatchEvent(new Event('afterprint'))")
    one.emulate_media(media="screen", color_scheme="light")


def test_every_button_works(three):
    three.evaluate("drawAll()")
    for summary in three.locator("summary:visible").all():
        summary.click()
    buttons = three.locator("button:visible:enabled").all()
    assert len(buttons) > 80
    three.evaluate(
        "for (const button of document.querySelectorAll('button:enabled'))"
        " if (button.offsetParent) button.click()"
    )
    three.wait_for_timeout(300)  # its complaints are looked at when it closes


def test_what_clients_say_is_text(browser, made, tmp_path):
    """Names and reasons are the clients' own: none of them becomes a part of the page."""
    path = tmp_path / "evil"
    path.mkdir()
    for name in ("config.json", "history.jsonl", "events.jsonl"):
        text = (made[0] / name).read_text()
        evil = json.dumps(EVIL)[1:-1]
        text = text.replace("partition-7", evil).replace("the disk of this client", evil)
        (path / name).write_text(text.replace('"auto"', json.dumps(EVIL)))
    records = history_of(path)
    for record in records:
        record["class_shapley"] = {c: [v, -v] for c, v in record["shapley"].items()}
        record |= {"class_cumulative": record["class_shapley"], "class_losses": [1.0, 2.0]}
    text = "".join(json.dumps(record) + "\n" for record in records)
    (path / "history.jsonl").write_text(text)
    write_report(read_runs([path]), tmp_path / "evil.html")
    page, complaints = open_page(browser, (tmp_path / "evil.html").as_uri())
    page.evaluate("drawAll()")
    page.evaluate("pick(run().clients.at(-1).client)")
    expect(page.locator("#ledger")).to_contain_text(EVIL)
    expect(page.locator("#failed")).to_contain_text(EVIL)
    expect(page.locator("#settings")).to_contain_text(EVIL)
    expect(page.locator("#figure-classes .plot .main-svg").first).to_be_attached()
    assert page.locator("img").count() == 0
    assert page.evaluate("window.hacked") is None
    page.close()
    assert complaints == []
