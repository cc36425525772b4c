"""Make sure that ``import solvers`` finds this distribution's package and not a user's folder of that name."""

import importlib.util
from pathlib import Path


def check_solvers() -> None:
    """Raise ImportError, naming the path and the remedy, if another ``solvers`` shadows ours."""
    spec = importlib.util.find_spec("solvers")
    ours = Path(__file__).resolve().parent.parent / "solvers" / "__init__.py"
    found = Path(spec.origin).resolve() if spec is not None and spec.origin else None
    if found == ours:
        return
    if spec is None:
        raise ImportError("seqbalancer's package 'solvers' is missing; reinstall with: pip install seqbalancer")
    other = next(iter(spec.submodule_search_locations or ()), found)  # a folder, or a module solvers.py
    raise ImportError(
        f"seqbalancer needs its own package 'solvers', but Python finds {other} first; "
        f"rename that, or run from another folder so that it is not on sys.path"
    )
