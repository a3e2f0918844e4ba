"""Declaring jobs, the way SQLAlchemy declares models.

::

    class AppJob(JobBase):                       # a base: one registry, one table
        metadata = Base.metadata                 # optional

    class SendReceipt(AppJob, topic="email.receipt", max_attempts=5, attempt_timeout="30s"):
        order_id: int
        to: str

        def run(self, claim: Claim) -> None: ...

A direct subclass of `JobBase` is a base. A subclass of a base is a job class: its annotated fields are keyword-only
constructor arguments, and its instances are frozen (it is made a dataclass). A job class with ``abstract=True`` has no
topic; it passes fields and options on.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, dataclass_transform, overload

import msgspec
from sqlalchemy import MetaData, Table

from .exc import DeclarationError, OptionError
from .kinds import Kind, KindOptions, Registry, check_topic, described, read_options
from .payload import RawCodec
from .schema import COMPANIONS, job_table

if TYPE_CHECKING:
    from .claims import AsyncClaim, Claim

J = TypeVar("J", bound="JobBase")

_RESERVED = frozenset({"metadata", "registry", "handler", "run"})
_VALUES = (dict, list, tuple, set, frozenset, str, bytes, bytearray, int, float)
"""What JSON is made of, and what it is made from."""

_BASE_SETTINGS = frozenset({"metadata", "schema", "table_name"})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field, dataclasses.Field))
class JobBase:
    """Subclass it once for a base, and the base once for each topic; see the module's documentation.

    Attributes:
        metadata: the MetaData that the base's table is in.
        registry: the base's kinds by topic.
        __table__: the table as SQLAlchemy Core.
        __kind__: a job class's kind: its topic, options and handler.
    """

    metadata: ClassVar[MetaData]
    registry: ClassVar[Registry]
    __table__: ClassVar[Table]
    __kind__: ClassVar[Kind]
    __options__: ClassVar[KindOptions] = KindOptions()

    if TYPE_CHECKING:

        def __init_subclass__(
            cls,
            *,
            topic: str = ...,
            max_attempts: int | None = ...,
            attempt_timeout: timedelta | str | None = ...,
            max_execution_timeout: timedelta | str | None = ...,
            backoff_base: timedelta | str | None = ...,
            backoff_max: timedelta | str | None = ...,
            priority: int = ...,
            max_crashes: int | None = ...,
            conflict_reruns: int = ...,
            isolation: Literal["thread", "process"] = ...,
            memory_limit: int | str | None = ...,
            abstract: bool = ...,
            metadata: MetaData = ...,
            schema: str | None = ...,
            table_name: str = ...,
        ) -> None: ...
    else:

        def __init_subclass__(cls, **options: Any) -> None:
            super().__init_subclass__()
            try:
                if JobBase in cls.__bases__:
                    _make_base(cls, options)
                else:
                    _make_job_class(cls, options)
            except OptionError as error:
                raise DeclarationError(f"Job class {described(cls)}: {error}") from None

    @overload
    @classmethod
    def handler(
        cls: type[J], function: Callable[[J, AsyncClaim], Coroutine[Any, Any, None]], /
    ) -> Callable[[J, AsyncClaim], Coroutine[Any, Any, None]]: ...
    @overload
    @classmethod
    def handler(cls: type[J], function: Callable[[J, Claim], None], /) -> Callable[[J, Claim], None]: ...
    @classmethod
    def handler(cls: type[J], function: Callable[[J, Any], Any], /) -> Callable[[J, Any], Any]:
        """Register the function that runs this class's jobs, apart from the declaration.

        Raises:
            DeclarationError: the class has no topic, or has a handler already.
        """
        kind = cls.__dict__.get("__kind__")
        if kind is None:
            raise DeclarationError(f"Job class {described(cls)} has no topic of its own, so nothing to handle.")
        if not callable(function):
            raise DeclarationError(f"The handler of topic {kind.topic!r} is {function!r}, which cannot be called.")
        if kind.handler is not None:
            raise DeclarationError(
                f"Topic {kind.topic!r} has a handler already: {_named(kind.handler)}. Remove it, or {_named(function)}."
            )
        _refuse_unfit_handler(kind.topic, function)
        kind.handler = function
        return function


def _refuse_unfit_handler(topic: str, function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C, say, and so not to be looked into
    try:
        signature.bind(None, None)
    except TypeError:
        raise DeclarationError(
            f"The handler of topic {topic!r} is {_named(function)}{signature}, which cannot be called with a job and a"
            " claim. Write it 'def run(self, claim)', or 'def handle(job, claim)'."
        ) from None


def _named(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def _make_base(cls: type[JobBase], settings: dict[str, Any]) -> None:
    if unknown := settings.keys() - _BASE_SETTINGS:
        raise OptionError(
            f"{min(unknown)!r} is no setting of a base. A direct subclass of JobBase is a base and takes metadata=,"
            " schema= and table_name=; job classes subclass the base."
        )

    def setting(name: str, default: Any) -> Any:
        return settings.get(name, cls.__dict__.get(name, default))

    metadata = setting("metadata", None)
    cls.metadata = MetaData() if metadata is None else metadata
    if not isinstance(cls.metadata, MetaData):
        raise OptionError(f"metadata is {metadata!r}. Give a sqlalchemy.MetaData, such as Base.metadata.")
    _refuse_values(cls)
    _refuse_reserved_names(cls, _RESERVED | _BASE_SETTINGS)
    _refuse_mutable_defaults(cls)
    _make_dataclass(cls)  # fields of a base are fields of all its job classes
    cls.registry = Registry()
    cls.__table__ = _table_in(cls.metadata, setting("table_name", "job"), setting("schema", None))


def _table_in(metadata: MetaData, name: str, schema: str | None) -> Table:
    """The job table of this name in `metadata`, which several bases may share."""
    schema = schema or metadata.schema
    existing = metadata.tables.get(_key(name, schema))
    if existing is None:
        for purpose in COMPANIONS:
            _refuse_taken(metadata, f"{name}_{purpose}", schema)
        return job_table(metadata, name, schema)
    if not existing.info.get("brooq"):
        raise _taken(existing)
    return existing


def _refuse_taken(metadata: MetaData, name: str, schema: str | None) -> None:
    if (existing := metadata.tables.get(_key(name, schema))) is not None:
        raise _taken(existing)


def _taken(existing: Table) -> OptionError:
    return OptionError(
        f"metadata has a table {existing.fullname!r} already. Give the base another table_name= or schema=."
    )


def _key(name: str, schema: str | None) -> str:
    return f"{schema}.{name}" if schema else name


@cache
def default_table() -> Table:
    """The table of jobs that belong to no base: ``job`` in the connection's default schema."""
    return job_table(MetaData())


