"""On which line of a TOML file each key stands. The text must have passed tomllib, which finds the syntax errors."""

import contextlib
import json
import re

from sanarl.config.faults import KeyPath

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BASIC_KEY = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL_KEY = re.compile(r"'[^'\n]*'")
_LONG_BASIC = re.compile(r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''.*?'''(?:'{0,2})", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]*")
_WIDE = re.compile(r"\\U([0-9a-fA-F]{8})")


def lines_of(text: str) -> dict[KeyPath, int]:
    """Line (from 1) of every key, table header and list entry of a valid TOML document."""
    scanner = _Scanner(text.replace("\r\n", "\n"))
    with contextlib.suppress(IndexError, ValueError, RecursionError):  # a position less is no reason to fail
        scanner.document()
    return scanner.lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self._counts: dict[KeyPath, int] = {}  # entries so far of each array of tables
        self._counted_to = 0
        self._line = 1

    def line(self) -> int:
        self._line += self.text.count("\n", self._counted_to, self.at)
        self._counted_to = self.at
        return self._line

    def skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError("not the document that tomllib read")
        self.at = match.end()
        return match.group()

    def mark(self, path: KeyPath) -> None:
        line = self.line()
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], line)

    def document(self) -> None:
        table: KeyPath = ()
        while True:
            self.skip(_BLANK)
            if self.at >= len(self.text):
                return
            if self.text.startswith("[[", self.at):
                self.at += 2
                table = self.entry(self.key())
                self.at = self.text.index("]]", self.at) + 2
            elif self.text[self.at] == "[":
                self.at += 1
                table = self.inside_arrays(self.key())
                self.mark(table)
                self.lines[table] = self.line()  # the header, not the first header of a child
                self.at = self.text.index("]", self.at) + 1
            else:
                self.pair(table)

    def entry(self, key: KeyPath) -> KeyPath:
        array = self.inside_arrays(key[:-1]) + key[-1:]
        index = self._counts.get(array, -1) + 1
        self._counts[array] = index
        self.mark((*array, index))
        return (*array, index)

    def inside_arrays(self, key: KeyPath) -> KeyPath:
        """The path with the index of the latest entry after every array of tables on the way."""
        path: KeyPath = ()
        for part in key:
            path = (*path, part)
            if path in self._counts:
                path = (*path, self._counts[path])
        return path

    def key(self) -> KeyPath:
        parts: list[str] = []
        while True:
            self.skip(_SPACE)
            parts.append(self.key_part())
            self.skip(_SPACE)
            if self.text[self.at] != ".":
                return tuple(parts)
            self.at += 1

    def key_part(self) -> str:
        first = self.text[self.at]
        if first == '"':
            raw = self.skip(_BASIC_KEY).replace("\t", "\\t")
            return str(json.loads(_WIDE.sub(lambda match: chr(int(match[1], 16)), raw)))
        return self.skip(_LITERAL_KEY)[1:-1] if first == "'" else self.skip(_BARE_KEY)

    def pair(self, table: KeyPath) -> None:
        path = table + self.key()
        self.mark(path)
        self.at = self.text.index("=", self.at) + 1
        self.skip(_SPACE)
        self.value(path)

    def value(self, path: KeyPath) -> None:
        text, at = self.text, self.at
        if text.startswith('"""', at):
            self.skip(_LONG_BASIC)
        elif text.startswith("'''", at):
            self.skip(_LONG_LITERAL)
        elif text[at] == '"':
            self.skip(_BASIC_KEY)
        elif text[at] == "'":
            self.skip(_LITERAL_KEY)
        elif text[at] in "[{":
            self.items(path, is_list=text[at] == "[")
        else:
            self.skip(_SCALAR)

    def items(self, path: KeyPath, is_list: bool) -> None:
        self.at += 1
        index = 0
        while True:
            self.skip(_BLANK)
            if self.text[self.at] in "]}":
                self.at += 1
                return
            if self.text[self.at] == ",":
                self.at += 1
            elif is_list:
                self.mark((*path, index))
                self.value((*path, index))
                index += 1
            else:
                self.pair(path)
