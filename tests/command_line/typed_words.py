"""Words of command lines."""


def keys(*said: str) -> tuple[str, ...]:
    """Return the words that set keys, each said as KEY=VALUE."""
    return tuple(word for each in said for word in ("--set", each))


def typed(text: str) -> tuple[str, ...]:
    """Return the words of a command line, where KEY=VALUE is --set KEY=VALUE unless an option is before it."""
    words: list[str] = []
    for word in text.split():
        is_key = "=" in word and not (words and words[-1].startswith("--"))
        words += keys(word) if is_key else [word]
    return tuple(words)
