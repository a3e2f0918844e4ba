"""The codec is strict both ways, and says where in the payload a fault is."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import enum
import json
import math
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brooq_sa import PayloadError, payload
from brooq_sa.payload import BYTES_KEY, INTEGERS, MAX_BYTES, MAX_DEPTH, Codec, RawCodec


@dataclasses.dataclass
class Line:
    article: str
    price: Decimal
    count: int = 1


@dataclasses.dataclass
class Order:
    id: int
    lines: list[Line]
    note: str | None = None
    extra: Any = None


class Strict:
    """A value that msgspec makes through a constructor of the user's."""


@dataclasses.dataclass
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ValueError(f"{self.number} is not positive")


ORDERS = Codec("order", Order)
ANY = Codec("any", Any)
RAW = RawCodec("raw")


def nested(depth: int) -> Any:
    """A list within a list, that many deep."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "text, path, rule",
    [
        ("null", "$", "Expected `object`, got `null`"),
        ("[]", "$", "Expected `object`, got `array`"),
        ('{"lines": []}', "$", "Object missing required field `id`"),
        ('{"id": "1", "lines": []}', "$.id", "Expected `int`, got `str`"),
        ('{"id": 1.5, "lines": []}', "$.id", "Expected `int`, got `float`"),
        ('{"id": 1, "lines": [{"article": "a"}]}', "$.lines[0]", "Object missing required field `price`"),
        ('{"id": 1, "lines": [{"article": "a", "price": "x"}]}', "$.lines[0].price", "Invalid decimal"),
        ('{"id": 1, "lines": null}', "$.lines", "Expected `array`, got `null`"),
        ("{", "$", "not readable as JSON"),
        ("", "$", "not readable as JSON"),
    ],
)
def test_a_stored_payload_that_does_not_fit_says_where(text: str, path: str, rule: str) -> None:
    """Reading names the topic, the place and the rule; nothing is converted silently."""
    with pytest.raises(PayloadError) as caught:
        ORDERS.decode(text)
    assert (caught.value.topic, caught.value.path) == ("order", path)
    assert rule in caught.value.rule
    assert str(caught.value) == f"Payload of topic 'order': {caught.value.rule} - at `{path}`"


@pytest.mark.parametrize(
    "order, path",
    [
        (Order("1", []), "$.id"),  # type: ignore[arg-type]
        (Order(1, [Line("a", Decimal(1), "2")]), "$.lines[0].count"),  # type: ignore[arg-type]
        (Order(2**64, []), "$.id"),
        (Order(1, [Line("a\0", Decimal(1))]), "$.lines[0].article"),
        (Order(1, [], note="\ud800"), "$.note"),
        (Order(1, [], extra={"a": [1, math.nan]}), "$.extra.a[1]"),
        (Order(1, [], extra={"a": {1, 2}}), "$.extra.a"),
        (Order(1, [], extra={"deep": {1: 2}}), "$.extra.deep"),
        (Order(1, [], extra=[datetime(2031, 1, 1)]), "$.extra[0]"),  # noqa: DTZ001 - naive on purpose
        (Order(1, [], extra=Decimal(1)), "$.extra"),
        (Order(1, [], extra=Line("a", Decimal(1))), "$.extra"),
    ],
    ids=range(11),
)
def test_a_value_that_does_not_fit_says_where(order: Order, path: str) -> None:
    """Writing names the place of what the field's type, JSON or a database cannot hold, or would give back changed."""
    with pytest.raises(PayloadError) as caught:
        ORDERS.encode(order)
    assert (caught.value.topic, caught.value.path) == ("order", path)


def test_what_is_neither_json_nor_known_is_refused() -> None:
    """An object that msgspec cannot encode is named by its type."""
    with pytest.raises(PayloadError, match="Strict"):
        ANY.encode([Strict()])


