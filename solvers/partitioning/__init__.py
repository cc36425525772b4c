"""Items to groups, the largest load as small as possible. :mod:`solvers.partitioning.search` is the file to read."""

from solvers.partitioning.mixed import mixed
from solvers.partitioning.padded import padded
from solvers.partitioning.partition import PARTITIONERS, USES_CLOCK, partition

__all__ = ["PARTITIONERS", "USES_CLOCK", "mixed", "padded", "partition"]
