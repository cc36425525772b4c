"""Run the notebooks, and keep them with what they print and draw: `make notebooks`.

python tools/run_notebooks.py [NAME ...]
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent


def main(names: list[str]) -> None:
    """Run those of the names, or all. When cells ran, and in which Python, is not kept."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        notebook = nbformat.read(path, as_version=4)
        where = {"metadata": {"path": str(path.parent)}}
        NotebookClient(notebook, timeout=1200, kernel_name="python3", resources=where, record_timing=False).execute()
        notebook.metadata.language_info = {"name": "python"}
        nbformat.write(notebook, path)
        print(path.name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
