"""How the site is built: `make docs`."""

import ast
import inspect
import os
import re
import sys
from collections import Counter
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import click  # noqa: E402
from sphinx.util.nodes import make_refnode  # noqa: E402
from without_torch import stand_in  # noqa: E402

from balancer._version import __version__  # noqa: E402
from balancer.cli.main import cli  # noqa: E402
from balancer.described import keys_of  # noqa: E402
from balancer.step import StepFile  # noqa: E402

if find_spec("torch") is None:
    stand_in()

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
    ("py:data", r"balancer\.problem\.settings\.\w+|TRUSTED_BOUNDS|balancer\.strategies\.STRATEGIES"),
    ("py:data", r"balancer\.problem\.cuts\.micro_batches\.\w+|OVER_LONG|balancer\.cost\.areas\.AREAS"),
    ("py:obj", "sync|pipeline_stages|over_long"),  # fields that a cut's properties stand for
    (
        "py:.*",
        r"balancer\.cost\.(fit\.CostFit|integer\.integer_flops)|balancer\.problem\.shuffle\.shuffled",
    ),
    ("py:meth", "of|from_json"),
]

myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # they are kept with their outputs: make notebooks
nb_merge_streams = True

copybutton_prompt_text, copybutton_prompt_is_regexp = r">>> |\.\.\. |\$ ", True
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "none"  # the docstrings say more: shapes, units
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
smartquotes_action = "qe"  # two hyphens begin an option
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

CONTEXT = click.Context(cli, show_default=True)
_MARKS, _MARK = re.compile(r"([*`_|\\])"), r"\\\1"  # that would mean something in Markdown
_KEYS = re.compile(r"%keys (\w+)%")
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
_LIGHT = re.compile(r"!\[([^\]]*)\]\(([^)]*)-light\.svg\)")


SHARED = 3  # commands that take an option in the same words: then it is told once


def _asked(parameter):
    """Return how an option is written, and what is said of it."""
    _, told = parameter.get_help_record(CONTEXT) or ("", "")
    names = ", ".join((*parameter.opts, *parameter.secondary_opts))
    value = "" if parameter.is_flag else f" {parameter.make_metavar(CONTEXT)}"
    return names + value, _MARKS.sub(_MARK, told)


def _directives(program, asked):
    shown = "".join(f"\n.. option:: {names}\n\n   {told}\n" for names, told in asked)
    return f"```{{eval-rst}}\n.. program:: {program}\n{shown}```\n"


def _commands():
    """Return what every command says of itself: an anchor for each option, those of several commands once."""
    options = {
        name: [_asked(one) for one in command.params if isinstance(one, click.Option) and not one.hidden]
        for name, command in sorted(cli.commands.items())
    }
    takers = Counter(chain.from_iterable(options.values()))
    shared = sorted(one for one, many in takers.items() if many >= SHARED)
    shown = []
    for name, asked in options.items():
        command = cli.commands[name]
        usage = command.get_usage(click.Context(command, info_name=f"balancer {name}", terminal_width=88))
        own = [one for one in asked if one not in shared]
        also = [
            f"{{option}}`{re.split('[ ,]', one[0])[0]} <balancer {re.split('[ ,]', one[0])[0]}>`"
            for one in asked
            if one in shared
        ]
        text = re.sub(r"\x08\n(.*?)(?=\n\n|\Z)", r"```text\n\1\n```", inspect.cleandoc(command.help or ""), flags=re.S)
        shown += [f"## `balancer {name}`\n", text + "\n", f"```text\n{usage}\n```\n"]
        shown += [_directives(f"balancer {name}", own)] if own else []
        shown += (
            [f"Also [options of several commands](#options-of-several-commands): {', '.join(also)}.\n"] if also else []
        )
    shown += ["## Options of several commands\n", _directives("balancer", shared)]
    return "\n".join(shown)


OF_TYPES = {
    "array": "whole numbers",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "object": "a table of whole numbers",
    "string": "text",
}


def _kept(schema):
    """Return what a value is, in words."""
    types = schema.get("type", ())
    words = [_kept(each) for each in schema.get("anyOf", ())] + [f"`{word}`" for word in schema.get("enum", ())]
    return ", ".join(words + [OF_TYPES[name] for name in ([types] if isinstance(types, str) else types)])


def _keys(table):
    """Return the keys of a table of steps, or of a kind of cut, as rows."""
    rows = [
        f"| `{each.name}` | {_kept(each.schema)} | {_MARKS.sub(_MARK, each.about)} |"
        for each in keys_of(StepFile)
        if (each.of_kind or each.table or "top") == table and (each.table, each.name) != ("cut", "kind")
    ]
    return "\n".join(("| key | value | says |", "|---|---|---|", *rows))


def _examples():
    """Return a section of each example: what it says of itself, and its code, folded."""
    shown = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        title, _, told = ast.get_docstring(ast.parse(path.read_text())).partition("\n\n")
        name = path.stem.replace("_", " ").capitalize()
        told = re.sub(r"^    (.*)$", r"```\n\1\n```", told, flags=re.M)
        code = f":::{{dropdown}} {path.name}\n```{{literalinclude}} ../../examples/{path.name}\n```\n:::\n"
        shown.append(f"## {name}\n\n{title}\n\n{told}\n\n{code}")
    return "\n".join(shown)


def _know_linked_pages(app, env, docnames):
    """Some pages are kept elsewhere and linked into this folder: let links to either place lead there."""
    for docname in env.found_docs:
        env.project._path_to_docname[Path(env.doc2path(docname)).resolve()] = docname


def _pictures(folder, text, path):
    """Return a picture in both schemes, and in both again for a phone where it was drawn for one."""
    drawn = {"": ".picture"}
    if (folder / f"{path}_narrow-light.svg").exists():
        drawn = {"": ".picture .on-wide", "_narrow": ".picture .on-narrow"}
    return " ".join(
        f"![{text}]({path}{name}-{scheme}.svg){{.only-{scheme} {classes}}}"
        for name, classes in drawn.items()
        for scheme in ("light", "dark")
    )


def _read(app, docname, source):
    """Links of a page that is kept elsewhere are relative to there; a picture is shown in the reader's scheme."""
    page = Path(app.env.doc2path(docname))
    text = source[0].replace("%commands%", _commands()).replace("%examples%", _examples())
    text = _KEYS.sub(lambda table: _keys(table[1]), text)
    if page.is_symlink():
        kept = page.resolve().parent
        text = _LINK.sub(lambda link: f"]({os.path.relpath(kept / link[1], page.parent)}", text)
    source[0] = _LIGHT.sub(lambda found: _pictures(page.parent, *found.groups()), text)


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
