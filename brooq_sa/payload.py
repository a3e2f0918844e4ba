"""Job objects to JSON text and back, strict both ways.

What an enqueue accepts is what a claim gives back, on either database: every value is encoded, read again as its
field's type, and compared; but where all fields are plain (text, whole numbers, booleans), only the first with such
fields, since what comes back is then a matter of their types alone. What JSON or PostgreSQL's ``jsonb`` cannot hold is
refused before any SQL is sent, with the path of the value.

Differences that remain between the databases (``jsonb`` keeps numbers as ``numeric``, and objects without order) are
listed in ``docs/databases.md``.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime, time
from operator import attrgetter
from types import MemberDescriptorType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from .exc import PayloadError

MAX_BYTES = 8 * 1024 * 1024
"""The longest payload, as JSON text in UTF-8."""

MAX_DEPTH = 100
"""How deep objects and lists may nest."""

INTEGERS = range(-(2**63), 2**64)
"""Integers that every JSON reader in the neighbourhood holds exactly."""

_LARGE = 1e16
_EXPONENT = re.compile(rb"[0-9]e[0-9]")
_NUL = b"\\u0000"

_LOWEST, _HIGHEST = INTEGERS[0], INTEGERS[-1]

_PLAIN = (str, int, bool, type(None))
"""Field types whose values JSON holds as they are."""

BYTES_KEY = "$bytes"
"""A raw job's bytes are stored as ``{"$bytes": "<base64>"}``."""


class _Fault(Exception):
    def __init__(self, rule: str, *path: str) -> None:
        self.rule = rule
        self.path = path  # innermost first


class Codec:
    """Encodes and decodes one topic's payloads.

    Args:
        topic: named in errors.
        payload_type: what msgspec decodes to.
    """

    def __init__(self, topic: str, payload_type: Any) -> None:
        self.topic = topic
        self._decoder = msgspec.json.Decoder(payload_type, strict=True)
        self._plain = _PlainFields(payload_type) if _is_plain(payload_type) else None

    def encode(self, value: Any) -> str:
        """The JSON text of a value.

        Raises:
            PayloadError: a value inside cannot be carried, or would come back as something else.
        """
        if self._plain is not None and (text := self._encode_plain(value, self._plain)) is not None:
            return text
        try:
            plain = msgspec.to_builtins(value, builtin_types=(datetime, time), str_keys=False)
            _refuse_unfit(plain, MAX_DEPTH)
            encoded = msgspec.json.encode(plain)
            if _EXPONENT.search(encoded):
                encoded = msgspec.json.encode(_without_exponents(plain))
            if len(encoded) > MAX_BYTES:
                raise _Fault(f"{len(encoded):,} bytes of JSON, of at most {MAX_BYTES:,}: store it, and enqueue where")
            text = encoded.decode()
            _refuse_changed(value, self._decoder.decode(text))
        except _Fault as fault:
            path = "$" + "".join(reversed(fault.path))
            raise PayloadError(self.topic, path, fault.rule) from None
        except RecursionError:
            raise PayloadError(self.topic, "$", f"nested deeper than {MAX_DEPTH} levels") from None
        except msgspec.ValidationError as error:
            raise self._invalid(error) from None
        except (TypeError, ValueError, OverflowError) as error:
            raise PayloadError(self.topic, "$", str(error)) from error
        return text

    def _encode_plain(self, value: Any, fields: _PlainFields) -> str | None:
        """The JSON text of a value whose fields are all plain; None if anything about it is to be looked at closely."""
        try:
            types = fields.types_of(value)
            if types is None:
                return None
            encoded = _encoder.encode(value)
            if _NUL in encoded or len(encoded) > MAX_BYTES:
                return None
            if not fields.are_known(types):
                if self._decoder.decode(encoded) != value:
                    return None
                fields.come_back(types)
            return encoded.decode()
        except (AttributeError, TypeError, ValueError, OverflowError, msgspec.ValidationError):
            return None

    def decode(self, text: str) -> Any:
        """The value of a stored payload.

        Raises:
            PayloadError: the text does not fit the type. Whatever else a class of the user raises while it is made
                passes through.
        """
        try:
            return self._decoder.decode(text)
        except msgspec.ValidationError as error:
            raise self._invalid(error) from None
        except msgspec.DecodeError as error:
            raise PayloadError(self.topic, "$", f"not readable as JSON: {error}") from error

    def _invalid(self, error: msgspec.ValidationError) -> PayloadError:
        rule, _, place = str(error).partition(" - at `")
        return PayloadError(self.topic, place.rstrip("`") or "$", rule)


