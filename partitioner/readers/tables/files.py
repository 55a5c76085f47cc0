"""Files as DuckDB tables: columns with the names in the files, and text that preserves what was written.

DuckDB infers the types of columns in text files from the first rows. The original text of a number or a date is then
lost. Columns whose text is used, or compared with values, are therefore read as text and converted here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import combinations
from os import PathLike
from typing import Any, NamedTuple

from ...errors import InputError
from .categories import of_parquet
from .conversions import INTEGER, TEMPORAL, converted, listed
from .database import EVENTS, FUNCTIONS, Database, MisreadError, ending, identifier, quoted
from .expressions import TableColumns, Usage, fold
from .keys import NESTED, NUMBERS
from .ragged import check_fields, check_first_lines

NUMBERED = re.compile(r"column\d+")
RENAMED = re.compile(r"(.*)_\d+", re.DOTALL)
NULLS = ("", *"NA N/A n/a #N/A #NA <NA> NULL null None NaN -NaN nan -nan NaT".split(), r"\N")
"""Texts for missing numbers, dates and times; in columns of text, only the first one counts as missing."""

FILE = "amped file"  # name of a column with the file of each row
FIRST = 20480  # records in which DuckDB looks for names
LONG = r"[:\[,]-?[0-9]{17,}[,}\]]"  # a whole number in JSON that a double may not represent


class Format(NamedTuple):
    """A date or time format that DuckDB inferred in a file for the columns of a type."""

    path: str
    kind: str
    format: str | None


class FileTable:
    """Files of one type as the table `EVENTS`. `columns` are known at once; call `use` before reading.

    Parameters
    ----------
    database : Database
        Database; afterwards it can access these files and no others.
    paths : sequence of path
        The files.
    expressions : str
        Text of all expressions: if it contains ``column0``, the first line has no names.
    whole : bool
        Whether types are inferred from all rows.
    """

    def __init__(self, database: Database, paths: Sequence[str | PathLike[str]], expressions: str, whole: bool) -> None:
        self._database, self._function = database, FUNCTIONS.get(ending(paths[0]) or "", "read_csv")
        self._files = database.allow(paths)
        self._alike = set[str]()  # names of columns of a file that differ only in case
        self._options = {"union_by_name": "true"} if len(paths) > 1 else {}
        self._whole, self.once = whole, self._function != "read_parquet"
        self.relation = EVENTS
        self._sampled = {"sample_size": "-1"} if whole and self.once else {}
        with database.naming(None):
            self._find_header(expressions)
            description = database.describe(f"FROM {self._source(**self._sampled)}")
            sql, types = [name for name, _ in description], [kind for _, kind in description]
            if self._function == "read_csv":
                header = {name: value for name, value in self._options.items() if name == "header"}
                check_first_lines(database, self._files, header | self._sampled)
                check_fields(self._files, sql)
            self.columns = TableColumns(self._names(sql), sql, types)
        self._used, self._kinds = set[int](), dict[int, str]()
        self._formats: dict[str, list[Format]] = {}
        self.notes: list[str] = []  # warnings

    def _source(self, files: Sequence[str] | None = None, **options: str) -> str:
        """Return the SQL call that reads files."""
        chosen = self._options | options
        names = ", ".join(map(quoted, self._files if files is None else files))
        return f"{self._function}([{names}]{''.join(f', {name} = {value}' for name, value in chosen.items())})"

    def _find_header(self, expressions: str) -> None:
        """Read names from the first line of text files, unless `expressions` use numbered names (``column0``)."""
        if self._function != "read_csv":
            return
        names = [name for name, _ in self._database.describe(f"FROM {self._source()}")]
        numbered, requested = [NUMBERED.fullmatch(name) for name in names], NUMBERED.search(expressions.lower())
        if any(numbered) if requested is None else not any(numbered):
            self._options["header"] = str(requested is None).lower()

    def _names(self, sql: list[str]) -> list[str]:
        """Return the column names in the file if DuckDB seems to have changed some."""
        folded = {fold(name) for name in sql}
        changed = any((match := RENAMED.fullmatch(name)) and fold(match[1]) in folded for name in sql)
        if not changed:
            return sql
        written = [self._written(file) for file in self._files]
        if len(written) == 1 and len(written[0]) == len(sql) and all(map(_is_renamed, written[0], sql)):
            return written[0]
        counts = (Counter(map(fold, names)) for names in written)
        self._alike = {name for names in counts for name, count in names.items() if count > 1}
        return sql

    def _written(self, file: str) -> list[str]:
        """Return the column names as written in a file."""
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
        """Choose how to read the columns in use, and create an empty table `EVENTS` with their types.

        Expressions can be checked on an empty table without reading the files again.
        """
        columns = self.columns
        for k in sorted(usage.values | usage.texts):
            name = columns.sql[k]
            if {fold(name), fold(name.rpartition("_")[0])} & self._alike:
                raise InputError(
                    f"column {name}: a file has several columns whose names differ only in case: rename them"
                )
        self._used = set(range(len(columns.sql))) if usage.any else usage.values
        self._kinds = dict(enumerate(columns.types))
        with self._database.naming(None):
            if not self.once:
                self._database.run(f"CREATE VIEW {EVENTS} AS FROM {self._source()}")
                return
            self.relation = self._csv(usage) if self._function == "read_csv" else self._json(usage)
            self._database.run(f"CREATE TEMP TABLE {EVENTS} AS FROM {self.relation} LIMIT 0")

    def _csv(self, usage: Usage) -> str:
        """Return a query of CSV files that converts the columns in use."""
        lacking = self._lacking(self._used | usage.texts)
        self._kinds |= lacking
        return self._converted(self._used | set(lacking), usage, usage.texts | set(lacking), lacking)

    def _json(self, usage: Usage) -> str:
        """Return a query of JSON files that converts the columns in use unless they are nested."""
        used = self._used | usage.texts
        scalar = {k for k in used if not (self._kinds[k] == "JSON" or NESTED.search(self._kinds[k]))}
        renamed = self.columns.names != self.columns.sql or bool(self._alike)
        if renamed or any(NESTED.search(self._kinds[k]) for k in used):
            if not self._whole:
                raise MisreadError("types of nested or renamed columns depend on all rows")
            self._note_rounded(used)
            if renamed:
                return f"(FROM {self._source(**self._sampled)})"
        self._kinds |= self._recognized(scalar)
        return self._converted(scalar & self._used, usage, usage.texts & scalar, ())

    def _note_rounded(self, used: set[int]) -> None:
        """Warn of columns with long integers in nested objects, which DuckDB reads as doubles."""
        for k in sorted(used):
            name, kind = self.columns.sql[k], self._kinds[k]
            if NESTED.search(kind) and "DOUBLE" in kind:
                source = self._source(columns=f"{{{quoted(name)}: 'JSON'}}")
                text = f"CAST({identifier(name)} AS VARCHAR)"
                if self._database.run(f"SELECT 1 FROM {source} WHERE regexp_matches({text}, {quoted(LONG)}) LIMIT 1"):
                    problem = f"column {name}: whole numbers of 17 digits or more inside its objects are rounded"
                    self.notes.append(f"{problem}, so labels made of them may merge; write them as strings")

    def _recognized(self, used: set[int]) -> dict[int, str]:
        """Return more precise types of JSON columns: integers of up to 128 bits, and text for dates other than ISO."""
        large = f"bool_and(regexp_full_match({{0}}, {quoted(INTEGER)}) AND TRY_CAST({{0}} AS HUGEINT) IS NOT NULL)"
        other = "NOT bool_and(TRY_CAST({0} AS TIMESTAMPTZ) IS NOT NULL)"
        checks = {"DOUBLE": (large, "HUGEINT"), **dict.fromkeys(TEMPORAL, (other, "VARCHAR"))}
        candidates = [k for k in sorted(used) if self._kinds[k] in checks]
        if not candidates:
            return {}
        texts = [identifier(self.columns.sql[k]) for k in candidates]
        conditions = [checks[self._kinds[k]][0].format(name) for k, name in zip(candidates, texts, strict=True)]
        limit = "" if self._whole else f" LIMIT {FIRST}"
        source = self._typed(set(candidates))
        ((*which,),) = self._database.run(f"SELECT {', '.join(conditions)} FROM (FROM {source}{limit})")
        return {k: checks[self._kinds[k]][1] for k, change in zip(candidates, which, strict=True) if change}

    def _converted(self, used: set[int], usage: Usage, texts: set[int], lacking: Collection[int]) -> str:
        """Return a query that converts columns; those whose text is used are also available as text."""
        columns = self.columns
        kinds = (*NUMBERS, "TIME", "TIMESTAMP") if self._function == "read_csv" else ("DOUBLE", "TIME", "TIMESTAMP")
        lossy = {k for k in usage.keys if self._kinds[k].split("(")[0] in kinds}
        texts = {k for k in texts | lossy if self._kinds[k] != "VARCHAR"}
        used = {k for k in used | texts if self._kinds[k] != "VARCHAR" and not NESTED.search(self._kinds[k])}
        used -= {k for k in used if self._kinds[k] == "JSON"}
        names_in_use, replaced, added = {fold(name) for name in columns.sql}, [], []
        for k in sorted(used):
            name, kind = identifier(columns.sql[k]), self._kinds[k]
            text = f"CASE WHEN {name} NOT IN ({listed(NULLS)}) THEN {name} END" if k in lacking else name
            replaced.append(f"{self._value(text, kind, k in usage.keys)} AS {name}")
            if k in texts:
                columns.texts[k] = f"text of {columns.sql[k]}"
                while fold(columns.texts[k]) in names_in_use:
                    columns.texts[k] += "'"
                names_in_use.add(fold(columns.texts[k]))
                added.append(f"{text} AS {identifier(columns.texts[k])}")
        replace = f" REPLACE ({', '.join(replaced)})" if replaced else ""
        star = f"* EXCLUDE ({identifier(FILE)})" if "filename" in self._options else "*"
        return f"(SELECT {', '.join([f'{star}{replace}', *added])} FROM {self._typed(used)})"

    def _typed(self, texts: set[int]) -> str:
        """Return the call that reads the files with fixed types, some columns as text."""
        types = {k: "VARCHAR" if k in texts else self._kinds[k] for k in self._kinds}
        listing = ", ".join(f"{quoted(self.columns.sql[k])}: {quoted(kind)}" for k, kind in types.items())
        if self._function == "read_csv":  # quotes may also have to be inferred from all rows
            return self._source(types=f"{{{listing}}}", **self._sampled)
        return self._source(columns=f"{{{listing}}}")

    def _lacking(self, used: set[int]) -> dict[int, str]:
        """Return the types of columns that are text only because of texts for missing values."""
        if not any(self.columns.types[k] == "VARCHAR" for k in used):
            return {}
        description = self._database.describe(f"FROM {self._source(nullstr=f'[{listed(NULLS)}]', **self._sampled)}")
        if len(description) != len(self.columns.sql):
            return {}
        types = {k: kind for k, (_, kind) in enumerate(description) if k in used and self.columns.types[k] == "VARCHAR"}
        return {k: kind for k, kind in types.items() if kind != "VARCHAR"}

    def _value(self, text: str, kind: str, label: bool) -> str:
        """Return the expression of a text's value; several files may have dates in conflicting formats."""
        if self._function != "read_csv" or kind not in TEMPORAL:
            return converted(text, kind, (), label=label, whole=self._whole)
        inferred = self.formats(kind)
        formats = sorted({each.format for each in inferred if each.format})
        if not any(sorted(one) == sorted(other) for one, other in combinations(formats, 2)):
            return converted(text, kind, formats, whole=self._whole)
        self._options["filename"] = quoted(FILE)
        each = {file: converted(text, kind, [form] if form else [], whole=self._whole) for file, _, form in inferred}
        cases = " ".join(f"WHEN {quoted(file)} THEN {value}" for file, value in each.items())
        return f"CASE {identifier(FILE)} {cases} END"

    def formats(self, kind: str) -> list[Format]:
        """Return the date or timestamp format that DuckDB inferred in each file."""
        if kind in self._formats:
            return self._formats[kind]
        formats = self._formats[kind] = []
        which = "DateFormat" if kind == "DATE" else "TimestampFormat"
        options = {name: how for name, how in self._options.items() if name == "header"} | self._sampled
        options["nullstr"] = f"[{listed(NULLS)}]"
        how = "".join(f", {name} = {value}" for name, value in options.items())
        for file in self._files:
            ((shape,),) = self._database.run(f"SELECT {which} FROM sniff_csv({quoted(file)}{how})")
            formats.append(Format(file, kind, shape))
        return formats

    def dated(self) -> list[tuple[str, str]]:
        """Return the names and types of CSV columns in use that are dates or timestamps."""
        if self._function != "read_csv":
            return []
        return [(self.columns.sql[k], self._kinds[k]) for k in sorted(self._used) if self._kinds.get(k) in TEMPORAL]

    def categories(self, k: int) -> list[Any]:
        """Return the dictionaries of a column's ordered categories, which only Parquet files have."""
        return of_parquet(self._files, self.columns.names[k]) if self._function == "read_parquet" else []

    def texts(self, column: str, condition: str, file: str, limit: int = 1) -> list[str]:
        """Return up to `limit` texts in a column of a file that satisfy a condition."""
        source = self._source([file], all_varchar="true")
        with self._database.naming(None):
            rows = self._database.run(f"SELECT {identifier(column)} FROM {source} WHERE {condition} LIMIT {limit}")
        return [text for (text,) in rows]


def _is_renamed(name: str, sql: str) -> bool:
    """Return whether DuckDB may use `sql` for a column that a file calls `name`."""
    name = name.strip()
    return sql == name or sql.startswith(f"{name}_") or bool(NUMBERED.fullmatch(sql) and not name)
