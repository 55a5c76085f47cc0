"""Expressions of SQL over the columns of a table: which columns they mention, and how DuckDB names these.

DuckDB's names ignore the case of ASCII letters. Where columns differ in nothing else, it renames all but the first. So
names are resolved here, exactly, and expressions are rewritten where DuckDB has another name for a column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...errors import InputError
from .database import EVENTS, Database, identifier, quoted

TEXTS = "VARCHAR", "TEXT", "STRING", "CHAR", "BPCHAR", "NVARCHAR"
ANY = "STAR", "POSITIONAL_REFERENCE"  # what may stand for any column
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}

Tree = dict[str, Any]


def fold(name: str) -> str:
    """Return a name as DuckDB compares it."""
    return name.translate(_LOWER)


class Mention(NamedTuple):
    """A column that an expression mentions: its position, whether its text is meant, and where its name is."""

    position: int
    text: bool
    names: list[str]
    at: int  # the name's place among `names`, which may begin with that of the table


@dataclass
class Usage:
    """Columns that expressions use, by position: their values, their text, and whether it may be any column."""

    values: set[int] = field(default_factory=set)
    texts: set[int] = field(default_factory=set)
    keys: set[int] = field(default_factory=set)  # whose values are the labels of a mode
    any: bool = False


class TableColumns:
    """The columns of a table.

    Parameters
    ----------
    names : sequence of str
        As the table has them.
    sql : sequence of str, optional
        As DuckDB has them.
    types : sequence of str, optional
        Of SQL.
    """

    def __init__(self, names: Sequence[str], sql: Sequence[str] | None = None, types: Sequence[str] = ()) -> None:
        self.names, self.sql, self.types = list(names), list(names if sql is None else sql), list(types)
        self.texts: dict[int, str] = {}
        """Of columns that are read as text, too: the names of these."""
        self.renamed = False
        """Whether DuckDB may have renamed columns before: of ``ID`` and ``id``, the second would be ``id_1``."""

    def find(self, name: str) -> int | None:
        """Return the position of a column, None if there is none; raise `InputError` if it may be one of several."""
        for alike in (str, fold):
            found = [k for k, each in enumerate(self.names) if alike(each) == alike(name)]
            if alike is fold and self.renamed and len(found) == 1:
                found += [k for k, each in enumerate(self.names) if re.fullmatch(re.escape(name) + r"_\d+", each)]
            if len(found) == 1:
                return found[0]
            if found and alike is str:
                raise InputError(f"{len(found)} columns are called {name}: rename all but one of them")
            if found:
                some = " and ".join(self.names[k] for k in found)
                raise InputError(f"may be column {some}, as case is ignored: write the name of one of them exactly")
        return None

    def expression(self, database: Database, told: str, text: str) -> tuple[str, Tree]:
        """Return an expression of SQL in parentheses, and its syntax tree.

        The name of a column stands for it, even if it is a word of SQL. Raise `InputError`, which begins with `told`,
        if it is not one expression, or a column that it mentions may be one of several.
        """
        position = self._find(told, text)
        if position is not None:
            name = self.sql[position]
            return f"({identifier(name)})", {"class": "COLUMN_REF", "column_names": [name]}
        sql = f"({text}\n)"  # a comment may end it
        syntax = _syntax(database, told, sql)
        changed = False
        for mention in self._mentions(told, syntax):
            values = self.sql[mention.position]
            name = self.texts.get(mention.position, values) if mention.text else values
            if fold(mention.names[mention.at]) != fold(name):
                mention.names[mention.at], changed = name, True
        if changed:
            with database.naming(told):
                ((whole,),) = database.run(f"SELECT json_deserialize_sql({quoted(json.dumps(syntax))})")
            sql = f"({whole.removeprefix('SELECT ')}\n)"
        return sql, _selected(syntax)

    def position(self, tree: Tree) -> int | None:
        """Return the position of the column that a syntax tree, with DuckDB's names, is; None if it is none."""
        if tree.get("class") != "COLUMN_REF" or len(tree["column_names"]) > 1:
            return None
        names = {fold(name): k for k, name in enumerate(self.sql)}
        return names.get(fold(tree["column_names"][0]))

    def text_of(self, tree: Tree) -> str | None:
        """Return the column of a key's text, None if it is no column that is read as text, too."""
        position = self.position(tree)
        text = None if position is None else self.texts.get(position)
        return None if text is None else identifier(text)

    def usage(self, database: Database, texts: Sequence[tuple[str, str]], keys: int) -> Usage:
        """Return what expressions use, each given with what errors call it; the first ones are `keys`."""
        usage = Usage()
        for number, (told, text) in enumerate(texts):
            position = self._find(told, text)
            if position is not None:
                usage.values.add(position)
                usage.keys |= {position} if number < keys else set()
                continue
            syntax = _syntax(database, told, f"({text}\n)")
            for mention in self._mentions(told, syntax):
                (usage.texts if mention.text else usage.values).add(mention.position)
                if number < keys and _selected(syntax).get("column_names") is mention.names:
                    usage.keys.add(mention.position)
            usage.any = usage.any or any(_is_any(node, self) for node in _nodes(syntax))
        return usage

    def _find(self, told: str, text: str) -> int | None:
        try:
            found = self.find(text)
            return self.find(text.strip()) if found is None else found
        except InputError as error:
            raise InputError(f"{told}: {error.cause}") from None

    def _mentions(self, told: str, syntax: Tree) -> Iterator[Mention]:
        """Yield the table's columns that occur in an expression."""
        for node in _nodes(syntax):
            text = node["class"] == "CAST"
            names = (node["child"] if text else node).get("column_names", [])
            for at in (1, 0) if names and fold(names[0]) == EVENTS else (0, 1):  # 1: behind the name of a table
                if at < len(names) and (position := self._find(told, names[at])) is not None:
                    yield Mention(position, text, names, at)
                    break


