"""SQL expressions over the columns of a table: the columns that they use, and DuckDB's names for these.

DuckDB's names ignore the case of ASCII letters; if column names differ only in case, it renames all but the first.
Therefore names are resolved here, exactly, and expressions are rewritten where DuckDB uses another name for a column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...errors import InputError
from .database import EVENTS, Database, identifier, quoted

TEXTS = "VARCHAR", "TEXT", "STRING", "CHAR", "BPCHAR", "NVARCHAR"
ANY = "STAR", "POSITIONAL_REFERENCE"  # nodes that may refer to any column
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}

Tree = dict[str, Any]


def fold(name: str) -> str:
    """Return a name in the form in which DuckDB compares names."""
    return name.translate(_LOWER)


class Mention(NamedTuple):
    """A column in an expression.

    Attributes
    ----------
    position : int
        The column's position in the table.
    text : bool
        Whether the expression casts it to text.
    names : list of str
        The names in the syntax tree: the table's, optionally, and the column's.
    at : int
        Position of the column's name in `names`.
    """

    position: int
    text: bool
    names: list[str]
    at: int  # position of the column in `names`, which may begin with the table


@dataclass
class Usage:
    """Columns used by expressions, by position: their values, their text, and whether any column may be used."""

    values: set[int] = field(default_factory=set)
    texts: set[int] = field(default_factory=set)
    keys: set[int] = field(default_factory=set)  # columns whose values are labels of a mode
    any: bool = False


class TableColumns:
    """The columns of a table.

    Parameters
    ----------
    names : sequence of str
        Names in the table.
    sql : sequence of str, optional
        Names in DuckDB.
    types : sequence of str, optional
        SQL types.
    """

    def __init__(self, names: Sequence[str], sql: Sequence[str] | None = None, types: Sequence[str] = ()) -> None:
        self.names, self.sql, self.types = list(names), list(names if sql is None else sql), list(types)
        self.texts: dict[int, str] = {}
        """Names of the text versions of columns, by position."""
        self.renamed = False
        """Whether DuckDB may have renamed columns before: for ``ID`` and ``id``, the second to ``id_1``."""

    def find(self, name: str) -> int | None:
        """Return the position of a column or None; raise `InputError` if the name is ambiguous."""
        for alike in (str, fold):
            matches = [k for k, each in enumerate(self.names) if alike(each) == alike(name)]
            if alike is fold and self.renamed and len(matches) == 1:
                matches += [k for k, each in enumerate(self.names) if re.fullmatch(re.escape(name) + r"_\d+", each)]
            if len(matches) == 1:
                return matches[0]
            if matches and alike is str:
                raise InputError(f"{len(matches)} columns are called {name}: rename all but one of them")
            if matches:
                candidates = " and ".join(self.names[k] for k in matches)
                raise InputError(f"may be column {candidates}, as case is ignored: use the exact name of one of them")
        return None

    def expression(self, database: Database, label: str, text: str) -> tuple[str, Tree]:
        """Return an SQL expression in parentheses, and its syntax tree.

        A column name refers to the column, even if it is an SQL keyword. Raise `InputError`, with the prefix `label`,
        if the text is not one expression, or a column name in it is ambiguous.
        """
        position = self._find(label, text)
        if position is not None:
            name = self.sql[position]
            return f"({identifier(name)})", {"class": "COLUMN_REF", "column_names": [name]}
        sql = f"({text}\n)"  # the newline ends a trailing comment
        syntax = self._syntax(database, label, text)
        changed = False
        for mention in self._mentions(label, syntax):
            values = self.sql[mention.position]
            name = self.texts.get(mention.position, values) if mention.text else values
            if fold(mention.names[mention.at]) != fold(name):
                mention.names[mention.at], changed = name, True
        if changed:
            with database.naming(label):
                ((whole,),) = database.run(f"SELECT json_deserialize_sql({quoted(json.dumps(syntax))})")
            sql = f"({whole.removeprefix('SELECT ')}\n)"
        return sql, _selected(syntax)

    def position(self, tree: Tree) -> int | None:
        """Return the position of the column that a syntax tree consists of, or None. Names are DuckDB's."""
        if tree.get("class") != "COLUMN_REF" or len(tree["column_names"]) > 1:
            return None
        names = {fold(name): k for k, name in enumerate(self.sql)}
        return names.get(fold(tree["column_names"][0]))

    def text_of(self, tree: Tree) -> str | None:
        """Return the text column of a key; None if the key is not a column with a text version."""
        position = self.position(tree)
        text = None if position is None else self.texts.get(position)
        return None if text is None else identifier(text)

    def usage(self, database: Database, texts: Sequence[tuple[str, str]], keys: int) -> Usage:
        """Return the columns that named expressions use; the first `keys` expressions are keys."""
        usage = Usage()
        for number, (name, text) in enumerate(texts):
            position = self._find(name, text)
            if position is not None:
                usage.values.add(position)
                usage.keys |= {position} if number < keys else set()
                continue
            syntax = self._syntax(database, name, text)
            for mention in self._mentions(name, syntax):
                (usage.texts if mention.text else usage.values).add(mention.position)
                if number < keys and _selected(syntax).get("column_names") is mention.names:
                    usage.keys.add(mention.position)
            usage.any = usage.any or any(_is_any(node, self) for node in _nodes(syntax))
        return usage

    def _find(self, name: str, text: str) -> int | None:
        try:
            position = self.find(text)
            return self.find(text.strip()) if position is None else position
        except InputError as error:
            raise InputError(f"{name}: {error.cause}") from None

    def _syntax(self, database: Database, name: str, text: str) -> Tree:
        """Return the syntax tree of an expression; errors suggest quotes for names that need them."""
        try:
            return _syntax(database, name, f"({text}\n)")
        except InputError as error:
            quoted_text = self._quoted(database, text)
            hint = "" if quoted_text is None else f"; a word of SQL, or a name with blanks or signs: {quoted_text}"
            raise InputError(f"{error.cause}{hint}") from None

    def _quoted(self, database: Database, text: str) -> str | None:
        """Return an invalid expression with quotes around a column name if it is valid then, or None."""
        for name in sorted(self.names, key=len, reverse=True):
            parts = re.split(rf'(?<![\w"]){re.escape(name)}(?![\w"])', text)
            changed = identifier(name).join(parts)
            with suppress(InputError):
                if changed != text and _syntax(database, "", f"({changed}\n)"):
                    return changed
        return None

    def _mentions(self, name: str, syntax: Tree) -> Iterator[Mention]:
        """Yield the table's columns in an expression."""
        for node in _nodes(syntax):
            text = node["class"] == "CAST"
            names = (node["child"] if text else node).get("column_names", [])
            for at in (1, 0) if names and fold(names[0]) == EVENTS else (0, 1):  # 1: after the name of the table
                if at < len(names) and (position := self._find(name, names[at])) is not None:
                    yield Mention(position, text, names, at)
                    break


