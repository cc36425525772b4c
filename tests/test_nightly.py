"""What runs at night: no property keeps to the few examples that it has by day."""

import re
from pathlib import Path

from by_night import BY_NIGHT
from hypothesis import settings
from nightly import examples


def test_at_night_no_property_has_fewer_examples_than_the_profile():
    profile = settings.get_current_profile_name()
    try:
        settings.load_profile("default")
        assert (examples(7), examples(400)) == (7, 400)
        settings.load_profile("nightly")
        assert (examples(7), examples(20_000)) == (10_000, 20_000)
    finally:
        settings.load_profile(profile)


def test_every_property_with_a_number_of_its_own_asks_for_it():
    own = re.compile(r"max_examples=\d[^*,)]*[,)]")
    found = {
        f"{path.name}: {text}"
        for path in Path(__file__).parent.rglob("*.py")
        for text in own.findall(path.read_text(encoding="utf-8"))
        if path.name not in ("conftest.py", Path(__file__).name)
    }
    assert found == set()


def test_what_is_for_the_night_is_there():
    for file, patterns in BY_NIGHT.items():
        text = (Path(__file__).parent / file).read_text(encoding="utf-8")
        for name in (pattern.partition("*")[0].partition("[")[0] for pattern in patterns):
            assert f"def {name}" in text, (file, name)