_encoder = msgspec.json.Encoder()


class _PlainFields:
    """The fields of a dataclass, all of `_PLAIN` types; and of which types they may be for values to come back.

    A field that holds exactly such a type is read as it was written. So one value that came back stands for all whose
    fields have the same types, unless the class has a say in how it is read, or in what its fields are.
    """

    def __init__(self, payload_type: Any) -> None:
        fields = dataclasses.fields(payload_type)
        hints = get_type_hints(payload_type)
        self._class = payload_type
        self._allowed = [_alternatives(hints[field.name]) for field in fields]
        self._values = _reader([field.name for field in fields])
        self._known: dict[_Types, tuple[int, ...]] = {}  # those that come back, and where in them integers are
        self._has_say = (
            hasattr(payload_type, "__post_init__")
            or payload_type.__getattribute__ is not object.__getattribute__
            or not all(field.init and _is_stored(payload_type, field.name) for field in fields)
            or hints != get_type_hints(payload_type, include_extras=True)  # a constraint is left out of the former
        )

    def types_of(self, value: Any) -> _Types | None:
        """The types of a value's fields; None if one is none that it may have, or an integer out of range.

        Raises:
            AttributeError: it lacks a field.
        """
        if type(value) is not self._class:
            return None
        values = self._values(value)
        types = tuple(map(type, values))
        integers = self._known.get(types)
        if integers is None:
            if not all(each in allowed for each, allowed in zip(types, self._allowed, strict=True)):
                return None
            integers = _integers(types)
        return types if all(_LOWEST <= values[index] <= _HIGHEST for index in integers) else None

    def are_known(self, types: _Types) -> bool:
        """Whether every value whose fields have these types comes back."""
        return types in self._known

    def come_back(self, types: _Types) -> None:
        """A value whose fields have these types has come back."""
        if not self._has_say and len(self._known) < _MOST_KNOWN:
            self._known[types] = _integers(types)


_Types = tuple[type, ...]


def _is_stored(payload_type: Any, name: str) -> bool:
    """Whether a field is set as it is, and not by a descriptor of the class that may make something else of it."""
    attribute = inspect.getattr_static(payload_type, name, None)
    return isinstance(attribute, MemberDescriptorType) or not hasattr(type(attribute), "__set__")


def _integers(types: _Types) -> tuple[int, ...]:
    return tuple(index for index, each in enumerate(types) if each is int)


_MOST_KNOWN = 100
"""How many combinations of types are known at the most, so that a hundred optional fields fill no memory."""


