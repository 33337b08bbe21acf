"""The page in a real browser: what it draws, what it asks for, and reading it with keys, on a phone, in the dark."""

import io
import json
import math
import re

import pytest
from PIL import Image
from playwright.sync_api import expect

from sanarl.report.page import write

CURVES = """() => [...document.querySelectorAll('figure.chart svg')].flatMap((svg) =>
  [...svg.querySelectorAll('path[data-metric]')].map((path) => ({
    box: {...svg.dataset}, run: path.dataset.run, metric: path.dataset.metric, d: path.getAttribute('d')})))"""
# Ratio of contrast, WCAG 2.2, of every text on what is painted behind it.
CONTRAST = """() => {
  const part = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || !node.checkVisibility() || ['SCRIPT', 'NOSCRIPT'].includes(node.tagName)) continue;
    const style = getComputedStyle(node);
    let behind = node;
    const clear = (one) => rgb(getComputedStyle(one).backgroundColor)[3] === 0;
    while (behind.parentElement && clear(behind)) behind = behind.parentElement;
    const ink = rgb(node instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(rgb(getComputedStyle(behind).backgroundColor))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), node.tagName + ' ' + text.slice(0, 40)]);
  }
  return found.sort((x, y) => x[0] - y[0]);
}"""
LINES = """() => { const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name);
  return [value('--card'), ...Array.from({length: 8}, (_, i) => value(`--c${i}`))]; }"""


@pytest.fixture
def page_of(tmp_path):
    """A function that writes the page of runs."""

    def make(*folders):
        write(list(folders), tmp_path / "page.html")
        return tmp_path / "page.html"

    return make


def points(drawn):
    """[(step, value)] of a path, from pixels back to numbers by the ranges and edges that the plot states."""
    box = {key: float(value) for key, value in drawn["box"].items()}
    found = []
    for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", drawn["d"]):
        across = (float(x) - box["left"]) / (box["right"] - box["left"])
        up = (box["bottom"] - float(y)) / (box["bottom"] - box["top"])
        found.append((box["x0"] + across * (box["x1"] - box["x0"]), box["y0"] + up * (box["y1"] - box["y0"])))
    return found, box


def test_what_is_drawn_is_what_metrics_say(a_run, page_of, visit):
    # Reference: metrics.jsonl, read by this test. A pixel is drawn to a hundredth.
    lines = [json.loads(line) for line in (a_run / "metrics.jsonl").read_text().splitlines()]
    drawn = visit(page_of(a_run)).evaluate(CURVES)
    names = {name for line in lines for name in line} - {"step", "reward/max", "reward/min", "reward/range"}
    assert {one["metric"] for one in drawn} == names
    for one in drawn:
        expected = [(line["step"], line[one["metric"]]) for line in lines if one["metric"] in line]
        found, box = points(one)
        assert [round(step, 2) for step, _ in found] == pytest.approx([step for step, _ in expected], abs=0.02)
        room = 0.011 * (box["y1"] - box["y0"]) / (box["bottom"] - box["top"])
        assert [value for _, value in found] == pytest.approx([value for _, value in expected], rel=1e-6, abs=room)


def test_the_pointer_reads_values(a_run, page_of, visit):
    page = visit(page_of(a_run))
    plot = page.locator("[data-chart=held-out] svg:not(.key)")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert page.locator("[data-chart=held-out] .readout").inner_text().split() == ["step", "10", "0.6"]
    # Every other plot shows the same step.
    assert page.locator("[data-chart=training] .readout .step").inner_text() == "step 10"


def test_keys_alone_read_curves_and_scrub_samples(a_run, page_of, visit):
    page = visit(page_of(a_run))
    page.locator("[data-chart=loss] svg:not(.key)").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    line = json.loads((a_run / "metrics.jsonl").read_text().splitlines()[2])
    said = page.locator("[data-chart=loss] svg:not(.key)").get_attribute("aria-valuetext")
    assert said.startswith("step 2: ")
    assert float(said.rpartition(" ")[2]) == pytest.approx(line["loss"], rel=1e-3)
    page.locator("#scrub").focus()
    assert page.locator("#scrub-step").inner_text() == "step 20"
    first = page.locator("#samples img").first
    last = first.get_attribute("src")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#scrub-step").inner_text() == "step 15"
    assert first.get_attribute("src") != last
    page.keyboard.press("Home")
    assert page.locator("#scrub-step").inner_text() == "before training"
    # Every control can be reached with Tab, and shows that it has been.
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert page.locator("#compare").is_checked()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.locator("#samples .look").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("dialog figure").count() == 5
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)


