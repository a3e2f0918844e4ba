"""What an enqueue accepts is what a claim gives back, alike on both databases."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import MetaData

from brooq_sa import JobBase, RawJob
from brooq_sa.jobs import decode
from brooq_sa.payload import INTEGERS
from conformance.samples import claim, put
from databases import Database

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Mood(enum.StrEnum):
    CALM = "calm"


class Point(NamedTuple):
    x: int
    y: int = 0


class Address(TypedDict, total=False):
    street: str
    number: int


@dataclasses.dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: str = "EUR"


@dataclasses.dataclass
class Basket(Generic[T]):
    items: list[T]


class Line(msgspec.Struct, frozen=True):
    article: str
    price: Money
    tags: tuple[str, ...] = ()


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Node(msgspec.Struct):
    value: int
    following: Optional[Node] = None  # noqa: UP045 - a forward reference within quotes


UserId = NewType("UserId", int)

EAST = timezone(timedelta(hours=5, minutes=30))

VALUES: dict[str, tuple[Any, list[Any]]] = {
    "bool": (bool, [True, False]),
    "int": (int, [0, -1, INTEGERS.start, INTEGERS.stop - 1]),
    "float": (float, [0.0, -0.0, 1.5, 0.1, 1e-300, 1.7976931348623157e308, 1e16, 123456789.123456789, 5e-324]),
    "float given int": (float, [3]),
    "str": (str, ["", "text", "ключ", "🔑", 'a\nb\tc\\d"e', "\x01\x7f\u2028", "null", "1", "{}"]),
    "bytes": (bytes, [b"", b"\x00\xff", bytes(range(256))]),
    "none": (None, [None]),
    "datetime": (datetime, [datetime(2031, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, 2, 3, 4, 567890, tzinfo=EAST)]),
    "date": (date, [date(1, 1, 1), date(9999, 12, 31)]),
    "time": (time, [time(1, 2, 3, 4), time(1, 2, tzinfo=UTC)]),
    "timedelta": (timedelta, [timedelta(0), timedelta(days=-1, microseconds=1), timedelta(weeks=5)]),
    "uuid": (uuid.UUID, [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)]),
    "decimal": (Decimal, [Decimal("0.10"), Decimal("1E+5"), Decimal("-12345678901234567890.123456789")]),
    "enum": (Colour, list(Colour)),
    "int enum": (Size, list(Size)),
    "str enum": (Mood, list(Mood)),
    "literal": (Literal["a", 2], ["a", 2]),
    "new type": (UserId, [UserId(7)]),
    "annotated": (Annotated[int, msgspec.Meta(ge=0, le=9)], [0, 9]),
    "optional": (int | None, [None, 5]),
    "union": (int | str | None, [1, "1", None]),
    "list": (list[int], [[], [1, 2]]),
    "sequence": (Sequence[str], [["a"]]),
    "tuple": (tuple[int, str], [(1, "a")]),
    "long tuple": (tuple[int, ...], [(), (1, 2, 3)]),
    "set": (set[int], [set(), {1, 2}]),
    "frozenset": (frozenset[str], [frozenset({"a", "b"})]),
    "dict": (dict[str, int], [{}, {"a": 1, "": 2, "ключ": 3}]),
    "mapping": (Mapping[str, float], [{"a": 1.5}]),
    "dict by uuid": (dict[uuid.UUID, int], [{uuid.UUID(int=5): 1}]),
    "dict by enum": (dict[Colour, int], [{Colour.RED: 1}]),
    "named tuple": (Point, [Point(1, 2)]),
    "typed dict": (Address, [{}, {"street": "a", "number": 1}]),
    "dataclass": (Money, [Money(Decimal("1.10"))]),
    "generic dataclass": (Basket[int], [Basket([1, 2])]),
    "struct": (Line, [Line("a", Money(Decimal(5)), ("x", "y"))]),
    "tagged union": (Cat | Dog, [Cat(9), Dog("Rex")]),
    "recursive": (Node, [Node(1, Node(2, Node(3)))]),
    "nested": (dict[str, list[Line | None]], [{"a": [None, Line("b", Money(Decimal(1)))]}]),
    "any": (Any, [None, True, 1, 1.5, "text", [1, [2, {"a": None}]], {"b": {"c": [1.5]}}]),
    "long text": (str, ["x" * 1_000_000]),
}


@pytest.mark.parametrize("kind, values", VALUES.values(), ids=VALUES)
def test_every_field_type_comes_back_as_it_went(db: Database, kind: Any, values: list[Any]) -> None:
    """A field of each supported type gives back the value and its type."""

    class Base(JobBase):
        metadata = MetaData()

    make: Any = type
    namespace = {"__annotations__": {"value": kind}, "__module__": __name__}
    carrier = make("Carrier", (Base,), namespace, topic="carrier")
    jobs = [carrier(value=value) for value in values]
    put(db, *jobs)
    back = [decode(Base.registry, job.topic, job.payload) for job in claim(db, {"carrier": 100})]
    assert back == jobs
    expected = float if kind is float else None
    assert [type(job.value) for job in back] == [expected or type(value) for value in values]


def test_floats_keep_their_sign_of_zero(sqlite: Database, pg: Database) -> None:
    """What jsonb makes of a number is equal to it; only the sign of a zero is lost there, which equality ignores."""
    for db in (sqlite, pg):
        put(db, RawJob("zero", -0.0))
        [job] = claim(db, {"zero": 1})
        assert decode({}, job.topic, job.payload).payload == 0.0  # type: ignore[arg-type]


RAW: dict[str, Any] = {
    "null": None,
    "true": True,
    "integer": -5,
    "float": 1.25,
    "text": "text",
    "list": [1, "a", None, [], {}],
    "object": {"a": {"b": [1, 2]}, "$bytes": 1, "more": 2},
    "empty bytes": b"",
    "bytes": bytes(range(256)),
    "no text": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("payload", RAW.values(), ids=RAW)
def test_raw_jobs_carry_json_and_bytes(db: Database, payload: Any) -> None:
    """A job without a class carries any JSON value, and bytes as bytes, one by one and in bulk (S3)."""
    put(db, RawJob("raw", payload), RawJob("raw", payload))
    put(db, RawJob("raw", payload))
    back = [decode({}, job.topic, job.payload) for job in claim(db, {"raw": 9})]  # type: ignore[arg-type]
    assert [type(job.payload) for job in back] == [type(payload)] * 3
    assert back == [RawJob("raw", payload)] * 3


@pytest.mark.parametrize("buffer", [bytearray(b"a\0b"), memoryview(b"a\0b")], ids=["bytearray", "memoryview"])
def test_other_buffers_come_back_as_bytes(db: Database, buffer: Any) -> None:
    """A bytearray or memoryview is carried as bytes."""
    put(db, RawJob("raw", buffer))
    [job] = claim(db, {"raw": 1})
    assert decode({}, job.topic, job.payload) == RawJob("raw", b"a\0b")  # type: ignore[arg-type]


FITTING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(INTEGERS.start, INTEGERS.stop - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=FITTING)
def test_any_json_value_comes_back_alike_from_both(pg: Database, sqlite: Database, payload: Any) -> None:
    """Whatever JSON an enqueue accepts, PostgreSQL and SQLite give the same back."""
    if isinstance(payload, dict) and payload.keys() == {"$bytes"}:
        payload = [payload]  # by itself this object stands for bytes
    for db in (pg, sqlite):
        put(db, RawJob("any", payload))
        [job] = claim(db, {"any": 1})
        assert decode({}, job.topic, job.payload).payload == payload  # type: ignore[arg-type]