def test_nesting_has_a_limit() -> None:
    """The deepest payload that is accepted can be read again; one level more is refused, and so is a cycle."""
    assert ANY.decode(ANY.encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    cycle: list[Any] = []
    cycle.append(cycle)
    for value in (nested(MAX_DEPTH + 1), nested(5_000), cycle):
        with pytest.raises(PayloadError, match=f"nested deeper than {MAX_DEPTH} levels"):
            ANY.encode(value)


def test_size_has_a_limit() -> None:
    """The longest payload is accepted, one byte more is refused, counted in UTF-8 once it is JSON."""
    assert len(ANY.encode("x" * (MAX_BYTES - 2))) == MAX_BYTES
    with pytest.raises(PayloadError, match=f"{MAX_BYTES:,}"):
        ANY.encode("x" * (MAX_BYTES - 1))


def test_size_is_counted_in_bytes() -> None:
    """Text beyond ASCII counts by its bytes."""
    with pytest.raises(PayloadError, match=f"{MAX_BYTES:,}"):
        ANY.encode("ж" * (MAX_BYTES // 2))


@pytest.mark.parametrize("value", [INTEGERS.start, INTEGERS.stop - 1, 0, 2**53 + 1])
def test_integers_are_exact(value: int) -> None:
    """Every integer within 64 bits, signed or not, comes back as it was."""
    assert ANY.decode(ANY.encode(value)) == value


@pytest.mark.parametrize("value", [1e16, -1e16, 5.052076548627561e16, 1e300, 1.7976931348623157e308, 1e-300, 0.1])
def test_large_floats_are_written_without_an_exponent(value: float) -> None:
    """No reader takes a float for an integer, as `jsonb` does with 1e16; each comes back exactly, nested ones too."""
    text = ANY.encode({"a": [value, "1e5"]})
    assert "e+" not in text
    assert ANY.decode(text) == {"a": [value, "1e5"]}
    if abs(value) >= 1e16:
        assert text.endswith('.0,"1e5"]}')
    assert type(json.loads(text)["a"][0]) is float


def test_sets_become_lists_only_where_the_type_says_so() -> None:
    """A set in a field of sets is carried; in an untyped field it would come back as a list, and is refused."""
    numbers = Codec("set", set[int])
    assert numbers.decode(numbers.encode({3, 1})) == {1, 3}
    with pytest.raises(PayloadError, match="would come back as"):
        ANY.encode({3, 1})


def test_aware_times_are_kept() -> None:
    """An aware datetime keeps its instant; a time of day needs no zone."""
    moments = Codec("moments", list[datetime | None])
    moment = datetime(2031, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
    assert moments.decode(moments.encode([moment, None])) == [moment, None]
    clock = Codec("clock", time)
    assert clock.decode(clock.encode(time(1, 2, 3))) == time(1, 2, 3)


def test_a_constructor_that_refuses_is_a_payload_fault() -> None:
    """A ValueError from the user's own checks names the place and the reason, when written and when read."""
    codec = Codec("positive", list[Positive])
    with pytest.raises(PayloadError, match="-5 is not positive") as caught:
        codec.decode('[{"number": 1}, {"number": -5}]')
    assert caught.value.path == "$[1]"
    changed = Positive(5)
    changed.number = -1
    with pytest.raises(PayloadError, match="-1 is not positive"):
        codec.encode([changed])


def test_a_constructor_that_breaks_passes_through() -> None:
    """Other errors of the user's own code are theirs, and are not dressed up."""

    @dataclasses.dataclass
    class Broken:
        number: int

        def __post_init__(self) -> None:
            raise LookupError("no such number")

    with pytest.raises(LookupError, match="no such number"):
        Codec("broken", Broken).decode('{"number": 1}')


@pytest.mark.parametrize("value", [b"", b"\x00\xff", bytearray(b"ab"), memoryview(b"ab")], ids=range(4))
def test_raw_bytes_are_wrapped(value: Any) -> None:
    """Bytes are stored as an object with one key, in base64, and read as bytes."""
    text = RAW.encode(value)
    assert json.loads(text) == {BYTES_KEY: base64.b64encode(value).decode()}
    assert RAW.decode(text) == bytes(value)


def test_an_object_that_looks_like_bytes_is_refused() -> None:
    """What would come back as bytes cannot be enqueued as an object."""
    with pytest.raises(PayloadError, match="stands for bytes"):
        RAW.encode({BYTES_KEY: "YQ=="})
    assert RAW.decode(RAW.encode({BYTES_KEY: "YQ==", "more": 1})) == {BYTES_KEY: "YQ==", "more": 1}
    assert RAW.decode(RAW.encode([{BYTES_KEY: "YQ=="}])) == [{BYTES_KEY: "YQ=="}]


@pytest.mark.parametrize(
    "stored", ['{"$bytes": "not base64!"}', '{"$bytes": 5}', '{"$bytes": null}', '{"$bytes": "ж"}']
)
def test_spoiled_bytes_are_a_payload_fault(stored: str) -> None:
    """A hand-written wrapper that holds no base64 is a fault of that payload."""
    with pytest.raises(PayloadError, match="not base64") as caught:
        RAW.decode(stored)
    assert caught.value.path == f"$.{BYTES_KEY}"


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=5)
    | st.datetimes()
    | st.decimals(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        | st.frozensets(st.integers(), max_size=3)
    ),
    max_leaves=15,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(value=ANYTHING)
def test_a_value_is_refused_or_comes_back(value: Any) -> None:
    """Whatever is given is either a PayloadError or valid JSON that reads as an equal value."""
    try:
        text = RAW.encode(value)
    except PayloadError:
        return
    json.loads(text)
    text.encode()
    assert RAW.decode(text) == value


@settings(max_examples=200, deadline=None, derandomize=True)
@given(text=st.text(max_size=40) | ANYTHING.map(lambda value: json.dumps(value, default=str, skipkeys=True)))
def test_any_stored_text_is_read_or_is_a_payload_fault(text: str) -> None:
    """No text in the column makes a reader raise anything but PayloadError."""
    for codec in (ORDERS, ANY, RAW):
        with contextlib.suppress(PayloadError):
            codec.decode(text)


def test_structs_are_compared_field_by_field() -> None:
    """The fault in a Struct inside a list inside a dict is found at its path."""

    class Box(msgspec.Struct):
        inside: Any

    boxes = Codec("boxes", dict[str, list[Box]])
    with pytest.raises(PayloadError) as caught:
        boxes.encode({"a": [Box(1), Box(frozenset({1}))]})
    assert caught.value.path == "$.a[1].inside"


@dataclasses.dataclass
class Plain:
    text: str
    number: int = 0
    flag: bool | None = None


PLAIN = Codec("plain", Plain)


@pytest.mark.parametrize(
    "value, path",
    [
        (Plain("\0"), r"$.text"),
        (Plain("\ud800"), r"$.text"),
        (Plain("x" * MAX_BYTES), r"$"),
        (Plain(1), r"$.text"),  # type: ignore[arg-type]
        (Plain("", True), r"$.number"),
        (Plain("", 1.0), r"$.number"),  # type: ignore[arg-type]
        (Plain("", INTEGERS.stop), r"$.number"),
        (Plain("", INTEGERS.start - 1), r"$.number"),
        (Plain("", 0, 1), r"$.flag"),  # type: ignore[arg-type]
    ],
)
def test_a_class_of_plain_fields_is_as_strict(value: Plain, path: str) -> None:
    """Classes whose fields are plain are encoded by a shorter road, and refused for the same reasons (I5)."""
    assert PLAIN._plain is not None
    with pytest.raises(PayloadError) as caught:
        PLAIN.encode(value)
    assert caught.value.path == path


class Level(enum.IntEnum):
    HIGH = 7


@dataclasses.dataclass
class Numbered:
    number: int | str


@pytest.mark.parametrize("value", [Level.HIGH, "seven", True, 7])
def test_numbers_that_are_no_plain_int(value: Any) -> None:
    """Where a field may hold an integer, whatever else is in it is dealt with at once."""
    codec = Codec("numbered", Numbered)
    assert codec._plain is not None
    if value is True:
        with pytest.raises(PayloadError):
            codec.encode(Numbered(value))
    else:
        assert codec.decode(codec.encode(Numbered(value))).number == value


@given(st.text(), st.integers(INTEGERS.start, INTEGERS.stop - 1), st.none() | st.booleans())
def test_both_roads_give_the_same_text(text: str, number: int, flag: bool | None) -> None:
    """What the shorter road encodes is what the longer one would, and comes back as it was (I5)."""
    value = Plain(text, number, flag)
    long = Codec("plain", Plain)
    long._plain = None
    try:
        expected = long.encode(value)
    except PayloadError:
        with pytest.raises(PayloadError):
            PLAIN.encode(value)
    else:
        assert PLAIN.encode(value) == expected
        assert PLAIN.decode(expected) == value


@pytest.mark.parametrize("kind", [Line, Order, Positive, Any, dict, list[int]])
def test_the_shorter_road_is_for_plain_fields_alone(kind: Any) -> None:
    """A field of any other type keeps the class on the longer road."""
    assert (Codec("topic", kind)._plain is not None) is (kind is Positive)


@dataclasses.dataclass
class Nothing: ...


@dataclasses.dataclass
class Short:
    code: Annotated[str, msgspec.Meta(max_length=3)]


@dataclasses.dataclass
class Lowered:
    text: str

    def __post_init__(self) -> None:
        self.text = self.text.lower()


@dataclasses.dataclass
class Counted:
    text: str
    length: int = dataclasses.field(init=False, default=0)


@pytest.mark.parametrize("value", [Nothing(), Short("abc"), Lowered("ABC"), Positive(7)])
def test_plain_values_come_back(value: Any) -> None:
    """However few fields a class has, and whatever it does when it is made (I5)."""
    codec = Codec("topic", type(value))
    assert codec._plain is not None
    assert codec.decode(codec.encode(value)) == value


def _changed(value: Any, field: str, to: object) -> Any:
    setattr(value, field, to)
    return value


@pytest.mark.parametrize(
    "value",
    [
        Short("abcd"),
        _changed(Lowered("abc"), "text", "ABC"),
        _changed(Positive(7), "number", -7),
        _changed(Short("abc"), "code", 7),
    ],
)
def test_what_a_class_refuses_or_changes_when_it_is_read_is_refused(value: Any) -> None:
    """The types of its fields do not say that a value comes back where the class has a say in it (I5)."""
    codec = Codec("topic", type(value))
    assert codec._plain is not None
    with pytest.raises(PayloadError):
        codec.encode(value)


@dataclasses.dataclass
class Dressed:
    text: str

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return f"<{value}>" if name == "text" else value


class Growing:
    """A descriptor that keeps more than what it is given, if that is much."""

    def __get__(self, owner: Any, _kind: Any = None) -> int:
        return owner.__dict__["kept"] if owner is not None else 0

    def __set__(self, owner: Any, value: int) -> None:
        owner.__dict__["kept"] = value + value // 10


@dataclasses.dataclass
class Grown:
    number: int = Growing()  # type: ignore[assignment]


@dataclasses.dataclass(slots=True)
class Slotted:
    number: int
    text: str


@pytest.mark.parametrize("accepted, refused", [(Dressed(""), Dressed("text")), (Grown(1), Grown(25))])
def test_classes_whose_fields_are_their_own_affair(accepted: Any, refused: Any) -> None:
    """Each of their values is read again, also once one has come back (I5)."""
    codec = Codec("topic", type(refused))
    assert codec._plain is not None
    if codec._plain._class is Grown:
        assert codec.decode(codec.encode(accepted)) == accepted
    for _ in range(2):
        with pytest.raises(PayloadError):
            codec.encode(refused)
    assert not codec._plain._known


def test_slots_are_no_affair_of_their_own() -> None:
    """One value of a class with slots stands for the others, as without."""
    codec = Codec("topic", Slotted)
    assert codec.decode(codec.encode(Slotted(1, "text"))) == Slotted(1, "text")
    assert codec._plain is not None
    assert list(codec._plain._known) == [(int, str)]


def test_a_field_that_is_not_an_argument() -> None:
    """What sets such a field is the class's own affair, so each value is read again; it comes back (I5)."""
    codec = Codec("topic", Counted)
    value = Counted("text")
    value.length = 4
    for _ in range(2):
        assert codec.decode(codec.encode(value)) == value
    assert codec._plain is not None
    assert not codec._plain._known


def test_a_value_that_lacks_a_field() -> None:
    """It is refused, not read as something shorter (I5)."""
    value = Plain("text")
    del value.text
    with pytest.raises(PayloadError):
        PLAIN.encode(value)


def test_a_value_of_another_class() -> None:
    """One with the same fields would come back as the topic's own class (I5)."""

    @dataclasses.dataclass
    class Like(Plain): ...

    with pytest.raises(PayloadError):
        PLAIN.encode(Like("text"))


def test_few_combinations_of_types_are_kept() -> None:
    """With many optional fields there are more than memory would hold; all are encoded as ever."""
    many = dataclasses.make_dataclass("many", [(f"field_{number}", int | None, None) for number in range(8)])
    codec = Codec("many", many)
    for number in range(256):
        value = many(*(number if number >> bit & 1 else None for bit in range(8)))
        assert codec.decode(codec.encode(value)) == value
    assert codec._plain is not None
    assert len(codec._plain._known) == payload._MOST_KNOWN
