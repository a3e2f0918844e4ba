"""What a check says."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any


class Level(enum.StrEnum):
    """How much it matters."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAULT = "fault"

    @property
    def is_trouble(self) -> bool:
        """Whether something ought to be done."""
        return self in (Level.WARNING, Level.FAULT)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        what: it is.
        why: it matters.
        cure: what to do; empty where there is nothing to do.
        facts: what the sentence was made of; JSON can carry it.
        check: the name of the check that found it.
    """

    level: Level
    what: str
    why: str = ""
    cure: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    check: str = ""

    def plain(self) -> dict[str, Any]:
        """The finding as JSON has it."""
        names = ("check", "level", "what", "why", "cure", "facts")
        return {name: getattr(self, name) for name in names} | {"level": str(self.level)}


def note(what: str, why: str = "", cure: str = "", **facts: Any) -> Finding:
    return Finding(Level.NOTE, what, why, cure, facts)


def warning(what: str, why: str, cure: str, **facts: Any) -> Finding:
    return Finding(Level.WARNING, what, why, cure, facts)


def fault(what: str, why: str, cure: str, **facts: Any) -> Finding:
    return Finding(Level.FAULT, what, why, cure, facts)
