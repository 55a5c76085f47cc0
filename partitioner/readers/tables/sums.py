"""What is added up of a table: an expression of SQL, or the rows themselves."""

from __future__ import annotations

from typing import NamedTuple

from ...errors import InputError
from .database import EVENTS, Database
from .expressions import TableColumns
from .keys import NUMBERS


class Value(NamedTuple):
    """What is added up.

    Attributes
    ----------
    column : str or None
        Its expression; None where rows are counted.
    aggregate : bool
        Whether it is one over rows of equal keys.
    exact : bool
        Whether sums do not depend on their order.
    """

    column: str | None = None
    aggregate: bool = False
    exact: bool = True

    @classmethod
    def of(cls, database: Database, columns: TableColumns, text: str | None) -> Value:
        """Return what an expression stands for; raise `InputError` if it is no number."""
        if text is None or "".join(text.lower().split()) in ("count(*)", "count()"):
            return cls()
        told = f"--value {text!r}"
        single, _ = columns.expression(database, told, text)
        with database.naming(told):
            ((_, kind),) = database.describe(f"SELECT {single} FROM {EVENTS}")
        if kind.split("(")[0] not in NUMBERS:
            advice = f"; if it has decimal commas, use replace({text}, ',', '.')::DOUBLE" if kind == "VARCHAR" else ""
            raise InputError(f"{told}: is no number, but {kind}{advice}")
        aggregate = False
        try:
            with database.naming(told):
                database.describe(f"SELECT 1 FROM {EVENTS} WHERE {single} IS NULL")
        except InputError:  # aggregates, unlike other expressions, are no condition
            aggregate = True
        exact = kind not in ("FLOAT", "DOUBLE") and not aggregate
        number = single if exact else f"CAST({single} AS DOUBLE)"
        if kind in ("FLOAT", "DOUBLE"):
            number = f"CASE WHEN NOT isnan({single}) THEN {number} END"
        return cls(f"CAST({single} AS TINYINT)" if kind == "BOOLEAN" else number, aggregate, exact)
