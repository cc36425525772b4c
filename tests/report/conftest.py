"""What tests of pages share."""

import pytest


@pytest.fixture
def undrawn(monkeypatch):
    """Pages whose charts are empty: for tests of their words, which are quicker so."""
    monkeypatch.setattr("balancer.report.page.svg_of", lambda *_, **__: "<svg></svg>")