def _nodes(syntax: Any) -> Iterator[Tree]:
    """Yield the columns and stars of a syntax tree, and casts of columns to text; no parameters of a lambda."""
    left: list[tuple[Any, frozenset[str]]] = [(syntax, frozenset())]  # no recursion: a sum of many terms is deep
    while left:
        tree, bound = left.pop()
        if isinstance(tree, list):
            left += [(each, bound) for each in reversed(tree)]
            continue
        if not isinstance(tree, dict):
            continue
        kind = tree.get("class")
        if kind == "LAMBDA":
            names = {fold(name) for node in _nodes(tree.get("lhs")) for name in node.get("column_names", [])}
            left.append((tree.get("expr"), bound | names))
            continue
        column = tree.get("child") if kind == "CAST" and _is_text(tree) else tree if kind == "COLUMN_REF" else None
        if kind in ANY or (column is not None and fold(column["column_names"][0]) not in bound):
            yield tree
        elif column is None:
            left += [(each, bound) for each in reversed(tree.values())]


def _is_text(cast: Tree) -> bool:
    """Tell whether a cast makes text of a column."""
    kind = cast.get("type_expr", {}).get("type_name") or cast.get("cast_type", {}).get("id")  # DuckDB 2, and before
    return cast["child"].get("class") == "COLUMN_REF" and str(kind).upper() in TEXTS


def _is_any(node: Tree, columns: TableColumns) -> bool:
    """Tell whether a node may stand for any column."""
    if node["class"] in ANY:
        return True
    names = node.get("child", node)["column_names"]
    return len(names) == 1 and fold(names[0]) == EVENTS and columns.find(names[0]) is None


def _syntax(database: Database, told: str, sql: str) -> Tree:
    """Return the syntax tree of a query of an expression; raise `InputError` unless it is one, and nothing else."""
    with database.naming(told):
        ((text,),) = database.run(f"SELECT json_serialize_sql({quoted(f'SELECT {sql}')})")
    try:
        found: Tree = json.loads(text)
    except RecursionError:
        raise InputError(f"{told}: too long: it has hundreds of operations in a row") from None
    if found.get("error"):
        raise InputError(f"{told}: {found.get('error_message', 'not understood')}")
    nodes = [each["node"] for each in found["statements"]]
    columns = nodes[0].get("select_list", []) if nodes else []
    source = nodes[0].get("from_table") or {} if nodes else {}
    plain = source.get("type") in (None, "EMPTY", "EMPTY_FROM") and not nodes[0].get("where_clause") if nodes else False
    if len(nodes) != 1 or len(columns) != 1 or not plain:
        raise InputError(f"{told}: one expression is expected")
    if columns[0].get("class") == "STAR":
        raise InputError(f"{told}: one column is expected")
    return found


def _selected(syntax: Tree) -> Tree:
    selected: Tree = syntax["statements"][0]["node"]["select_list"][0]
    return selected
