"""The package's version, as it was installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("seqbalancer")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"
