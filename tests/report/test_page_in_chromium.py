"""Both pages in a real browser, where there is one: nothing on its console, charts drawn, readable, light and dark."""

import json
import re
from dataclasses import replace

import pytest
from chromium import CHROMIUM, SCHEMES, opened
from page_cases import HOSTILE, plans_of, run_of
from simulation_cases import log_of, simulated

pytest.importorskip("matplotlib")

from matplotlib.image import imread

from balancer import Pipelines, PipelineStages, orchestrate
from balancer.report.charts import BACKWARD, COLORS, FORWARD
from balancer.report.page import write_page
from balancer.report.plan_page import plan_page
from balancer.report.simulation_page import simulation_page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

WIDTHS = {"phone": 390, "desktop": 1280}
CHARTS = {"plan": 3 * 3, "simulation": 2}
NAMES = [name.replace(":", "").replace("=", "") for name in HOSTILE[:1] + HOSTILE[3:]]

FRAMED = """<!DOCTYPE html><style>body {{ margin: 0 }} iframe {{ border: 0; width: {width}px; height: 5000px }}</style>
<iframe src="page.html"></iframe><pre hidden></pre>
<script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const charts = [...page.querySelectorAll("figure svg")];
  const figures = page.querySelectorAll("figure").length;
  const drawn = (svg) => [...svg.querySelectorAll("path, use, image, rect")].filter((mark) => {{
    const box = mark.getBoundingClientRect();
    return box.width > 0 || box.height > 0;
  }}).length;
  const size = (text) => {{
    const svg = text.closest("svg");
    return parseFloat(getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  }};
  const look = page.defaultView.getComputedStyle.bind(page.defaultView);
  const rgb = (color) => (color.match(/[0-9.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = (color) => {{
    const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb(color).map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }};
  const behind = (element) => {{
    for (; element; element = element.parentElement) {{
      const color = look(element).backgroundColor;
      if ((rgb(color)[3] ?? 1) > 0) return color;
    }}
    return "rgb(255, 255, 255)";
  }};
  const contrast = (element) => {{
    const drawn = element.closest("svg");
    const ink = drawn ? look(element).fill : look(element).color;
    if (drawn && ink === look(page.body).backgroundColor) return 21;  // numbers on bars: another test
    const [a, b] = [light(ink), light(behind(element))].sort((a, b) => b - a);
    return (a + 0.05) / (b + 0.05);
  }};
  const words = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT), seen = [];
  for (let node; (node = words.nextNode()); ) if (node.data.trim()) seen.push(node.parentElement);
  const meet = (svg) => {{
    const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
    return boxes.flatMap(([name, a], i) => boxes.slice(i + 1).filter(([, b]) =>
      a.left < b.right && b.left < a.right && a.top < b.bottom - b.height / 4 && b.top < a.bottom - a.height / 4
    ).map(([other]) => `${{name}} meets ${{other}}`));
  }};
  document.querySelector("pre").textContent = JSON.stringify({{
    contrast: Math.min(...seen.map(contrast)),
    unnamed: [...page.querySelectorAll("section, figure")].filter((part) => {{
      const title = page.getElementById(part.getAttribute("aria-labelledby"));
      return !(part.getAttribute("aria-label") || (title && title.textContent)).trim();
    }}).length,
    landmarks: ["header", "main", "footer"].map((name) => page.body.querySelectorAll(`:scope > ${{name}}`).length),
    figures: figures,
    overflow: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    charts: charts.map(drawn),
    meet: charts.flatMap(meet),
    text: Math.min(...[...page.querySelectorAll("svg text")].map(size)),
    heading: page.querySelector("h1").textContent,
    names: [...page.querySelectorAll("figcaption")].map((caption) => caption.textContent),
  }});
}};
</script>
"""


