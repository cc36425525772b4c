"""How many examples a property is tried on."""

from hypothesis import settings


def examples(by_day: int) -> int:
    """This many by default; at night at least as many as any other property."""
    at_night = settings.get_current_profile_name() == "nightly"
    return max(by_day, settings().max_examples) if at_night else by_day