def _nodes(syntax: object) -> Iterator[Tree]:
    """Yield the columns and stars of a syntax tree, and casts of columns to text, but no parameters of lambdas."""
    pending: list[tuple[Any, frozenset[str]]] = [(syntax, frozenset())]  # not recursive, as a sum of many terms is deep
    while pending:
        tree, bound = pending.pop()
        if isinstance(tree, list):
            pending += [(each, bound) for each in reversed(tree)]
            continue
        if not isinstance(tree, dict):
            continue
        kind = tree.get("class")
        if kind == "LAMBDA":
            names = {fold(name) for node in _nodes(tree.get("lhs")) for name in node.get("column_names", [])}
            pending.append((tree.get("expr"), bound | names))
            continue
        column = tree.get("child") if kind == "CAST" and _is_text(tree) else tree if kind == "COLUMN_REF" else None
        if kind in ANY or (column is not None and fold(column["column_names"][0]) not in bound):
            yield tree
        elif column is None:
            pending += [(each, bound) for each in reversed(tree.values())]


def _is_text(cast: Tree) -> bool:
    """Return whether a cast converts a column to text."""
    # The type in the syntax trees of DuckDB 2, and of earlier versions.
    kind = cast.get("type_expr", {}).get("type_name") or cast.get("cast_type", {}).get("id")
    return cast["child"].get("class") == "COLUMN_REF" and str(kind).upper() in TEXTS


def _is_any(node: Tree, columns: TableColumns) -> bool:
    """Return whether a node may refer to any column."""
    if node["class"] in ANY:
        return True
    names = node.get("child", node)["column_names"]
    return len(names) == 1 and fold(names[0]) == EVENTS and columns.find(names[0]) is None


def _syntax(database: Database, name: str, sql: str) -> Tree:
    """Return the syntax tree of a query of one expression; raise `InputError` if `sql` is anything else."""
    with database.naming(name):
        ((text,),) = database.run(f"SELECT json_serialize_sql({quoted(f'SELECT {sql}')})")
    try:
        syntax: Tree = json.loads(text)
    except RecursionError:
        raise InputError(f"{name}: too long: it has hundreds of nested operations") from None
    if syntax.get("error"):
        message, position = syntax.get("error_message", "not understood"), syntax.get("position", "")
        if position.isdigit() and int(position) == len(f"SELECT {sql}") - 1:  # at the bracket that `sql` ends with
            message = "syntax error: it is unfinished, or has one ) too many"
        raise InputError(f"{name}: {message}")
    nodes = [each["node"] for each in syntax["statements"]]
    columns = nodes[0].get("select_list", []) if nodes else []
    source = nodes[0].get("from_table") or {} if nodes else {}
    plain = source.get("type") in (None, "EMPTY", "EMPTY_FROM") and not nodes[0].get("where_clause") if nodes else False
    if len(nodes) != 1 or len(columns) != 1 or not plain:
        raise InputError(f"{name}: expected one expression")
    if columns[0].get("class") == "STAR":
        raise InputError(f"{name}: expected one column")
    return syntax


def _selected(syntax: Tree) -> Tree:
    selected: Tree = syntax["statements"][0]["node"]["select_list"][0]
    return selected
