"""How large the pages of a large run are, and how soon a browser shows them: 2,560 ranks, 1,000 steps, three phases.

Run: python benchmarks/pages.py [STEPS]. Needs Chromium for the times. Twenty steps are planned, and come again and
again; a page does not depend on that. Load and layout are what the browser says, from the start of navigation; shown is
by how much a browser that draws the page, cold, takes longer than one that draws an empty one.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from balancer import Phase, Topology
from balancer.cost import module
from balancer.io.log import open_log
from balancer.offline.settings import LogSettings
from balancer.offline.step_table import StepRows
from balancer.offline.steps import plan_log
from balancer.problem.setup import Setup
from balancer.report import plan_page as page_of_plan
from balancer.report.page import write_page
from balancer.report.simulation_page import Assumptions
from balancer.report.simulation_page import simulation_page as page_of_simulation
from balancer.simulate import CLUSTERS, PhaseModel, simulate_log

LOG = Path(__file__).parent.parent / "data" / "omni_mix_dev.parquet"
MODULES = {"vision": "internvit-6b", "audio": "whisper-large-v3-encoder", "llm": "qwen2-72b"}
RANKS, BATCH, PLANNED = 2560, 2, 20
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files")
WATCHED = """<!DOCTYPE html><iframe src="{page}" style="width: 1280px; height: 6000px"></iframe><pre></pre><script>
onload = () => {{
  const inside = document.querySelector("iframe").contentWindow;
  const navigation = inside.performance.getEntriesByType("navigation")[0];
  const started = performance.now();
  inside.document.body.getBoundingClientRect();
  const laid = performance.now() - started;
  document.querySelector("pre").textContent = JSON.stringify({{load: navigation.domComplete, layout: laid}});
}};
</script>"""


def settings(models: dict[str, PhaseModel]) -> LogSettings:
    columns = ("image_patches", "audio_frames", "text_tokens+image_tokens+audio_tokens")
    phases = tuple(
        Phase(name, column, model.cost_model(), bytes_in=4, bytes_out=4)
        for (name, model), column in zip(models.items(), columns, strict=True)
    )
    return LogSettings(Setup(Topology.uniform(RANKS, 8), phases), BATCH)


def plan_page(path: Path, steps: int, chosen: LogSettings) -> None:
    plans = []
    for plan in plan_log(open_log(LOG), chosen):
        plans.append(plan)
        if len(plans) == min(PLANNED, steps):
            break
    rows = StepRows()
    for step in range(steps):
        rows.add(step, plans[step % len(plans)])
    drawn = page_of_plan.Drawn(rows.table())
    for step in range(steps):
        drawn.add(plans[step % len(plans)])
    write_page(str(path), page_of_plan.plan_page(rows.table(), drawn, "a large run"))


def simulation_page(path: Path, steps: int, chosen: LogSettings, models: dict[str, PhaseModel]) -> None:
    h100 = CLUSTERS["h100"]
    found = simulate_log(open_log(LOG), chosen, models, h100, num_steps=min(PLANNED, steps))
    parameters = {name: module(text).parameters for name, text in MODULES.items()}
    assumed = Assumptions("h100", h100, chosen, MODULES, parameters, models, False, 0.0, "phase", True)
    write_page(str(path), page_of_simulation(found, assumed, "a large run"))


def opened(folder: Path, page: Path) -> tuple[float, float]:
    """Milliseconds to load, and to lay out: the least of five."""
    (folder / "watched.html").write_text(WATCHED.format(page=page.name))
    found = []
    for _ in range(5):
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
        printed = subprocess.run(
            [*command, (folder / "watched.html").as_uri()], capture_output=True, text=True, check=True
        )
        told = json.loads(re.search("<pre>(.*?)</pre>", printed.stdout)[1])
        found.append((told["load"], told["layout"]))
    return min(found, key=sum)


def shown(folder: Path, page: Path) -> float:
    """Seconds of a browser from start to end, with a picture of the page taken: the least of five."""
    found = []
    for _ in range(5):
        started = time.perf_counter()
        picture = f"--screenshot={folder / 'picture.png'}"
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--window-size=1280,6000", picture]
        subprocess.run([*command, page.as_uri()], capture_output=True, check=True)
        found.append(time.perf_counter() - started)
    return min(found)


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    peak = CLUSTERS["h100"].peak_flops
    models = {name: PhaseModel.on(model, peak, 0.5) for name, model in MODULES.items()}
    chosen = settings(models)
    print("| page | KB | load, ms | layout, ms | shown, s |\n|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan_page(folder / "plan.html", steps, chosen)
        simulation_page(folder / "simulation.html", steps, chosen, models)
        (folder / "empty.html").write_text("<!DOCTYPE html><title>empty</title>")
        empty = shown(folder, folder / "empty.html") if CHROMIUM else 0.0
        for kind in ("plan", "simulation"):
            page = folder / f"{kind}.html"
            times = ["-"] * 3
            if CHROMIUM:
                load, layout = opened(folder, page)
                times = [f"{load:.0f}", f"{layout:.0f}", f"{shown(folder, page) - empty:.2f}"]
            count = steps if kind == "plan" else min(PLANNED, steps)
            print(f"| {kind}, {count:,} steps | {page.stat().st_size / 1e3:,.0f} | {' | '.join(times)} |")


if __name__ == "__main__":
    main()