def _make_job_class(cls: type[JobBase], options: dict[str, Any]) -> None:
    topic, abstract = options.pop("topic", None), options.pop("abstract", False)
    cls.__options__ = read_options(options, cls.__options__)
    _refuse_values(cls)
    _refuse_reserved_names(cls)
    _refuse_mutable_defaults(cls)
    _make_dataclass(cls)
    if abstract:
        if topic is not None:
            raise OptionError(f"It is abstract and has topic {topic!r}. Leave one of them out.")
        return
    if topic is None:
        raise OptionError("It has no topic. Give it topic='email.send', or abstract=True if others derive from it.")
    kind = Kind(check_topic(topic), cls, cls.__options__)
    if callable(run := getattr(cls, "run", None)):
        _refuse_unfit_handler(kind.topic, run)
        kind.handler = run
    _refuse_unfit_fields(cls, kind)
    cls.registry.add(kind)
    cls.__kind__ = kind


def _refuse_values(cls: type[JobBase]) -> None:
    for kind in _VALUES:
        if issubclass(cls, kind):
            raise OptionError(
                f"It derives from {kind.__name__}, so its payload would be that {kind.__name__}, without the fields."
                f" Give it a field of type {kind.__name__}."
            )


def _refuse_mutable_defaults(cls: type[JobBase]) -> None:
    for name in inspect.get_annotations(cls):
        default = cls.__dict__.get(name)
        if isinstance(default, list | dict | set | bytearray):
            raise OptionError(
                f"Field {name!r} has a mutable default, {default!r}, which all jobs would share. Write"
                f" {name} = dataclasses.field(default_factory={type(default).__name__})."
            )


def _refuse_reserved_names(cls: type[JobBase], reserved: frozenset[str] = _RESERVED) -> None:
    for name, annotation in inspect.get_annotations(cls).items():
        is_field = "ClassVar" not in str(annotation)
        if is_field and (name in reserved or name.startswith("__")):
            raise OptionError(
                f"A field cannot be named {name!r}: job classes have an attribute of that name. Name it otherwise, or"
                " leave the annotation out if the attribute is meant."
            )


def _make_dataclass(cls: type[JobBase]) -> None:
    try:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    except (TypeError, ValueError) as error:
        raise OptionError(str(error)) from error


