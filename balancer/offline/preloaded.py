"""What workers need before their first step, loaded once by the process that they are forked from.

It imports, and plans a few samples: that loads numba's tables, and those kernels that are compiled already; the others
run as Python. It starts no thread, as a lock that one holds while a worker is forked is never free there; OpenBLAS and
jemalloc, which NumPy, SciPy and pyarrow bring in, have some, and see to theirs at a fork.
"""

import numpy as np

import balancer.offline.check
import balancer.offline.run  # noqa: F401 (with all that plans and checks)
from balancer.planning.planner import balance

balance(np.arange(1, 129), 16, 8, np.arange(128) // 8)
