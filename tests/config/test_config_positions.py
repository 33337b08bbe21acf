"""Every key of a document has its line; the reference is the tree that tomllib reads, and the text itself."""

import tomllib
from collections.abc import Iterator
from typing import Any

from sanarl.config.positions import lines_of

DOCUMENT = '''\
# a comment with [brackets] and "quotes
redis = "12800"   # line 2
a . "b.c" . 'd' = 1
text = """
[not.a.table]
also = "no key" \\"""
"""
other = \'\'\'
x = 1\'\'\'\'
[policy]
m = [ 1, # [
  2,

  { a = [1,
  2], "b" = { c = 3 } },
]
when = 1979-05-27 07:32:00

[ train . "train_policy" ] # }
d.name = 'x'
d.split = "]}"
[[train.train_policy.fns]]
name = "a"
[train.train_policy.fns.extra]
k = 1
[[train.train_policy.fns]]

name = "b"
[[train.train_policy.fns.inner]]
n = 0
[train]
"\\u00e9\\U0001F600\\t" = 1e3
last = {}'''


def paths(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in children:
        yield (*path, key)
        yield from paths(value, (*path, key))


def test_every_key_has_a_line_and_no_other() -> None:
    for text in (DOCUMENT, DOCUMENT.replace("\n", "\r\n")):
        assert set(lines_of(text)) == set(paths(tomllib.loads(text)))


def test_lines() -> None:
    lines = lines_of(DOCUMENT)
    rows = DOCUMENT.split("\n")
    for path, line in lines.items():
        if isinstance(path[-1], str) and path[-1].isascii() and "\t" not in path[-1]:
            assert path[-1] in rows[line - 1]
    assert lines[("a", "b.c", "d")] == 3
    assert lines[("policy", "m", 2, "b", "c")] == 15
    assert lines[("train", "train_policy", "fns", 1)] == 26
    assert lines[("train", "train_policy", "fns", 1, "name")] == 28
    assert lines[("train", "train_policy", "fns", 0, "extra", "k")] == 25
    assert lines[("train",)] == 31


def test_text_that_is_not_toml_does_not_raise() -> None:
    for text in ("[", "a", "a = ", '"', "[[a", "a = [", "\0"):
        lines_of(text)
