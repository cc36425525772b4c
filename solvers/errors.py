"""The errors that solvers raise, and how an error is told in the words of whoever reads it.

An error here is data: a rule in words, and the values that stand in it. A solver speaks of items, groups and its own
arguments; a trainer of samples and ranks; a log of rows; the command line of options. Each of these borders has a
:class:`Wording`, and :meth:`WordedError.in_words` tells the same error in it, without reading the message.
"""

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CertificateError",
    "ContradictionError",
    "InfeasibilityCertificate",
    "InfeasibleError",
    "Named",
    "SolverError",
    "TimeLimitError",
    "UsageError",
    "WordedError",
    "Wording",
    "braced",
]

_SHOWN = 5  # of many items


@dataclass(frozen=True, slots=True)
class Named:
    """One thing of a kind, or several: ``Named("item", 3)`` is told as "item 3", or as "row 1003" at another border.

    Attributes
    ----------
    noun : str
        In the singular.
    index : int or sequence of int
    owner : Named or None
        What it is part of.
    note : str
        What else it is known as.
    """

    noun: str
    index: int | Sequence[int]
    owner: "Named | None" = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Wording:
    """What one border calls things.

    Attributes
    ----------
    names : mapping of str to str or None
        Of an argument, a noun or a setting such as ``"over_long='drop'"``: its name here, in which words in braces are
        for the next border to name. None: what cannot be said here, so that a remedy that needs it is left out.
    numbers : mapping of str to function
        Of a noun, as it is called here: from an index to the number by which things are called here.
    owners : mapping of str to (str, function)
        Of a noun: the noun of what such a thing is part of, and from its index to that one's.
    notes : mapping of str to function
        Of a noun: from an index to what such a thing is known as besides.
    """

    names: Mapping[str, str | None] = field(default_factory=dict)
    numbers: Mapping[str, Callable[[int], int]] = field(default_factory=dict)
    owners: Mapping[str, tuple[str, Callable[[int], int]]] = field(default_factory=dict)
    notes: Mapping[str, Callable[[int], str]] = field(default_factory=dict)

    def of(self, named: Named) -> Named:
        """Return what a thing is called here."""
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
        Values that stand in the rule; :class:`Named` ones are called as each border calls them.
    """

    def __init__(self, rule: str, /, remedy: str | Sequence[str] = (), **fields: object) -> None:
        super().__init__(rule)
        self.rule = rule
        self.remedy = (remedy,) if isinstance(remedy, str) else tuple(remedy)
        self.fields = fields
        self.places: tuple[str, ...] = ()
        self.wordings: tuple[Wording, ...] = ()
        self.notes: tuple[str, ...] = ()

    def within(self, *places: str) -> Self:
        """Return the error with where it happened put before it: a file, a step, a phase."""
        return self._changed(places=(*places, *self.places))

    def in_words(self, wording: Wording) -> Self:
        """Return the error as a border tells it."""
        return self._changed(wordings=(*self.wordings, wording))

    def as_kind(self, kind: "type[_Kind]") -> "_Kind":
        """Return the same error as one of another kind."""
        return _rebuilt(kind, self.args, self.__dict__)

    def with_remedy(self, remedy: str) -> Self:
        """Return the error with one more clause of what to do instead; an empty one adds none."""
        return self._changed(remedy=(*self.remedy, remedy)) if remedy else self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it as it is told here: what borders call things need not be picklable."""
        told = {"rule": braced(str(self)), "remedy": (), "fields": {}, "places": (), "wordings": (), "notes": ()}
        return _rebuilt, (type(self), self.args, self.__dict__ | told)

    def with_note(self, note: str) -> Self:
        """Return the error with a line of its own behind it, a template; an empty one adds none."""
        return self._changed(notes=(*self.notes, note)) if note else self

    def _changed(self, **attributes: Any) -> Self:
        return _rebuilt(type(self), self.args, self.__dict__ | attributes)

    def __str__(self) -> str:
        remedies = [told for clause in self.remedy if (told := self._told(clause)) is not None]
        message = ": ".join((*self.places, self._told(self.rule) or ""))
        message += f"; {', '.join(remedies)}" if remedies else ""
        return "\n".join((message, *filter(None, map(self._told, self.notes))))

    def _told(self, template: str) -> str | None:
        """Fill a template; None where a border withholds one of its words."""
        try:
            return _Teller(self.wordings).vformat(template, (), self.fields)
        except _WithheldError:
            return None
        except ValueError:  # no template: a brace that stands for itself
            return template