@pytest.fixture
def a_run_of_clips(a_run, make_clip):
    """A run whose samples of every step are clips that get brighter, frame k of nine k / 8."""
    for place in (a_run / "samples").glob("step_*"):
        listed = json.loads((place / "index.json").read_text())
        make_clip(place / "clip.mp4", 17)
        for sample in listed["samples"]:
            sample["file"] = "clip.mp4"
        (place / "index.json").write_text(json.dumps(listed))
    return a_run


def brightness(clip):
    """Of the middle of what is seen."""
    picture = Image.open(io.BytesIO(clip.screenshot())).convert("L")
    return picture.getpixel((picture.width // 2, picture.height // 2)) / 255


def test_clips_are_scrubbed_and_played_together(a_run_of_clips, page_of, visit):
    # Reference: how bright the frames were made.
    page = visit(page_of(a_run_of_clips))
    clips, slider = page.locator("#samples .clip"), page.locator("#samples .player input")
    assert clips.count() == 4
    assert clips.first.bounding_box()["height"] == pytest.approx(clips.first.bounding_box()["width"], abs=1)
    assert page.locator("#samples .player output").inner_text() == "frame 5 of 9"
    assert brightness(clips.first) == pytest.approx(0.5, abs=0.04)
    slider.focus()
    for key, frame in (("Home", 0), ("ArrowRight", 1), ("End", 8)):
        page.keyboard.press(key)
        assert slider.get_attribute("aria-valuetext") == f"frame {frame + 1} of 9"
        assert brightness(clips.nth(3)) == pytest.approx(frame / 8, abs=0.04)
    # The slider of steps keeps the frame; the dialog of a prompt has a player of its own that moves the same clips.
    page.locator("#scrub").focus()
    page.keyboard.press("Home")
    assert brightness(clips.first) == pytest.approx(1, abs=0.04)
    page.locator("#samples .look").first.click()
    assert page.locator("dialog .clip").count() == 5
    page.locator("dialog .player input").fill("2")
    assert brightness(page.locator("dialog .clip").nth(4)) == pytest.approx(0.25, abs=0.04)
    page.locator("dialog .player button").click()
    expect(page.locator("dialog .player output")).not_to_have_text("frame 3 of 9")
    page.locator("dialog .player button", has_text="Pause").click()
    page.keyboard.press("Escape")
    assert page.locator("#samples .player button").inner_text() == "Play"
    assert page.locator("#samples .player output").inner_text() == slider.get_attribute("aria-valuetext")


def test_clips_fit_a_phone(a_run_of_clips, page_of, visit):
    page = visit(page_of(a_run_of_clips), width=390, height=844, is_mobile=True, has_touch=True, scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    box = page.locator("#samples .player").bounding_box()
    assert box["x"] + box["width"] <= 390
    page.locator("#compare").tap()
    page.locator("#samples .player button").tap()
    expect(page.locator("#samples .player output")).not_to_have_text("frame 5 of 9")
    assert [entry for entry in page.evaluate(CONTRAST) if entry[0] < 4.5] == []


def test_prompts_are_text(a_run, page_of, visit):
    page = visit(page_of(a_run))
    assert page.evaluate("window.ran") is None
    assert page.locator("#samples .prompt").all_inner_texts()[1] == "<script>window.ran = 1</script>"
    assert page.locator("#prompts th[scope=row]", has_text="onerror=").count() == 1


def test_rewards_of_prompts_are_sorted_and_searched(a_run, page_of, visit):
    # Reference: by hand: prompt i stands at 0.3 + 0.1 i before training and rises by 0.2.
    page = visit(page_of(a_run))
    page.locator("#sort-last").click()
    rows = page.locator("#prompts tbody tr")
    assert rows.first.locator("td").all_inner_texts()[:3] == ["0.6", "0.8", "+0.2"]
    page.locator("#sort-last").click()
    assert rows.first.locator("td").all_inner_texts()[:3] == ["0.3", "0.5", "+0.2"]
    page.locator("#prompts-filter").fill("VIER")
    assert rows.count() == 1
    page.locator("#prompts-of").select_option("train")
    page.locator("#prompts-filter").fill("")
    assert rows.count() == 5


@pytest.mark.parametrize("several", [False, True])
def test_a_phone_has_nothing_to_scroll_sideways(a_run, make_folder, page_of, visit, tmp_path, several):
    folders = [a_run]
    if several:
        folders += [make_folder(tmp_path / f"{name}" / ("a-long-name-without-a-gap" * 4), seed=1) for name in "bc"]
    page = visit(page_of(*folders), width=390, height=844, is_mobile=True, has_touch=True)
    page.locator("#config summary").last.tap()
    page.locator("[data-chart=loss] summary").tap()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("document.body.scrollHeight > innerHeight")
    small = page.evaluate(
        """[...document.querySelectorAll('button, select, input')].map((node) => [node.id || node.className,
        node.getBoundingClientRect().height]).filter(([, height]) => height > 0 && height < 13)"""
    )
    assert small == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(a_run, make_folder, page_of, visit, tmp_path, scheme):
    # Reference: WCAG 2.2, 1.4.3: 4.5 for text; 1.4.11: 3 for lines.
    page = visit(page_of(a_run, make_folder(tmp_path / "b", seed=1, ended=None)), scheme=scheme)
    for place in page.locator("summary").all():
        place.click()
    found = page.evaluate(CONTRAST)
    assert len(found) > 200
    assert [entry for entry in found if entry[0] < 4.5] == []
    card, *lines = page.evaluate(LINES)
    assert min(contrast(card, line) for line in lines) >= 3
    assert (
        page.evaluate("getComputedStyle(document.body).backgroundColor")
        == {
            "light": "rgb(246, 247, 249)",
            "dark": "rgb(14, 17, 22)",
        }[scheme]
    )


def contrast(one, other):
    def light(text):
        text = text.strip().lstrip("#")
        text = "".join(2 * letter for letter in text) if len(text) == 3 else text
        parts = [int(text[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_runs_are_compared(a_run, make_folder, page_of, visit, tmp_path):
    other = make_folder(tmp_path / "runs" / "second", seed=2, config={"optm_lr": 3e-4})
    page = visit(page_of(a_run, other))
    rows = page.locator("#config table").first.locator("tbody tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [["train.optm_lr", "0.001", "0.0003"]]
    assert page.locator("[data-chart=loss] path[data-metric]").count() == 2
    page.locator("#show-1").uncheck()
    assert page.locator("[data-chart=loss] path[data-metric]").count() == 1
    page.locator("#samples-run").select_option("1")
    assert page.locator("#samples img").count() == 4


def test_scales_smoothing_and_time(a_run, page_of, visit):
    # Reference: log10 by hand; steps of 3 s and 2 s before the first, in hours.
    page = visit(page_of(a_run))
    page.locator("#log-grad-norm").click()
    (drawn,) = [one for one in page.evaluate(CURVES) if one["metric"] == "grad_norm"]
    lines = [json.loads(line) for line in (a_run / "metrics.jsonl").read_text().splitlines()]
    expected = [math.log10(line["grad_norm"]) for line in lines if "grad_norm" in line]
    assert [value for _, value in points(drawn)[0]] == pytest.approx(expected, abs=0.002)
    page.locator("#axis").select_option("hours")
    (drawn,) = [one for one in page.evaluate(CURVES) if one["metric"] == "eval/reward"]
    assert [hours * 3600 for hours, _ in points(drawn)[0]] == pytest.approx([2, 17, 32, 47, 62], abs=0.1)
    page.locator("#smooth").fill("0.9")
    assert page.locator("[data-chart=loss] path.faint").count() == 1


@pytest.mark.parametrize("kind", ["empty", "nothing finite", "one step"])
def test_pages_of_next_to_nothing(tmp_path, page_of, visit, kind):
    folder = tmp_path / "run"
    folder.mkdir()
    text = {"empty": "", "nothing finite": '{"step": 1, "loss": NaN}\n', "one step": '{"step": 1, "loss": 2.0}\n'}[kind]
    (folder / "metrics.jsonl").write_text(text)
    page = visit(page_of(folder))
    assert page.locator("h1").count() == 1
    assert page.locator("figure.chart").count() == (kind != "empty")
    if kind == "one step":
        assert page.locator("[data-chart=loss] circle").count() == 1
