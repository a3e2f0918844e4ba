"""The tables of the demonstration, declared as any application would."""

from __future__ import annotations

import uuid

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

PREFIX = "brooq_demo_"
"""Of every table's name, so that a database of the user's keeps apart what is its own."""


class Base(DeclarativeBase):
    pass


class Module(Base):
    """A module of the standard library."""

    __tablename__ = f"{PREFIX}module"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class Parsed(Base):
    """What a job found in a module: its effect.

    Nothing here is unique, so that an effect which was written twice would show.
    """

    __tablename__ = f"{PREFIX}parsed"

    id: Mapped[int] = mapped_column(primary_key=True)
    module_id: Mapped[int] = mapped_column(ForeignKey(Module.id))
    lines: Mapped[int]
    functions: Mapped[int]
    classes: Mapped[int]
    imports: Mapped[int]
    worker: Mapped[str]
    attempt: Mapped[int]


class LeftBehind(Base):
    """A job that a worker held when it was killed."""

    __tablename__ = f"{PREFIX}left_behind"

    job_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    worker: Mapped[str]
