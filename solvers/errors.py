"""The errors that solvers raise, and how an error is told in the words of its reader.

An error here is data: a rule in words, and the values in it. A solver speaks of items, groups and its own arguments; a
trainer of samples and ranks; a log of rows; the command line of options. Each of these interfaces (*borders*) has a
:class:`Wording`, and :meth:`WordedError.in_words` words the same error for it, without parsing the message.
"""

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

# Of many items: a message stays one line, and the certificate has them all.
_SHOWN = 5
_WORD = f"{string.ascii_letters}{string.digits}_."  # with a dot, as in cut.tokens


@dataclass(frozen=True, slots=True)
class Named:
    """One thing of a kind, or several: ``Named("item", 3)`` reads "item 3", or "row 1003" at another border."""

    noun: str  # in the singular
    index: int | Sequence[int]
    owner: "Named | None" = None  # what it is part of
    note: str = ""  # what else it is known as


@dataclass(frozen=True, slots=True)
class Wording:
    """The words of one border."""

    # From an argument, a noun or a setting such as ``"over_long='own'"`` to its name here; words in braces are for the
    # next border to name. Empty: it is left out. None: it has no name here, and remedies with it are left out.
    names: Mapping[str, str | None] = field(default_factory=dict)
    # From a noun of this border to a function from an index to the number that its readers know
    numbers: Mapping[str, Callable[[int], int]] = field(default_factory=dict)
    # From a noun to the noun of what such a thing is part of, and a function from its index to that one's
    owners: Mapping[str, tuple[str, Callable[[int], int]]] = field(default_factory=dict)
    # From a noun to a function from an index to another name of that thing
    notes: Mapping[str, Callable[[int], str]] = field(default_factory=dict)

    def of(self, named: Named) -> Named:
        """Return a thing under its name here."""
        noun = self.names.get(named.noun) or named.noun
        number = self.numbers.get(noun, int)
        given = named.index
        index = [number(int(i)) for i in given] if isinstance(given, Sequence) else number(int(given))
        owner = None if named.owner is None else self.of(named.owner)
        if owner is None and noun in self.owners and isinstance(index, int):
            kind, owner_of = self.owners[noun]
            owner = Named(kind, owner_of(index))
        note = self.notes[noun](index) if noun in self.notes and isinstance(index, int) else named.note
        return Named(noun, index, owner, note)


