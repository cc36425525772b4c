"""What the site needs of torch where it is not installed: names to import, to inherit from and to decorate with.

Sphinx's own `autodoc_mock_imports` does not do: its names have no `Tensor | None`, and torch has a release here.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

RELEASE = "2.13"  # one that all of the package imports with


class _Named(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(name, (), {"__new__": _used})

    def __getitem__(cls, parameters: Any) -> Any:
        return cls


def _used(cls: type, *given: Any, **named: Any) -> Any:
    """Return what is decorated, or a decorator."""
    return given[0] if len(given) == 1 and callable(given[0]) else lambda decorated: decorated


class _Module(ModuleType):
    __version__ = RELEASE
    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Named(name, (), {"__module__": self.__name__, "__new__": _used})
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] == "torch" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in() -> None:
    """Let `import torch` find names alone."""
    sys.meta_path.append(_Finder())