_Kind = TypeVar("_Kind", bound=WordedError)


def _rebuilt(kind: type[_Kind], args: tuple[Any, ...], attributes: dict[str, Any]) -> _Kind:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class _WithheldError(LookupError):
    """A word that cannot be said at some border."""


class _Teller(string.Formatter):
    """Fills a template with fields and with words, as several borders in turn call them."""

    def __init__(self, wordings: Sequence[Wording]) -> None:
        self._wordings = wordings

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        found = kwargs.get(str(key), key)
        if isinstance(found, Named):
            for wording in self._wordings:
                found = wording.of(found)
            return _named(found)
        for i, wording in enumerate(self._wordings):
            if key in wording.names:
                word = wording.names[str(key)]
                if word is None:
                    raise _WithheldError
                return _Teller(self._wordings[i + 1 :]).vformat(word, (), {}) if "{" in word else self._renamed(word, i)
        return found

    def _renamed(self, word: str, at: int) -> Any:
        return _Teller(self._wordings[at + 1 :]).get_value(word, (), {})

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.get_value(field_name, args, kwargs), field_name  # a word may hold dots and brackets


def _named(named: Named) -> str:
    index = named.index
    if not isinstance(index, Sequence):
        also = ([f"of {_named(named.owner)}"] if named.owner else []) + ([named.note] if named.note else [])
        return f"{named.noun} {index}" + (f" ({', '.join(also)})" if also else "")
    if len(index) == 1:
        return _named(replace(named, index=int(index[0])))
    shown = ", ".join(str(i) for i in index[:_SHOWN])
    return f"{named.noun}s {shown}" + (f", ... ({len(index)})" if len(index) > _SHOWN else "")


class UsageError(WordedError, ValueError):
    """Arguments or values that cannot be used, or not together."""


class _ArgumentError(WordedError):
    """An argument with a value that breaks a rule: ``"{argument}[index] must {rule}, got {value}; remedy"``.

    Attributes
    ----------
    argument : str
        Its name.
    rule : str
        What must be so; a template.
    value : object
        What was given.
    index : int, str or None
        Which entry of it.
    remedy : tuple of str
    """

    def __init__(
        self, argument: str, rule: str, value: object, index: int | str | None = None,
        remedy: str | Sequence[str] = (), **fields: object,
    ) -> None:  # fmt: skip
        where = "" if index is None else f"[{index}]"
        super().__init__(rule, remedy, **fields)
        self.args = (argument, rule, value)
        self.argument, self.index, self.value = argument, index, value
        self.rule = f"{{{argument}}}{where} must {rule}, got {braced(str(value))}"


class ArgumentError(_ArgumentError, UsageError):
    """An argument with a value that breaks a rule."""


class ArgumentTypeError(_ArgumentError, TypeError):
    """An argument of the wrong kind."""


def braced(text: str) -> str:
    """Return a text as a template in which it stands as it is."""
    return text.replace("{", "{{").replace("}", "}}")


@dataclass(frozen=True, slots=True)
class InfeasibilityCertificate:
    """Why no assignment can satisfy the constraints, as data: `needed` exceeds `available`.

    Attributes
    ----------
    constraint : str
        The argument of :func:`solvers.partition` that cannot be met; several are joined by ``" + "``.
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
    """Base of every error that is about a problem rather than about its arguments."""


class InfeasibleError(SolverError):
    """No assignment satisfies the constraints; the message carries the certificate.

    The message names the constraint, the items or groups that prove it cannot be met, and by how much.
    ``certificate`` holds the same as data (None where the message is all there is).
    """

    def __init__(
        self, rule: str, /, certificate: InfeasibilityCertificate | None = None, remedy: str | Sequence[str] = (),
        **fields: object,
    ) -> None:  # fmt: skip
        super().__init__(rule, remedy, **fields)
        self.certificate = certificate


class ContradictionError(InfeasibleError, ValueError):
    """Two arguments contradict each other, whatever the items cost: as much a bad argument as infeasible."""


class CertificateError(SolverError):
    """A result does not hold what it claims; the message names the first violated rule."""


class TimeLimitError(SolverError):
    """The budget ended before any feasible assignment was found."""