class WordedError(Exception):
    """An error told from data.

    Parameters
    ----------
    rule : str
        What is wrong, as a template: a word in braces is one of `fields`, or a name that a border may call otherwise.
    remedy : str or sequence of str
        What to do instead, in clauses of the same form.
    **fields
        Values in the rule; a border may have its own word for any of them, and rewords :class:`Named` ones and errors.
    """

    def __init__(self, rule: str, /, remedy: str | Sequence[str] = (), **fields: object) -> None:
        self.rule = rule
        self.remedy = (remedy,) if isinstance(remedy, str) else tuple(remedy)
        self.fields = fields
        self.places: tuple[str, ...] = ()
        self.wordings: tuple[Wording, ...] = ()
        self.notes: tuple[str, ...] = ()
        super().__init__(str(self))

    def within(self, *places: str) -> Self:
        """Return the error with where it happened put before it: a file, a step, a phase."""
        return self._changed(places=(*places, *self.places))

    def in_words(self, wording: Wording) -> Self:
        """Return the error as a border tells it."""
        return self._changed(wordings=(*self.wordings, wording))

    def as_kind(self, kind: "type[_Kind]") -> "_Kind":
        """Return the same error as one of another kind."""
        changed: _Kind = _rebuilt(kind, self.__dict__)
        return changed

    def with_note(self, note: str) -> Self:
        """Return the error with a line of its own behind it, a template; an empty one adds none."""
        return self._changed(notes=(*self.notes, note)) if note else self

    def with_remedy(self, remedy: str, **fields: object) -> Self:
        """Return the error with one more clause of what to do instead; an empty one adds none."""
        return self._changed(remedy=(*self.remedy, remedy), fields=self.fields | fields) if remedy else self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it as it is told here: what borders call things need not be picklable."""
        told = {"rule": braced(str(self)), "remedy": (), "fields": {}, "places": (), "wordings": (), "notes": ()}
        return _rebuilt, (type(self), self.__dict__ | told)

    def _changed(self, **attributes: Any) -> Self:
        changed: Self = _rebuilt(type(self), self.__dict__ | attributes)
        return changed

    def __str__(self) -> str:
        remedies = [told for clause in self.remedy if (told := self._told(clause, withholding=True)) is not None]
        message = ": ".join((*self.places, self._told(self.rule) or ""))
        message += f"; {', '.join(remedies)}" if remedies else ""
        return "\n".join((message, *filter(None, map(self._told, self.notes))))

    def _told(self, template: str, withholding: bool = False) -> str | None:
        """Fill a template; None where a border withholds one of its words."""
        try:
            return _Teller(self.wordings, withholding).vformat(template, (), self.fields)
        except _WithheldError:
            return None
        except ValueError:  # no template: a brace that stands for itself
            return template


_Kind = TypeVar("_Kind", bound=WordedError)


def _rebuilt(kind: Any, attributes: dict[str, Any]) -> Any:
    error = kind.__new__(kind)
    error.__dict__.update(attributes)
    error.args = (str(error),)
    return error


class _WithheldError(LookupError):
    """A word that cannot be said at some border."""


class _Teller(string.Formatter):
    """Fills a template with fields and with words, as several borders in turn call them."""

    def __init__(self, wordings: Sequence[Wording], withholding: bool) -> None:
        self._wordings, self._withholding = wordings, withholding

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._tell(field_name, kwargs), field_name  # a word may hold dots and brackets

    def _tell(self, word: str, fields: Mapping[str, Any]) -> Any:
        value = fields.get(word, word)
        if isinstance(value, Named):
            for wording in self._wordings:
                value = wording.of(value)
            return _named(value)
        if isinstance(value, WordedError):
            for wording in self._wordings:
                value = value.in_words(wording)
            return str(value)
        for i, wording in enumerate(self._wordings):
            name = wording.names.get(word, word)
            # A remedy that names what a reader cannot set would be no help: it is left out as a whole.
            if name is None and self._withholding:
                raise _WithheldError
            if name is not None and word in wording.names:
                # What one border calls a word is for the next border to name, and for no border before it.
                rest = _Teller(self._wordings[i + 1 :], self._withholding)
                return rest.vformat(name, (), {}) if "{" in name else rest._tell(name, {})
        return value


def _named(named: Named) -> str:
    index = named.index
    if not isinstance(index, Sequence):
        also = ([f"of {_named(named.owner)}"] if named.owner else []) + ([named.note] if named.note else [])
        return f"{named.noun} {index}" + (f" ({', '.join(also)})" if also else "")
    if len(index) == 1:
        return _named(replace(named, index=int(index[0])))
    shown = ", ".join(str(i) for i in index[:_SHOWN])
    return f"{named.noun}s {shown}" + (f", ... ({len(index)})" if len(index) > _SHOWN else "")


def braced(text: str) -> str:
    """Return a text as a template that leaves it unchanged."""
    return text.replace("{", "{{").replace("}", "}}")


def as_argument(name: str) -> str:
    """Return a template that names an argument; what follows the first word, such as an index, stays as it is."""
    word = name[: len(name) - len(name.lstrip(_WORD))]
    return f"{{{word}}}{braced(name[len(word) :])}"


def as_words(names: Iterable[str], between: str = ", ") -> str:
    """Return a template that lists names, each of which a border may call otherwise."""
    return between.join(f"{{{name}}}" for name in names)


def not_installed(user: str, package: str, extra: str) -> str:
    """Return the words of an error about a missing package: who needs it, and which extra of ours brings it."""
    # Double quotes, because the shell of Windows knows no single ones.
    return f'{user} needs {package}, which is not installed; install it with: pip install "seqbalancer[{extra}]"'


class UsageError(WordedError, ValueError):
    """A request that breaks a rule about several values: a sum, a choice, arguments that cannot be combined."""


class _ArgumentError(WordedError):
    """An argument with a value that breaks a rule: ``"{argument}[index] must {rule}, got {value}; remedy"``.

    Attributes
    ----------
    argument : str
        Its name, which a border may call otherwise; what follows the first word in it stays.
    value : object
        What was given, or how that is told; None where the rule says it all.
    index : int, str or None
        Which entry of it.
    rule : str
        The whole as a template; as a parameter, what must be so.
    """

    def __init__(
        self, argument: str, rule: str, value: object = None, index: int | str | None = None,
        remedy: str | Sequence[str] = (), **fields: object,
    ) -> None:  # fmt: skip
        self.argument, self.index, self.value = argument, index, value
        where = "" if index is None else f"[{index}]"
        got = "" if value is None else f", got {braced(str(value))}"
        super().__init__(f"{as_argument(argument)}{where} must {rule}{got}", remedy, **fields)


class ArgumentError(_ArgumentError, UsageError):
    """An argument with a value that breaks a rule."""


class ArgumentTypeError(_ArgumentError, TypeError):
    """An argument of the wrong kind."""


@dataclass(frozen=True, slots=True)
class InfeasibilityCertificate:
    """Why no assignment can satisfy the constraints, as data: `needed` exceeds `available`.

    Attributes
    ----------
    constraint : str
        The argument that cannot be met; several are joined by ``" + "``.
    items : sequence of int
        The items that prove it.
    groups : sequence of int
        The groups that these items have to share.
    needed, available : int
        What the items need of the groups (tokens, items, groups; the message says which), and what there is.
    quantity : int or None
        The column of ``sizes``, where the constraint is ``caps``.
    """

    constraint: str
    items: Sequence[int]
    groups: Sequence[int]
    needed: int
    available: int
    quantity: int | None = None

    @property
    def excess(self) -> int:
        """By how much the constraint is missed."""
        return self.needed - self.available


class SolverError(WordedError):
    """Base of every error about a problem rather than its arguments."""


class InfeasibleError(SolverError):
    """No assignment satisfies the constraints; the message carries the certificate.

    The message names the constraint, the items or groups that prove it cannot be met, and by how much.
    ``certificate`` holds the same as data (None where the message is all there is).
    """

    def __init__(
        self, rule: str, certificate: InfeasibilityCertificate | None = None, remedy: str | Sequence[str] = (),
        **fields: object,
    ) -> None:  # fmt: skip
        super().__init__(rule, remedy, **fields)
        self.certificate = certificate


class ContradictionError(InfeasibleError, ValueError):
    """Two arguments contradict each other, whatever the items cost: both a bad argument and infeasible."""


class CertificateError(SolverError):
    """A result does not hold what it claims; the message names the first violated rule, and is no template."""

    def __init__(self, message: str) -> None:
        super().__init__(braced(message))


class TimeLimitError(SolverError):
    """A search, or its budget, ended before any feasible assignment was found: there may be one."""
