"""What was typed, as tables of a step: each option is a key of them, and read by the kind of that key."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from balancer.cli.step_options import BARE, STEP
from balancer.cli.wording import GIVEN_IN
from balancer.errors import InputError
from balancer.problem.phases import CONSTRAINTS, SINGLE_PHASE
from balancer.problem.step_keys import KEYS
from balancer.problem.step_tables import CUTS_OF_STEPS, StepTables, named_options
from solvers.errors import UsageError

_OPTION_OF = {"phases": "--phase", "caps": "--cap", "byte_sizes": "--bytes", "costs": "--cost", "models": "--model",
              "layouts": "--layout"}  # fmt: skip
_FOR_A_PHASE = "is for a phase, but there are none: name them with --phase NAME=COL[+COL...]"
_NEED_PHASES = ("outputs", "own", "sequence_parallel", "every_rank_nonempty", "mode", "encoders")
_OWN_OPTION = {"context": "context_shards", "group_degrees": "sequence_groups", "micro_batch_tokens": "micro_batches"}
"""The options that say by themselves how a step is cut."""
_FORMS = {
    "count": (1, "a whole number, or NAME= and one for a phase"),
    "amount": (1, "a whole number, or NAME= and one for a phase"),
    "one or two counts": (2, "NAME=IN or NAME=IN,OUT with whole numbers"),
    "shared by": (2, "NAME=D or NAME=D,M with whole numbers"),
    "counts": (0, "whole numbers with commas between them"),
    "amounts": (0, "whole numbers with commas between them"),
    "degrees": (0, "numbers of ranks, such as 1,2,4,8"),
}
"""Kinds that are typed as numbers: how many at most (0: any number of them), and in words; others are text."""


def said_step(options: Mapping[str, Any]) -> StepTables:
    """Return what the step file and the options that were typed say of a step; options win.

    Errors that name an argument then say where its value stands.
    """
    context = click.get_current_context()
    file: StepTables = context.meta.get(STEP, StepTables())
    typed = {name: value for name, value in options.items() if value is not None and _is_typed(context, name)}
    context.meta[GIVEN_IN] = file.wording(typed)
    return file.beside(_as_tables(typed, file))


def _is_typed(context: click.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    # A value of the step file reaches click as a default map. It was not typed: the file's own tables have it.
    return source not in (None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)


def option_of(name: str) -> str:
    """Return the option of a parameter."""
    return _OPTION_OF.get(name, f"--{name.replace('_', '-')}")


def refuse(given: Iterable[str], beside: str) -> None:
    """Refuse options that do not go with another, or say why."""
    if names := [option_of(name) for name in given]:
        raise InputError(f"{', '.join(names)} cannot be combined with {beside}")


def by_phase(option: str, texts: Iterable[str], names: Collection[str] | None = None) -> dict[str, str]:
    """Read ``NAME=VALUE`` words, each name once; where no phases are named, values alone."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        if names is not None and tuple(names) == (SINGLE_PHASE,) and name != SINGLE_PHASE:
            # Without phases the whole text is the value, even where it holds an equals sign.
            name, value = SINGLE_PHASE, text.strip()
        if not name or not value:
            raise InputError(f"{option} {text!r} must be NAME=VALUE, with the name of a phase")
        if names is not None and name not in names:
            raise InputError(f"{option} {text!r}: there is no phase {name!r}; phases are {', '.join(names)}")
        if name in found:
            raise InputError(f"{option} names phase {name!r} twice")
        found[name] = value
    return found


