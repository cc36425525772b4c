"""The command lines of plans as step files: what an option says, under the key that means the same."""

import json

from balancer.cli.plan_command import plan_command
from balancer.problem.step_keys import KEYS

_OF_COMMANDS = ("out", "overwrite", "resume", "as_json", "engine", "jobs")
_OF_PHASES = {key.option: name for name, key in KEYS["phase"].items() if key.option}
_TABLES = {key.option: (table, name) for table in ("sequence_groups", "stages", "micro_batches", "plan", "")
           for name, key in KEYS[table].items()}  # fmt: skip
_NUMBERS = ("count", "amount", "count or text", "one or two counts", "counts", "amounts")


def as_step(words):
    """Return the text of a step file for the options of ``balancer plan``, and the options that files do not have."""
    given, rest = _given(words)
    names = [text.partition("=")[0] for text in given.get("phases", ())] or [""]
    tables = {}
    for option, texts in given.items():
        if option == "length":
            tables.setdefault(("phase", names[-1]), {})["length"] = json.dumps(texts[0])
        elif option in _OF_PHASES:
            for text in texts:
                _add_of_phase(tables, names, _OF_PHASES[option], text)
        else:
            table, name = _TABLES[option]
            tables.setdefault((table, ""), {})[name] = _value(KEYS[table][name].kind, texts[0])
    return "\n".join(_lines(tables, names)) + "\n", rest


def _given(words):
    options = {word: option for option in plan_command.params for word in option.opts}
    given, rest = {}, []
    while words:
        word, *words = words
        word, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        option = options.get(word)
        flag = option is not None and (option.is_flag or type(option).__name__ == "NamedFlag")
        if option is not None and not flag and not equals:
            value, *words = words
        elif flag and type(option).__name__ == "NamedFlag" and words and not words[0].startswith("--"):
            value, *words = words  # in stories, the name of a phase alone
        if option is None or option.name in _OF_COMMANDS:
            rest += [word, value] if value else [word]
        else:
            given.setdefault(option.name, []).append(value)
    return given, rest


def _add_of_phase(tables, names, key, text):
    kind = KEYS["phase"][key].kind
    name, equals, value = text.partition("=")
    if not equals or name not in names:
        name, value = (text, "") if text in names else (names[-1], text)
    keys = tables.setdefault(("phase", name), {})
    if kind == "counts by name":
        column, _, most = value.partition("=")
        keys.setdefault(key, {})[column] = most
    elif kind == "flag":
        keys[key] = "true"
    else:
        keys[key] = _value(kind, value)


def _value(kind, text):
    if kind == "flag":
        return "true"
    if kind not in _NUMBERS and kind != "number":
        return json.dumps(text)
    if not text.replace(",", "").replace(".", "").isdigit():
        return json.dumps(text)
    return f"[{text}]" if "," in text else text


def _lines(tables, names):
    ordered = {("", ""): tables.pop(("", ""), {})}
    phases = {(table, name): tables.pop((table, name)) for table, name in list(tables) if table == "phase"}
    ordered |= {("phase", name): phases[("phase", name)] for name in names if ("phase", name) in phases} | tables
    for (table, name), keys in ordered.items():
        yield {"": "", "phase": "[[phase]]"}.get(table, f"[{table}]")
        if name:
            yield f"name = {json.dumps(name)}"
        for key, value in keys.items():
            shown = value
            if isinstance(value, dict):
                shown = "{" + ", ".join(f"{json.dumps(column)} = {most}" for column, most in value.items()) + "}"
            yield f"{key} = {shown}"
