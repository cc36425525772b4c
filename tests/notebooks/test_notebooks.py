"""The notebooks run from top to bottom as they stand, show pictures, and are kept with them."""

import itertools
import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
plt = pytest.importorskip("matplotlib.pyplot")

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_notebooks_are_there():
    names = {"quickstart", "choosing_a_solver", "multimodal_batch", "cluster_study", "long_samples_and_pipelines"}
    assert names <= {path.stem for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_kept(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == [i + 1 for i in range(len(cells))]  # run once, from the top
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)
    assert path.stat().st_size < 1_000_000
    for cell in cells:
        assert not cell.metadata, cell.source  # such as when it ran
        assert all(output.get("name") != "stderr" for output in cell.outputs), cell.source
    assert str(ROOT) not in path.read_text()
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    assert notebook.metadata.language_info == {"name": "python"}  # not the version that wrote it


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_reads_like_an_article(path):
    cells = nbformat.read(path, as_version=4).cells
    title = cells[0].source.splitlines()[0]
    assert cells[0].cell_type == "markdown"
    assert title.startswith("# ")
    assert title.endswith("?")  # one question each
    assert cells[-1].cell_type == "markdown"
    for cell, following in itertools.pairwise(cells):
        assert "markdown" in (cell.cell_type, following.cell_type), (
            f"two cells of code with no word between: {cell.source}"
        )


@pytest.mark.parametrize("name", ["quickstart", "multimodal_batch"])  # the others take long
@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="measures compiled code; hours without")
def test_its_code_runs_from_top_to_bottom(name, monkeypatch):
    """In this process, without Jupyter."""
    path = ROOT / "notebooks" / f"{name}.ipynb"
    monkeypatch.setattr(plt, "show", lambda: None)
    monkeypatch.chdir(path.parent)
    plt.switch_backend("agg")
    plt.close("all")
    cells = code_cells(nbformat.read(path, as_version=4))
    with plt.rc_context():
        exec(compile("\n".join(cell.source for cell in cells), path, "exec"), {})
        assert plt.get_fignums(), "no picture"
        plt.close("all")


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="measures compiled code; hours without")
@pytest.mark.filterwarnings("default")  # what Jupyter's own packages warn of is not ours to mend
def test_runs_from_top_to_bottom(path, monkeypatch):
    found = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(found))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where)
    client.execute()  # raises what a cell raises
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no picture"
    warned = [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"]
    assert warned == []
