"""Make sure that ``import solvers`` finds this distribution's package and not a user's folder of that name."""

import importlib.util
from pathlib import Path

__all__ = ["check_solvers"]


def check_solvers() -> None:
    """Raise ImportError, naming the path and the remedy, if another ``solvers`` shadows ours."""
    spec = importlib.util.find_spec("solvers")
    ours = Path(__file__).resolve().parent.parent / "solvers" / "__init__.py"
    found = Path(spec.origin).resolve() if spec is not None and spec.origin else None
    if found == ours:
        return
    folder = found.parent if found else next(iter(spec.submodule_search_locations or ()), None) if spec else None
    if folder is None:
        raise ImportError("seqbalancer's package 'solvers' is missing; reinstall with: pip install seqbalancer")
    raise ImportError(
        f"seqbalancer needs its own package 'solvers', but Python finds {folder} first; "
        f"rename that folder, or run from another one so that it is not on sys.path"
    )