def _refuse_unfit_fields(cls: type[JobBase], kind: Kind) -> None:
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            _refuse_unfit_field(field.name, hints[field.name])
        _ = kind.codec
    except NameError:
        pass  # a type defined further down; the codec is made, and checks, at first use
    except TypeError as error:
        raise OptionError(str(error)) from error


def _refuse_unfit_field(name: str, hint: Any) -> None:
    try:
        problem = _unfit(msgspec.inspect.type_info(hint), set())
    except TypeError as error:
        problem = str(error)
    if problem:
        raise OptionError(
            f"Field {name!r} has a type that no payload can carry: {problem}. Fields hold scalars, datetimes, UUID,"
            " Decimal, Enum, bytes, dataclasses, msgspec Structs, and containers and unions of them."
        )


def _unfit(info: Any, seen: set[Any]) -> str | None:
    """What in a type cannot be carried, if anything: a class that msgspec does not know, keys that are not strings."""
    if isinstance(info, msgspec.inspect.CustomType):
        return f"{info.cls!r} is unknown to msgspec"
    if isinstance(info, msgspec.inspect.DictType) and isinstance(
        info.key_type, msgspec.inspect.IntType | msgspec.inspect.FloatType | msgspec.inspect.BoolType
    ):
        return "a dict whose keys are not strings, which JSON does not have"
    if (owner := getattr(info, "cls", None)) is not None:
        if owner in seen:
            return None
        seen.add(owner)
    for inner in _inner_types(info):
        if problem := _unfit(inner, seen):
            return problem
    return None


def _inner_types(info: Any) -> list[Any]:
    inner = [getattr(info, name, None) for name in ("type", "item_type", "key_type", "value_type")]
    inner += [*getattr(info, "item_types", ()), *getattr(info, "types", ())]
    inner += [field.type for field in getattr(info, "fields", ())]
    return [each for each in inner if isinstance(each, msgspec.inspect.Type)]


class RawJob:
    """A job of a topic without a class.

    Args:
        topic: lowercase words joined by dots or dashes.
        payload: a JSON value, or bytes.
        base: whose table it goes to; by default ``job`` in the connection's default schema, and in ``claim.chain`` the
            table of the claim's own job.

    Raises:
        OptionError: the topic is malformed.
    """

    __slots__ = ("payload", "table", "topic")

    def __init__(self, topic: str, payload: Any, base: type[JobBase] | None = None) -> None:
        self.topic = check_topic(topic)
        self.payload = payload
        self.table: Table | None = None if base is None else base.__table__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RawJob) and (self.topic, self.payload) == (other.topic, other.payload)

    def __hash__(self) -> int:
        return hash(self.topic)

    def __repr__(self) -> str:
        return f"RawJob({self.topic!r}, {self.payload!r:.200})"


@dataclasses.dataclass(frozen=True, slots=True)
class NewJob:
    """An item of `enqueue_many` with options of its own.

    Attributes:
        job: what to enqueue.
        key: at most one job lives under a topic and key; "" and None are no key.
        available_at: an aware datetime; not before it is the job run.
        delay: the same, counted from now; a timedelta or a string with a unit.
        priority: the smaller goes first; None takes the kind's.
    """

    job: JobBase | RawJob
    key: str | None = None
    available_at: datetime | None = None
    delay: timedelta | str | None = None
    priority: int | None = None


def table_of(job: object, default: Table | None = None) -> Table:
    """The table that a job goes to.

    Args:
        default: that of a RawJob without a base; None is `default_table`.

    Raises:
        OptionError: it is not a job.
    """
    if isinstance(job, RawJob):
        if job.table is not None:
            return job.table
        return default_table() if default is None else default
    if isinstance(job, JobBase) and hasattr(type(job), "__kind__"):
        return job.__table__
    raise OptionError(f"{job!r:.200} is not a job. Give an instance of a job class with a topic, or a RawJob.")


def encode(job: JobBase | RawJob) -> tuple[str, str, int]:
    """A job's topic, payload as JSON text, and the priority of its kind.

    Raises:
        PayloadError: a value in it cannot be carried.
    """
    if isinstance(job, RawJob):
        return job.topic, RawCodec(job.topic).encode(job.payload), 0
    kind = job.__kind__
    return kind.topic, kind.codec.encode(job), kind.options.priority


def decode(registry: Registry, topic: str, text: str) -> Any:
    """The job of a stored payload: of the topic's class, or a RawJob if it has none in `registry`."""
    kind = registry.get(topic)
    return RawJob(topic, RawCodec(topic).decode(text)) if kind is None else kind.codec.decode(text)
