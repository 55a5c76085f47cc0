"""Files as tables of DuckDB's: their columns by the names that the files have, and text that keeps what was written.

DuckDB finds the types of a text's columns in its first rows. A number is then no longer the text that it was, nor is a
date. So columns whose text is used, or compared with the values, are read as text and converted here.
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
"""What stands for a missing number, date or time in text; in columns of text they are texts, but for the first."""

FILE = "amped file"  # a column that says which file a row is from
FIRST = 20480  # records of which DuckDB looks at the names
LONG = r"[:\[,]-?[0-9]{17,}[,}\]]"  # a whole number in JSON that a double may not hold


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
        self._whole, self.once = whole, self._function != "read_parquet"
        self.relation = EVENTS
        self._sampled = {"sample_size": "-1"} if whole and self.once else {}
        with database.naming(None):
            self._find_header(said)
            found = database.describe(f"FROM {self._source(**self._sampled)}")
            sql, types = [name for name, _ in found], [kind for _, kind in found]
            if self._function == "read_csv":
                header = {name: how for name, how in self._options.items() if name == "header"}
                check_first_lines(database, self._files, header | self._sampled)
                check_fields(self._files, sql)
            self.columns = TableColumns(self._names(sql), sql, types)
        self._used, self._kinds = set[int](), dict[int, str]()
        self._formats: dict[str, list[Format]] = {}
        self.notes: list[str] = []  # warnings

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
        """Choose how to read the columns in use, and make an empty table `EVENTS` that has their types.

        Against an empty table expressions are checked without a new look at the files.
        """
        columns = self.columns
        for k in sorted(usage.values | usage.texts):
            name = columns.sql[k]
            if {fold(name), fold(name.rpartition("_")[0])} & self._alike:
                raise InputError(f"column {name}: a file has several that differ in case only: rename these")
        self._used = set(range(len(columns.sql))) if usage.any else usage.values
        self._kinds = dict(enumerate(columns.types))
        with self._database.naming(None):
            if not self.once:
                self._database.run(f"CREATE VIEW {EVENTS} AS FROM {self._source()}")
                return
            self.relation = self._csv(usage) if self._function == "read_csv" else self._json(usage)
            self._database.run(f"CREATE TEMP TABLE {EVENTS} AS FROM {self.relation} LIMIT 0")

    def _csv(self, usage: Usage) -> str:
        """Return a query of CSV, in which the columns in use are converted here."""
        lacking = self._lacking(self._used | usage.texts)
        self._kinds |= lacking
        return self._converted(self._used | set(lacking), usage, usage.texts | set(lacking), lacking)

    def _json(self, usage: Usage) -> str:
        """Return a query of JSON, in which the columns in use are converted here unless they are nested."""
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
        """Warn of columns in which whole numbers inside objects are rounded, as DuckDB reads them as doubles."""
        for k in sorted(used):
            name, kind = self.columns.sql[k], self._kinds[k]
            if NESTED.search(kind) and "DOUBLE" in kind:
                source = self._source(columns=f"{{{quoted(name)}: 'JSON'}}")
                text = f"CAST({identifier(name)} AS VARCHAR)"
                if self._database.run(f"SELECT 1 FROM {source} WHERE regexp_matches({text}, {quoted(LONG)}) LIMIT 1"):
                    what = f"column {name}: whole numbers of 17 digits or more inside its objects are rounded"
                    self.notes.append(f"{what}, so labels made of them may merge; write them as strings")

    def _recognized(self, used: set[int]) -> dict[int, str]:
        """Return better types of JSON's columns: whole numbers of up to 128 bits, and text for dates other than ISO."""
        large = f"bool_and(regexp_full_match({{0}}, {quoted(INTEGER)}) AND TRY_CAST({{0}} AS HUGEINT) IS NOT NULL)"
        other = "NOT bool_and(TRY_CAST({0} AS TIMESTAMPTZ) IS NOT NULL)"
        checks = {"DOUBLE": (large, "HUGEINT"), **dict.fromkeys(TEMPORAL, (other, "VARCHAR"))}
        seen = [k for k in sorted(used) if self._kinds[k] in checks]
        if not seen:
            return {}
        texts = [identifier(self.columns.sql[k]) for k in seen]
        found = [checks[self._kinds[k]][0].format(name) for k, name in zip(seen, texts, strict=True)]
        limit = "" if self._whole else f" LIMIT {FIRST}"
        source = self._typed(set(seen))
        ((*which,),) = self._database.run(f"SELECT {', '.join(found)} FROM (FROM {source}{limit})")
        return {k: checks[self._kinds[k]][1] for k, change in zip(seen, which, strict=True) if change}

    def _converted(self, wanted: set[int], usage: Usage, texts: set[int], lacking: Collection[int]) -> str:
        """Return a query, in which columns are converted here; those whose text is used are text, besides."""
        columns = self.columns
        kinds = (*NUMBERS, "TIME", "TIMESTAMP") if self._function == "read_csv" else ("DOUBLE", "TIME", "TIMESTAMP")
        lossy = {k for k in usage.keys if self._kinds[k].split("(")[0] in kinds}
        texts = {k for k in texts | lossy if self._kinds[k] != "VARCHAR"}
        wanted = {k for k in wanted | texts if self._kinds[k] != "VARCHAR" and not NESTED.search(self._kinds[k])}
        wanted -= {k for k in wanted if self._kinds[k] == "JSON"}
        taken, replaced, added = {fold(name) for name in columns.sql}, [], []
        for k in sorted(wanted):
            name, kind = identifier(columns.sql[k]), self._kinds[k]
            text = f"CASE WHEN {name} NOT IN ({listed(NULLS)}) THEN {name} END" if k in lacking else name
            replaced.append(f"{self._value(text, kind, k in usage.keys)} AS {name}")
            if k in texts:
                columns.texts[k] = f"text of {columns.sql[k]}"
                while fold(columns.texts[k]) in taken:
                    columns.texts[k] += "'"
                taken.add(fold(columns.texts[k]))
                added.append(f"{text} AS {identifier(columns.texts[k])}")
        replace = f" REPLACE ({', '.join(replaced)})" if replaced else ""
        star = f"* EXCLUDE ({identifier(FILE)})" if "filename" in self._options else "*"
        return f"(SELECT {', '.join([f'{star}{replace}', *added])} FROM {self._typed(wanted)})"

    def _typed(self, texts: set[int]) -> str:
        """Return the call that reads the files, some of their columns as text, with no types left to find."""
        types = {k: "VARCHAR" if k in texts else self._kinds[k] for k in self._kinds}
        listing = ", ".join(f"{quoted(self.columns.sql[k])}: {quoted(kind)}" for k, kind in types.items())
        if self._function == "read_csv":  # of which quotes, too, may be found in all rows only
            return self._source(types=f"{{{listing}}}", **self._sampled)
        return self._source(columns=f"{{{listing}}}")

    def _lacking(self, used: set[int]) -> dict[int, str]:
        """Return the types of columns that are text only because of what stands for missing numbers, dates or times."""
        if not any(self.columns.types[k] == "VARCHAR" for k in used):
            return {}
        found = self._database.describe(f"FROM {self._source(nullstr=f'[{listed(NULLS)}]', **self._sampled)}")
        if len(found) != len(self.columns.sql):
            return {}
        types = {k: kind for k, (_, kind) in enumerate(found) if k in used and self.columns.types[k] == "VARCHAR"}
        return {k: kind for k, kind in types.items() if kind != "VARCHAR"}

    def _value(self, text: str, kind: str, label: bool) -> str:
        """Return the expression of a text's value; dates of several files may be written in ways that conflict."""
        if self._function != "read_csv" or kind not in TEMPORAL:
            return converted(text, kind, (), label=label, whole=self._whole)
        found = self.formats(kind)
        formats = sorted({each.format for each in found if each.format})
        if not any(sorted(one) == sorted(other) for one, other in combinations(formats, 2)):
            return converted(text, kind, formats, whole=self._whole)
        self._options["filename"] = quoted(FILE)
        each = {file: converted(text, kind, [form] if form else [], whole=self._whole) for file, _, form in found}
        cases = " ".join(f"WHEN {quoted(file)} THEN {value}" for file, value in each.items())
        return f"CASE {identifier(FILE)} {cases} END"

    def formats(self, kind: str) -> list[Format]:
        """Return the formats of dates, or of times, that DuckDB found in each file."""
        if kind in self._formats:
            return self._formats[kind]
        found = self._formats[kind] = []
        which = "DateFormat" if kind == "DATE" else "TimestampFormat"
        options = {name: how for name, how in self._options.items() if name == "header"} | self._sampled
        options["nullstr"] = f"[{listed(NULLS)}]"
        how = "".join(f", {name} = {value}" for name, value in options.items())
        for file in self._files:
            ((shape,),) = self._database.run(f"SELECT {which} FROM sniff_csv({quoted(file)}{how})")
            found.append(Format(file, kind, shape))
        return found

    def dated(self) -> list[tuple[str, str]]:
        """Return the names and types of CSV's dates and times that are used."""
        if self._function != "read_csv":
            return []
        return [(self.columns.sql[k], self._kinds[k]) for k in sorted(self._used) if self._kinds.get(k) in TEMPORAL]

    def categories(self, k: int) -> list[Any]:
        """Return the dictionaries of a column's categories, if these have an order: only Parquet has them."""
        return of_parquet(self._files, self.columns.names[k]) if self._function == "read_parquet" else []

    def texts(self, column: str, condition: str, file: str, limit: int = 1) -> list[str]:
        """Return some of what is written in a column of a file."""
        source = self._source([file], all_varchar="true")
        with self._database.naming(None):
            rows = self._database.run(f"SELECT {identifier(column)} FROM {source} WHERE {condition} LIMIT {limit}")
        return [text for (text,) in rows]


def _is_renamed(name: str, sql: str) -> bool:
    """Tell whether DuckDB may call a column `sql` that a file calls `name`."""
    name = name.strip()
    return sql == name or sql.startswith(f"{name}_") or bool(NUMBERED.fullmatch(sql) and not name)
