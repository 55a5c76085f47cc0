"""Files as tables of DuckDB's: their columns by the names that the files have, and text that keeps what was written.

DuckDB finds the types of a text's columns in its first rows. A number is then no longer the text that it was, nor is a
date. So columns whose text is used, or compared with the values, are read as text and converted here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from os import PathLike
from typing import NamedTuple

from ..errors import InputError
from .database import EVENTS, FUNCTIONS, Database, ending, identifier, quoted
from .expressions import Columns, Usage, fold
from .keys import LARGE, NUMBERS, WHOLE

NUMBERED = re.compile(r"column\d+")
RENAMED = re.compile(r"(.*)_\d+", re.DOTALL)
NULLS = ("", *"NA N/A n/a #N/A #NA <NA> NULL null None NaN -NaN nan -nan NaT".split(), r"\N")
"""What stands for a missing number, date or time in text; in columns of text they are texts, but for the first."""

INTEGER = r"\s*[+-]?[0-9]+\s*"
TEMPORAL = "DATE", "TIMESTAMP"
FIRST = 20480  # records of which DuckDB looks at the names


class Format(NamedTuple):
    """A format of dates or times that DuckDB found in a file, for the columns of a type."""

    path: str
    kind: str
    format: str | None


class FileTable:
    """Files of one kind as the table `EVENTS`, of which `columns` are known; `use` them before they are read.

    Parameters
    ----------
    database : Database
        It sees these files from now on, and no others.
    paths : sequence of path
    said : str
        All expressions: ``column0`` in these says that a first line holds no names.
    whole : bool
        Whether all rows are looked at to find the types of columns, not some.
    """

    def __init__(self, database: Database, paths: Sequence[str | PathLike[str]], said: str, whole: bool) -> None:
        self._database, self._function = database, FUNCTIONS.get(ending(paths[0]) or "", "read_csv")
        self._files = database.allow(paths)
        self._alike = set[str]()  # names that several columns of a file have, but for their case
        self._options = {"union_by_name": "true"} if len(paths) > 1 else {}
        if whole and self._function != "read_parquet":
            self._options["sample_size"] = "-1"
        with database.naming(None):
            self._find_header(said)
            found = database.describe(f"FROM {self._source()}")
            sql, types = [name for name, _ in found], [kind for _, kind in found]
            self.columns = Columns(self._names(sql), sql, types)
        self._used, self._kinds = set[int](), dict[int, str]()

    def _source(self, files: Sequence[str] | None = None, **options: str) -> str:
        """Return the call that reads files."""
        chosen = self._options | options
        names = ", ".join(map(quoted, self._files if files is None else files))
        return f"{self._function}([{names}]{''.join(f', {name} = {value}' for name, value in chosen.items())})"

    def _find_header(self, said: str) -> None:
        """Have the first line of text be names, unless numbered ones (``column0``) are what is `said`."""
        if self._function != "read_csv":
            return
        names = [name for name, _ in self._database.describe(f"FROM {self._source()}")]
        numbered, wanted = [NUMBERED.fullmatch(name) for name in names], NUMBERED.search(said.lower())
        if any(numbered) if wanted is None else not any(numbered):
            self._options["header"] = str(wanted is None).lower()

    def _names(self, sql: list[str]) -> list[str]:
        """Return the names that the file has for its columns, where DuckDB seems to have changed some."""
        known = {fold(name) for name in sql}
        changed = any((found := RENAMED.fullmatch(name)) and fold(found[1]) in known for name in sql)
        if not changed:
            return sql
        written = [self._written(file) for file in self._files]
        if len(written) == 1 and len(written[0]) == len(sql) and all(map(_is_renamed, written[0], sql)):
            return written[0]
        counts = (Counter(map(fold, names)) for names in written)
        self._alike = {name for names in counts for name, count in names.items() if count > 1}
        return sql

    def _written(self, file: str) -> list[str]:
        """Return the names of a file's columns as they are written."""
        if self._function == "read_parquet":
            from pyarrow.parquet import read_schema

            names: list[str] = read_schema(file).names
            return names
        if self._function == "read_json":
            records = f"(FROM read_json_objects({quoted(file)}) LIMIT {FIRST})"
            rows = self._database.run(f"SELECT DISTINCT json_keys(json) FROM {records}")
            return list(dict.fromkeys(name for (row,) in rows for name in row))
        source = self._source([file], header="false", all_varchar="true")
        rows = self._database.run(f"FROM {source} LIMIT 1")
        return [name or "" for name in rows[0]] if rows else []

    def use(self, usage: Usage) -> None:
        """Make the table; columns whose text is used are read as text, besides."""
        columns, relation = self.columns, f"SELECT * FROM {self._source()}"
        for k in sorted(usage.values | usage.texts):
            name = columns.sql[k]
            if {fold(name), fold(name.rpartition("_")[0])} & self._alike:
                raise InputError(f"column {name}: a file has several that differ in case only: rename these")
        with self._database.naming(None):
            if self._function == "read_csv":
                self._used = set(range(len(columns.sql))) if usage.any else usage.values
                relation = self._text_relation(usage)
            self._database.run(f"CREATE OR REPLACE VIEW {EVENTS} AS {relation}")

    def _text_relation(self, usage: Usage) -> str:
        """Return a query of text, in which some columns are converted here."""
        columns = self.columns
        self._kinds = dict(enumerate(columns.types))
        lacking = self._lacking(self._used | usage.texts)
        self._kinds |= lacking
        numbers = {k for k in usage.keys if self._kinds[k].split("(")[0] in NUMBERS}  # of which labels may be lost
        wanted = (usage.texts | numbers | set(lacking)) - {k for k, kind in self._kinds.items() if kind == "VARCHAR"}
        if not wanted:
            return f"SELECT * FROM {self._source()}"
        taken, replaced, added = {fold(name) for name in columns.sql}, [], []
        for k in sorted(wanted):
            name = identifier(columns.sql[k])
            text = f"CASE WHEN {name} NOT IN ({_listed(NULLS)}) THEN {name} END" if k in lacking else name
            columns.texts[k] = f"text of {columns.sql[k]}"
            while fold(columns.texts[k]) in taken:
                columns.texts[k] += "'"
            taken.add(fold(columns.texts[k]))
            replaced.append(f"{self._converted(text, self._kinds[k])} AS {name}")
            added.append(f"{text} AS {identifier(columns.texts[k])}")
        types = ", ".join(f"{quoted(columns.sql[k])}: 'VARCHAR'" for k in sorted(wanted))
        source = self._source(types=f"{{{types}}}")
        return f"SELECT * REPLACE ({', '.join(replaced)}), {', '.join(added)} FROM {source}"

    def _lacking(self, used: set[int]) -> dict[int, str]:
        """Return the types of columns that are text only because of what stands for missing numbers, dates or times."""
        if not any(self.columns.types[k] == "VARCHAR" for k in used):
            return {}
        found = self._database.describe(f"FROM {self._source(nullstr=f'[{_listed(NULLS)}]')}")
        if len(found) != len(self.columns.sql):
            return {}
        types = {k: kind for k, (_, kind) in enumerate(found) if k in used and self.columns.types[k] == "VARCHAR"}
        return {k: kind for k, kind in types.items() if kind != "VARCHAR"}

    def _converted(self, text: str, kind: str) -> str:
        """Return the expression of what DuckDB would read a text as."""
        formats = {each.format for each in self.formats(kind) if each.format} if kind in TEMPORAL else set()
        if formats:
            return f"CAST(strptime({text}, [{_listed(sorted(formats))}]) AS {kind})"
        if kind in (*WHOLE, *LARGE):  # of which a cast would round 1.5
            text = f"CASE WHEN regexp_full_match({text}, {quoted(INTEGER)}) THEN {text} ELSE '\"' || {text} || '\"' END"
        return f"CAST({text} AS {kind})"

    def formats(self, kind: str) -> list[Format]:
        """Return the formats of dates, or of times, that DuckDB found in each file."""
        found = []
        which = "DateFormat" if kind == "DATE" else "TimestampFormat"
        options = {name: how for name, how in self._options.items() if name != "union_by_name"}
        options["nullstr"] = f"[{_listed(NULLS)}]"
        how = "".join(f", {name} = {value}" for name, value in options.items())
        for file in self._files:
            ((shape,),) = self._database.run(f"SELECT {which} FROM sniff_csv({quoted(file)}{how})")
            found.append(Format(file, kind, shape))
        return found

    def dated(self) -> list[tuple[str, str]]:
        """Return the names and types of text's dates and times that are used."""
        return [(self.columns.sql[k], self._kinds[k]) for k in sorted(self._used) if self._kinds.get(k) in TEMPORAL]

    def texts(self, column: str, condition: str, file: str, limit: int = 1) -> list[str]:
        """Return some of what is written in a column of a file."""
        source = self._source([file], all_varchar="true")
        with self._database.naming(None):
            rows = self._database.run(f"SELECT {identifier(column)} FROM {source} WHERE {condition} LIMIT {limit}")
        return [text for (text,) in rows]


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(map(quoted, texts))


def _is_renamed(name: str, sql: str) -> bool:
    """Tell whether DuckDB may call a column `sql` that a file calls `name`."""
    name = name.strip()
    return sql == name or sql.startswith(f"{name}_") or bool(NUMBERED.fullmatch(sql) and not name)
