"""The site as a browser shows it: every page, wide and narrow, light and dark. `make docs` runs this."""

import json
import re
from pathlib import Path

import pytest
from chromium import CHROMIUM, SCHEMES, opened

SITE = Path(__file__).parents[2] / "out" / "site"
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="there is no site: make docs builds it"),
]
LEFT_OUT = ("_modules/", "_static/", "genindex", "search")

LOOKED_AT = """<!DOCTYPE html><body><pre hidden></pre><script>
const pages = {pages}, found = {{}};
const next = () => {{
  const page = pages.pop();
  if (!page) {{ document.querySelector("pre").textContent = JSON.stringify(found); return; }}
  const frame = document.createElement("iframe");
  frame.style = "border: 0; width: {width}px; height: 900px";
  frame.onload = () => {{
    const inside = frame.contentDocument, seen = inside.defaultView;
    const words = inside.createTreeWalker(inside.body, NodeFilter.SHOW_TEXT);
    let smallest = 99, text = "";
    for (let node; (node = words.nextNode()); ) {{
      const of = node.parentElement;
      const hidden = "script, style, noscript, .visually-hidden, .sd-hide-link-text";
      if (!node.data.trim() || !of.checkVisibility() || of.closest(hidden)) continue;
      const size = parseFloat(seen.getComputedStyle(of).fontSize);
      if (size < smallest) [smallest, text] = [size, node.data.trim().slice(0, 40)];
    }}
    found[page] = {{
      overflow: inside.documentElement.scrollWidth - inside.documentElement.clientWidth,
      text: [smallest, text],
      cut: [...inside.querySelectorAll(".bd-article pre")]
        .filter((code) => code.scrollWidth > code.clientWidth + 1).length,
      background: seen.getComputedStyle(inside.body).backgroundColor,
      outside: seen.performance.getEntriesByType("resource").map((entry) => entry.name)
        .filter((name) => !name.startsWith("file:")),
      broken: [...inside.images].filter((image) => image.complete && !image.naturalWidth && image.checkVisibility())
        .map((image) => image.src),
    }};
    frame.remove();
    next();
  }};
  frame.src = "{site}/" + page;
  document.body.append(frame);
}};
next();
</script>
"""


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [400, 1280])
def test_pages_as_a_browser_shows_them(tmp_path, width, scheme):
    pages = sorted(str(page.relative_to(SITE)) for page in SITE.rglob("*.html"))
    pages = [page for page in pages if not page.startswith(LEFT_OUT)]
    assert len(pages) > 100
    looked = LOOKED_AT.format(pages=json.dumps(pages), width=width, site=SITE.as_uri())
    (tmp_path / "looked_at.html").write_text(looked)
    wait = "--virtual-time-budget=300000"
    printed = opened(tmp_path, "looked_at.html", scheme, wait, "--dump-dom", but="[PST]")  # the theme tells of itself
    shown = re.search(r"<pre hidden[^>]*>(.*?)</pre>", printed, re.DOTALL)[1]
    found = json.loads(shown.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert sorted(found) == pages
    assert [page for page, seen in found.items() if seen["overflow"] > 0] == []
    assert {tuple(seen["text"]): page for page, seen in found.items() if seen["text"][0] < 12} == {}
    if width == 1280:
        assert [page for page, seen in found.items() if seen["cut"]] == []
    for page, seen in found.items():
        assert seen["outside"] == seen["broken"] == [], page
        bright = sum(map(int, re.findall(r"[0-9]+", seen["background"])[:3])) > 382
        assert bright == (scheme == "light"), page
