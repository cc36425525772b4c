"""How the site is built: `make docs`."""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))  # of notebooks
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")

import click  # noqa: E402
from sphinx.util.nodes import make_refnode  # noqa: E402

from balancer._version import __version__  # noqa: E402
from balancer.cli.main import cli  # noqa: E402

project, author, release = "seqbalancer", "The seqbalancer maintainers", __version__
copyright = author
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
]
nitpicky = True
nitpick_ignore_regex = [
    ("py:mod", r"(solvers|balancer)\..*"),  # whose source the names are linked to
    ("py:attr", r"\w+"),  # listed in the table of its class
    ("py:.*", r"(fractions|scipy)\..*"),
    ("py:data", r"balancer\.problem\.settings\.\w+|TRUSTED_BOUNDS|balancer\.planning\.strategies\.STRATEGIES"),
    ("py:data", r"balancer\.problem\.cuts\.micro_batches\.\w+|OVER_LONG|balancer\.cost\.areas\.AREAS"),
    ("py:obj", "schedule|pipeline_stages|over_long"),  # fields that a cut's properties stand for
    (
        "py:.*",
        r"balancer\.cost\.(fit\.CostFit|integer\.integer_flops)|balancer\.problem\.shuffle\.shuffled",
    ),
    ("py:meth", "of|from_json"),
]

myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "out" / "notebooks")
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True

autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "none"  # the docstrings say more: shapes, units
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme = "pydata_sphinx_theme"
html_title = "seqbalancer"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "show_toc_level": 2,
    "show_prev_next": True,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}
html_sidebars = {"index": []}

_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
_LIGHT = re.compile(r"!\[([^\]]*)\]\(([^)]*)-light\.svg\)")


def _help():
    """Return what every command says of itself."""
    shown = []
    for name, command in sorted(cli.commands.items()):
        text = command.get_help(
            click.Context(command, info_name=f"balancer {name}", max_content_width=88, terminal_width=88)
        )
        shown.append(f"## `balancer {name}`\n\n```text\n{text}\n```\n")
    return "\n".join(shown)


def _know_linked_pages(app, env, docnames):
    """Some pages are kept elsewhere and linked into this folder: let links to either place lead there."""
    for docname in env.found_docs:
        env.project._path_to_docname[Path(env.doc2path(docname)).resolve()] = docname


def _read(app, docname, source):
    """Links of a page that is kept elsewhere are relative to there; a picture is shown in the reader's scheme."""
    page = Path(app.env.doc2path(docname))
    text = source[0].replace("%commands%", _help())
    if page.is_symlink():
        kept = page.resolve().parent
        text = _LINK.sub(lambda link: f"]({os.path.relpath(kept / link[1], page.parent)}", text)
    source[0] = _LIGHT.sub(r"![\1](\2-light.svg){.only-light .picture} ![\1](\2-dark.svg){.only-dark .picture}", text)


OF_MODULES = ("function", "class", "exception", "data")


def _by_its_public_name(app, env, node, contnode):
    """Docstrings name things as they are imported there: lead to where the only public one of that name is."""
    if node.get("refdomain") != "py":
        return None
    domain, name = env.domains["py"], node["reftarget"].rpartition(".")[2]
    found = [
        (full, entry)
        for full, entry in domain.objects.items()
        if full.rpartition(".")[2] == name and entry.objtype in OF_MODULES and not entry.aliased
    ]
    if len(found) != 1:
        return None
    ((full, entry),) = found
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, contnode, full)


def setup(app):
    """Called by Sphinx."""
    app.connect("missing-reference", _by_its_public_name)
    app.connect("env-before-read-docs", _know_linked_pages)
    app.connect("source-read", _read)