def _as_tables(typed: Mapping[str, Any], file: StepTables) -> StepTables:
    columns = by_phase("--phase", typed.get("phases", ()))
    if "length" in typed and (columns or not file.is_single):
        raise InputError("--length cannot be combined with --phase, which names the columns of each phase")
    if columns and file.is_single and file.phases:
        raise InputError(f"--phase cannot be combined with {file.path}, whose only phase has no name")
    if not columns and file.is_single:
        beside = "--length; name the phases with --phase NAME=COL[+COL...]"
        refuse((name for name in _NEED_PHASES if typed.get(name)), beside)
    names = tuple(dict.fromkeys((*(() if columns and file.is_single else file.names), *columns)))
    columns |= {names[-1]: typed["length"]} if "length" in typed else {}
    # An option that belongs to one cut chooses it, and so replaces the file's cut.
    cut = next((table for option, table in _OWN_OPTION.items() if option in typed), file.cut)
    tables = {table: _table(table, typed) for table in ("", "plan", "deferral", cut or "micro_batches")}
    _check_cut(typed, cut)
    if "stages" in typed or any(key.option in typed for key in KEYS["stages"].values()):
        tables["stages"] = _table("stages", typed)
        if "stages" in typed:
            # Encoders that run once before the step are in no stage: then the last phase alone is cut.
            when = tables.get("micro_batches", {}).get("encoders", file.of("micro_batches").get("encoders"))
            tables["stages"]["counts"] = _stages(typed["stages"], names[-1:] if when == "step" else names)
    of_phases = _of_phases(typed, names, columns)
    return StepTables(
        "", {table: keys for table, keys in tables.items() if keys},
        tuple({"name": name} | keys for name, keys in of_phases.items() if keys or name in columns),
    )  # fmt: skip