@pytest.fixture(scope="module", params=CHARTS)
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "plan":
        write_page(str(folder / "page.html"), plan_page(*run_of(plans_of(NAMES, steps=5)), HOSTILE[-1]))
    else:
        found, assumed = simulated(log_of(folder), NAMES[:3])
        assumed = replace(assumed, model_names=dict(zip(NAMES[:3], HOSTILE[:3], strict=True)))
        write_page(str(folder / "page.html"), simulation_page(found, assumed, HOSTILE[-1]))
    for name, width in WIDTHS.items():
        (folder / f"{name}.html").write_text(FRAMED.format(width=width))
    return folder


@pytest.mark.parametrize(("device", "scheme"), [("phone", "dark"), ("desktop", "light"), ("desktop", "dark")])
def test_charts_are_drawn_and_nothing_overflows(folder, device, scheme):
    printed = opened(folder, f"{device}.html", scheme, "--window-size=1300,1500", "--dump-dom")
    found = json.loads(
        re.search(r"<pre[^>]*>(.*?)</pre>", printed, re.DOTALL)[1].replace("&lt;", "<").replace("&gt;", ">")
    )
    assert found["overflow"] <= 0
    assert found["figures"] == CHARTS[re.sub("[0-9]", "", folder.name)]
    assert min(found["charts"]) >= 4  # two axes, and what is drawn between them
    assert found["contrast"] >= 4.5
    assert found["landmarks"] == [1, 1, 1]
    assert found["unnamed"] == 0
    assert found["meet"] == []
    assert found["text"] > 6  # pixels; exponents of a logarithmic axis are the smallest
    assert found["heading"].startswith(HOSTILE[-1][:50])
    assert not found["names"] or found["names"][0].strip().startswith(HOSTILE[0])


@pytest.mark.parametrize("device", WIDTHS)
def test_the_timeline_of_a_pipeline_is_drawn_and_can_be_read(tmp_path, device):
    cut = Pipelines(200, count=8, stages=PipelineStages.of({"vision": 1, "llm": 3}))
    batch = {"patches": [i * 13 % 40 for i in range(64)], "tokens": [5 + i * 7 % 90 for i in range(64)]}
    plan = orchestrate(batch, {"vision": "patches", "llm": "tokens"}, 2, cut=cut)
    write_page(str(tmp_path / "page.html"), plan_page(*run_of([plan]), "a pipeline"))
    (tmp_path / f"{device}.html").write_text(FRAMED.format(width=WIDTHS[device]))
    printed = opened(tmp_path, f"{device}.html", "light", "--window-size=1300,1500", "--dump-dom")
    found = json.loads(re.search(r"<pre[^>]*>(.*?)</pre>", printed, re.DOTALL)[1])
    assert found["overflow"] <= 0
    assert len(found["charts"]) == 4  # the pipeline before and after, step by step, lengths of two phases
    assert found["charts"][0] >= 2 * 2  # before and after, a path of forwards and one of backwards
    assert found["text"] > 6


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("device", WIDTHS)
def test_screenshots_are_light_or_dark_and_not_blank(folder, device, scheme):
    picture = folder / f"{device}-{scheme}.png"
    opened(folder, f"{device}.html", scheme, "--window-size=1300,2500", f"--screenshot={picture}")
    pixels = imread(picture)[:2500, : WIDTHS[device], :3]
    assert pixels.std() > 0.03
    assert (pixels.mean() < 0.4) if scheme == "dark" else (pixels.mean() > 0.8)
    assert len({tuple(pixel) for pixel in pixels[::4, ::4].reshape(-1, 3).tolist()}) > 30


def test_it_prints(folder):
    opened(folder, "page.html", "light", f"--print-to-pdf={folder / 'page.pdf'}")
    assert (folder / "page.pdf").stat().st_size > 20_000


def test_numbers_on_bars_can_be_read():
    def light(color):
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    for name in (FORWARD, BACKWARD):
        assert light(COLORS["page"]) / light(COLORS[name]) >= 4.5
