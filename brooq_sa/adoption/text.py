"""Small edits in the text of configuration files, which leave every other byte as it was.

Nothing here decides whether an edit is right: whoever asks for one reads the result as Alembic would, and compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

_COMMENT = ("#", ";")


class IniText:
    """The lines of an ini file, and edits within one section of it.

    Args:
        text: of the file.
        section: its name.
    """

    def __init__(self, text: str, section: str) -> None:
        self._lines = text.splitlines(keepends=True)
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._section = section

    def __str__(self) -> str:
        return "".join(self._lines)

    def has(self, option: str) -> bool:
        return self._span(option) is not None

    def replace_value(self, option: str, value: str) -> None:
        """Another value for an option of a single line."""
        start, end = self._demand(option)
        if end > start + 1:
            raise LookupError(option)
        line = self._lines[start]
        bare = line.rstrip("\r\n")
        self._lines[start] = re.sub(r"^([^=:]+[=:]\s*).*$", lambda found: found[1] + value, bare) + line[len(bare) :]

    def append_to_value(self, option: str, more: str) -> None:
        """The value of an option with more at its end, in the same line."""
        _, end = self._demand(option)
        line = self._lines[end - 1]
        bare = line.rstrip()
        self._lines[end - 1] = bare + more + line[len(line.rstrip("\r\n")) :]

    def add_line_to_value(self, option: str, entry: str) -> None:
        """The value of an option with a line of its own at its end, indented as the last one is."""
        start, end = self._demand(option)
        indent = "    " if end == start + 1 else re.match(r"\s*", self._lines[end - 1])[0]  # type: ignore[index]
        self._end_line(end - 1)
        self._lines.insert(end, f"{indent}{entry}{self._newline}")

    def replace_by_list(self, option: str, entries: Sequence[str]) -> None:
        """An option whose value is these entries, a line each.

        Raises:
            LookupError: there is no such option, or a comment amid its value, which would be lost.
        """
        start, end = self._demand(option)
        if any(line.strip().startswith(_COMMENT) for line in self._lines[start:end]):
            raise LookupError(option)
        name = re.split(r"\s*[=:]", self._lines[start], maxsplit=1)[0]
        self._end_line(end - 1)
        self._lines[start:end] = self._listed(name, entries)

    def add(self, option: str, values: str | Sequence[str], *, after: Sequence[str]) -> None:
        """A new option, after a comment or option of one of these names, the first that is there; else at the top."""
        where = next((place for name in after if (place := self._after(name)) is not None), self._bounds()[0])
        self._end_line(where - 1)
        is_one = isinstance(values, str)
        lines = [f"{option} = {values}{self._newline}"] if is_one else self._listed(option, values)
        self._lines[where:where] = lines

    def _listed(self, option: str, entries: Sequence[str]) -> list[str]:
        return [f"{option} ={self._newline}", *(f"    {entry}{self._newline}" for entry in entries)]

    def _end_line(self, number: int) -> None:
        if 0 <= number < len(self._lines) and not self._lines[number].endswith(("\n", "\r")):
            self._lines[number] += self._newline

    def _after(self, option: str) -> int | None:
        """The line after the option, or after the last comment that shows it."""
        if (span := self._span(option)) is not None:
            return span[1]
        start, end = self._bounds()
        shown = re.compile(rf"\s*[#;]\s*{re.escape(option)}\s*=", re.IGNORECASE)
        found = [number for number in range(start, end) if shown.match(self._lines[number])]
        return found[-1] + 1 if found else None

    def _demand(self, option: str) -> tuple[int, int]:
        span = self._span(option)
        if span is None:
            raise LookupError(option)
        return span

    def _span(self, option: str) -> tuple[int, int] | None:
        """The lines of an option: from its name to the last line of its value."""
        start, end = self._bounds()
        named = re.compile(rf"{re.escape(option)}\s*[=:]", re.IGNORECASE)
        for number in range(start, end):
            if named.match(self._lines[number]):
                return number, self._end_of_value(number, end)
        return None

    def _end_of_value(self, start: int, section_end: int) -> int:
        end = start + 1
        for number in range(start + 1, section_end):
            line = self._lines[number]
            if not line.strip() or line.strip().startswith(_COMMENT):
                continue
            if not line[0].isspace():
                break
            end = number + 1
        return end

    def _bounds(self) -> tuple[int, int]:
        heads = [number for number, line in enumerate(self._lines) if line.startswith("[")]
        for start, end in zip(heads, [*heads[1:], len(self._lines)], strict=True):
            if self._lines[start].startswith(f"[{self._section}]"):
                return start + 1, end
        raise LookupError(self._section)


class TomlText:
    """The lines of a TOML file, and edits within one table of it that has a header.

    Args:
        text: of the file.
        table: its header, without the brackets.
    """

    def __init__(self, text: str, table: str) -> None:
        self._text = text
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._table = table

    def __str__(self) -> str:
        return self._text

    def has(self, key: str) -> bool:
        return self._value_at(key) is not None

    def add_to_array(self, key: str, entry: str) -> None:
        """One string more at the end of an array that has some."""
        opening = self._value_at(key)
        if opening is None or self._text[opening] != "[":
            raise LookupError(key)
        closing, last, has_comma = _array(self._text, opening)
        if "\n" not in self._text[opening:closing]:
            self._insert(last, f", {_string(entry)}")
            return
        if not has_comma:
            self._insert(last, ",")
        line_start = self._text.rfind("\n", 0, last) + 1
        line_end = self._text.find("\n", last) + 1
        indent = re.match(r"[ \t]*", self._text[line_start:])[0]  # type: ignore[index]
        self._insert(line_end, f"{indent}{_string(entry)},{self._newline}")

    def add(self, key: str, values: str | Sequence[str], *, after: Sequence[str]) -> None:
        """A new key, after the first of these that is there; else at the top of the table."""
        place = next((at for name in after if (at := self._line_after(name)) is not None), self._bounds()[0])
        if isinstance(values, str):
            self._insert(place, f"{key} = {_string(values)}{self._newline}")
            return
        lines = [f"{key} = [", *(f"    {_string(value)}," for value in values), "]", ""]
        self._insert(place, self._newline.join(lines))

    def _insert(self, at: int, text: str) -> None:
        if at == len(self._text) and not self._text.endswith("\n"):
            text = self._newline + text
        self._text = self._text[:at] + text + self._text[at:]

    def _line_after(self, key: str) -> int | None:
        at = self._value_at(key)
        if at is None:
            return None
        end = _array(self._text, at)[0] if self._text[at] == "[" else at
        following = self._text.find("\n", end)
        return len(self._text) if following < 0 else following + 1

    def _value_at(self, key: str) -> int | None:
        start, end = self._bounds()
        found = re.compile(rf"^[ \t]*{re.escape(key)}[ \t]*=[ \t]*", re.MULTILINE).search(self._text, start, end)
        return found.end() if found else None

    def _bounds(self) -> tuple[int, int]:
        header = re.compile(rf"^[ \t]*\[[ \t]*{re.escape(self._table)}[ \t]*\].*\n?", re.MULTILINE)
        found = header.search(self._text)
        if found is None:
            raise LookupError(self._table)
        following = re.compile(r"^\[", re.MULTILINE).search(self._text, found.end())
        return found.end(), following.start() if following else len(self._text)


_TOKEN = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|[\[\],]""")


def _array(text: str, opening: int) -> tuple[int, int, bool]:
    """Where an array of strings closes, where its last string ends, and whether a comma follows that."""
    last, has_comma = opening + 1, True
    for token in _TOKEN.finditer(text, opening + 1):
        if token[0] == "]":
            return token.start(), last, has_comma
        if token[0] == ",":
            has_comma = True
        elif not token[0].startswith("#"):
            last, has_comma = token.end(), False
    raise LookupError("]")


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
