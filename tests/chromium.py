"""A real browser, where there is one."""

import shutil
import subprocess

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
SCHEMES = {"dark": 0, "light": 1}  # as Blink counts them
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
    "--allow-file-access-from-files",
)  # fmt: skip


def opened(folder, file, scheme="light", *options, but=""):
    """Open a file in a folder, and return what the browser prints; nothing `but` that may have been on the console."""
    flags = (
        *QUIET,
        f"--user-data-dir={folder / 'profile'}",
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
    )
    command = [CHROMIUM, *flags, "--virtual-time-budget=10000", *options, (folder / file).as_uri()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-2000:]
    console = [line for line in ended.stderr.splitlines() if "CONSOLE" in line and not (but and but in line)]
    assert console == [], console[:3]  # what a page's policy keeps from being fetched would be told here too
    return ended.stdout