def _table(table: str, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a table that were typed."""
    found = {}
    for key, declared in KEYS[table].items():
        if declared.option not in typed:
            continue
        value = typed[declared.option]
        if key == "layout":
            if len(value) > 1:
                raise InputError(
                    f"--layout must be given once, got {', '.join(value)}; simulate takes several, without --strategies"
                )
            (value,) = value
        elif key == "degrees":
            value = _read("--group-degrees", "degrees", value)
        elif declared.option == "micro_batches":
            value = _count(value, table)
        elif key == "masks":
            value = _counts_by_name("--masks", value, "MASK=LAYERS,..., such as full=1,window1024=5")
        found[key] = value
    return found


def _count(text: str, table: str) -> int | str:
    if re.fullmatch("[0-9]{1,9}", text):
        return int(text)
    if text == "fewest" and table == "micro_batches":
        return text
    beside = next((option_of(option) for option, cut in _OWN_OPTION.items() if cut == table), "")
    rule = "a whole number or 'fewest'" if table == "micro_batches" else f"a whole number with {beside}"
    raise InputError(f"--micro-batches must be {rule}, got {text!r}")


def _counts_by_name(option: str, text: str, rule: str) -> dict[str, int]:
    """Read ``NAME=N,...``, each name once."""
    found: dict[str, int] = {}
    for word in text.split(","):
        name, _, count = (part.strip() for part in word.rpartition("="))
        if not name or not re.fullmatch("[0-9]{1,9}", count):
            raise InputError(f"{option} must be {rule}, got {text!r:.80}")
        if name in found:
            raise InputError(f"{option} names {name!r} twice")
        found[name] = int(count)
    return found


def _check_cut(typed: Mapping[str, Any], cut: str) -> None:
    """Refuse what was typed of another cut than the step's."""
    mine = {key.option for key in KEYS[cut or "micro_batches"].values()}
    others = {
        (table, key): said.option
        for table in (*CUTS_OF_STEPS, "stages")
        for key, said in KEYS[table].items()
        if said.option in typed and said.option not in mine
    }
    if cut not in ("", "micro_batches"):
        refuse(dict.fromkeys(others.values()), option_of(next(name for name, of in _OWN_OPTION.items() if of == cut)))
    for table in CUTS_OF_STEPS if cut in ("", "micro_batches") else ():
        if keys := [key for of, key in others if of == table]:
            # The first key of each table is the one without which its cut does not exist.
            first = next(iter(KEYS[table].values())).about.rstrip(".")
            raise UsageError(f"{named_options(table, keys)} needs {{{table}}}, {first[0].lower()}{first[1:]}")


def _stages(text: str, names: Sequence[str]) -> dict[str, int]:
    """Read ``--stages``; `names` are the phases that are stages."""
    if len(names) == 1 and re.fullmatch("[0-9]{1,9}", text.strip()):
        return {names[0]: int(text)}
    return _counts_by_name("--stages", text, f"NAME[+NAME]=N for each of {', '.join(names)}")


def _of_phases(
    typed: Mapping[str, Any], names: tuple[str, ...], columns: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return what was typed of each phase."""
    found: dict[str, dict[str, Any]] = {
        name: {"length": columns[name]} if name in columns else {} for name in names
    }  # fmt: skip
    for key, declared in KEYS["phase"].items():
        option, texts = option_of(declared.option), typed.get(declared.option, ())
        if not declared.option or not texts or key == "length":
            continue
        if declared.kind == "flag":
            of_key: Mapping[str, Any] = dict.fromkeys((_named(option, text, names) for text in texts), True)
        elif key == "cost":
            of_key = _costs(texts, names)
        elif key == "caps":
            of_key = _caps(texts, names)
        elif key in CONSTRAINTS:
            of_key = _of_last(option, texts, names)
        else:
            of_key = by_phase(option, texts, names)
        for name, value in of_key.items():
            kind = "shared by" if key == "sequence_parallel" else declared.kind
            read = _read(option, kind, value) if isinstance(value, str) else value
            if key == "sequence_parallel":
                # One number or two: without the second one, the multiple keeps its default.
                found[name] |= dict(zip((key, "share_multiple_of"), read, strict=False))
            else:
                found[name][key] = read
    return found


def _read(option: str, kind: str, text: str) -> Any:
    """Read a value by its kind."""
    if kind not in _FORMS:
        return text
    most, form = _FORMS[kind]
    words = [word.strip() for word in text.split(",")]
    number = "[+-]?[0-9]{1,19}" if most == 1 else "[0-9]{1,18}"  # whoever uses a single number checks its sign
    odd = [word for word in words if not re.fullmatch(number, word)]
    if odd or (most and len(words) > most):
        raise InputError(f"{option} must be {form}, got {(text if most else odd[0])!r:.80}")
    return int(words[0]) if most == 1 else list(map(int, words))


def _named(option: str, text: str, names: tuple[str, ...]) -> str:
    """Return the phase of a flag that may name one."""
    name = names[-1] if text == BARE else text.strip()
    if name not in names and names == (SINGLE_PHASE,):
        raise InputError(f"{option} {name} {_FOR_A_PHASE}")
    if name not in names:
        raise InputError(f"{option} {name}: there is no such phase; phases are {', '.join(names)}")
    return name


def _of_last(option: str, texts: Sequence[str], names: tuple[str, ...]) -> dict[str, str]:
    """Read ``[NAME=]VALUE`` words, each phase once; a value without a name is the last one's."""
    if names == (SINGLE_PHASE,) and len(texts) > 1:
        raise InputError(f"{option} must be given once, got {', '.join(texts)}; several are for --phase")
    if names == (SINGLE_PHASE,) and "=" in texts[0]:
        raise InputError(f"{option} {texts[0]} {_FOR_A_PHASE}")
    return by_phase(option, (text if "=" in text else f"{names[-1]}={text}" for text in texts), names)


def _costs(texts: Sequence[str], names: tuple[str, ...]) -> dict[str, str]:
    """Read costs: of one phase each, and at most one of all others."""
    of_phase = [text for text in texts if text.partition("=")[0].strip() in names]
    of_all = [text for text in texts if text not in of_phase]
    if len(of_all) > 1 and names == (SINGLE_PHASE,):
        raise InputError(f"--cost must be given once, got {len(of_all)}; several are for --phase")
    if len(of_all) > 1:
        raise InputError(f"--cost without NAME= must be given once, got {', '.join(map(repr, of_all))}")
    # In `quadratic:a=1` a colon comes first; here an equals sign does, behind a name that is no phase.
    if of_all and re.match(r"[^:=]*=", of_all[0]):
        raise InputError(f"--cost {of_all[0]!r}: there is no such phase; phases are {', '.join(names)}")
    return dict.fromkeys(names if of_all else (), of_all[0] if of_all else "") | by_phase("--cost", of_phase)


def _caps(texts: Sequence[str], names: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """Read ``--cap``, each quantity of a phase once."""
    found: dict[str, dict[str, int]] = {}
    for text in texts:
        phase, _, rest = text.partition("=")
        named = phase.strip() in names and "=" in rest
        # From the right: a column's name may hold an equals sign.
        columns, equals, limit = (rest if named else text).rpartition("=")
        if not equals or not columns or not re.fullmatch("[0-9]{1,18}", limit):
            raise InputError(f"--cap {text!r} must be COL[+COL...]=MAX, such as image_patches=60000")
        if int(limit) < 1:
            raise InputError(f"--cap {text!r}: MAX must be >= 1")
        caps = found.setdefault(phase.strip() if named else names[-1], {})
        if columns in caps:
            raise InputError(f"--cap names {columns!r} twice; name each quantity once")
        caps[columns] = int(limit)
    return found
