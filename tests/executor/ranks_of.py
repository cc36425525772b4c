"""Ranks for all tests of a module; apart from what the ranks import."""

import pytest
from rank_processes import Ranks


def ranks_of(*sizes):
    """Return a module's fixture: started ranks, of each of these sizes in turn."""

    @pytest.fixture(scope="module", params=sizes)
    def ranks(request):
        with Ranks(request.param) as started:
            yield started

    return ranks