def _reader(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What reads these attributes at once."""
    match names:
        case []:
            return lambda _value: ()
        case [name]:
            return lambda value: (getattr(value, name),)
        case _:
            return attrgetter(*names)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a plain field."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(each for alternative in get_args(hint) for each in _alternatives(alternative))
    return (hint,)


def _is_plain(payload_type: Any) -> bool:
    """Whether it is a class all of whose fields are of `_PLAIN` types."""
    if not dataclasses.is_dataclass(payload_type):
        return False
    hints = get_type_hints(payload_type)
    return all(_is_plain_field(hints[field.name]) for field in dataclasses.fields(payload_type))


def _is_plain_field(hint: Any) -> bool:
    return all(each in _PLAIN for each in _alternatives(hint))


class RawCodec:
    """Encodes and decodes the payloads of topics without a class: any JSON value, or bytes."""

    def __init__(self, topic: str) -> None:
        self._codec = Codec(topic, Any)

    def encode(self, value: Any) -> str:
        if isinstance(value, bytes | bytearray | memoryview):
            return self._codec.encode({BYTES_KEY: base64.b64encode(value).decode()})
        if _is_wrapped(value):
            rule = f"an object whose only key is {BYTES_KEY!r} stands for bytes: give bytes"
            raise PayloadError(self._codec.topic, "$", rule)
        return self._codec.encode(value)

    def decode(self, text: str) -> Any:
        value = self._codec.decode(text)
        if not _is_wrapped(value):
            return value
        try:
            return base64.b64decode(value[BYTES_KEY], validate=True)
        except (TypeError, ValueError, binascii.Error) as error:
            raise PayloadError(self._codec.topic, f"$.{BYTES_KEY}", f"not base64: {error}") from error


def _without_exponents(value: Any) -> Any:
    """The same with large floats written out: ``jsonb`` makes ``1e16`` an integer, but not ``10000000000000000.0``."""
    match value:
        case float() if abs(value) >= _LARGE:
            return msgspec.Raw(f"{value:.1f}".encode())
        case dict():
            return {key: _without_exponents(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_without_exponents(each) for each in value]
        case _:
            return value


def _is_wrapped(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {BYTES_KEY}


def _refuse_unfit(value: Any, depth: int) -> None:
    """Raise a fault at the first value that JSON or ``jsonb`` cannot hold."""
    match value:
        case None | bool():
            pass
        case str():
            _refuse_unfit_text(value)
        case int():
            if value not in INTEGERS:
                raise _Fault("an integer beyond 64 bits")
        case float():
            if not math.isfinite(value):
                raise _Fault(f"{value} is not a number that JSON has")
        case datetime():
            if value.utcoffset() is None:
                raise _Fault(f"{value.isoformat()} is naive: give a datetime with a tzinfo")
        case time():
            pass
        case _ if depth == 0:
            raise _Fault(f"nested deeper than {MAX_DEPTH} levels")
        case dict():
            for key, each in value.items():
                _refuse_key(key)
                _step(f".{key}", _refuse_unfit, each, depth - 1)
        case list() | tuple() | set() | frozenset():
            for index, each in enumerate(value):
                _step(f"[{index}]", _refuse_unfit, each, depth - 1)
        case _:
            raise _Fault(f"a {type(value).__name__} has no form in JSON")


def _refuse_key(key: Any) -> None:
    if not isinstance(key, str):
        raise _Fault(f"the key {key!r} is not a string")
    _refuse_unfit_text(key)


def _refuse_unfit_text(value: str) -> None:
    if "\0" in value:
        raise _Fault("text with a NUL, which PostgreSQL cannot store")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _Fault("text with a lone surrogate, which UTF-8 cannot store") from None


def _refuse_changed(given: Any, returned: Any) -> None:
    """Raise a fault at the first value that would come back as something else, such as a set in an untyped field."""
    if type(given) is type(returned) and given == returned:
        return
    match given, returned:
        case (list() | tuple(), list() | tuple()) if len(given) == len(returned):
            for index, (one, other) in enumerate(zip(given, returned, strict=True)):
                _step(f"[{index}]", _refuse_changed, one, other)
        case (Mapping(), Mapping()) if given.keys() == returned.keys():
            for key, one in given.items():
                _step(f".{key}", _refuse_changed, one, returned[key])
        case _ if type(given) is type(returned) and (names := _field_names(given)):
            for name in names:
                _step(f".{name}", _refuse_changed, getattr(given, name), getattr(returned, name))
        case _ if given == returned and _is_number_or_text(given):
            pass  # an int for a float field, a str subclass
        case _:
            raise _Fault(f"{given!r:.200} would come back as {returned!r:.200}")


def _is_number_or_text(value: Any) -> bool:
    return isinstance(value, int | float | str | datetime | bytes | bytearray | memoryview | frozenset | set)


def _field_names(value: Any) -> tuple[str, ...]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    return ()


def _step(place: str, check: Any, *arguments: Any) -> None:
    try:
        check(*arguments)
    except _Fault as fault:
        raise _Fault(fault.rule, *fault.path, place) from None
