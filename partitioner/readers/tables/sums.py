"""The value of a nonzero of a table: an SQL expression that is summed, or the number of rows."""

from __future__ import annotations

from typing import NamedTuple

from ...errors import InputError
from ...wording import parameter
from .database import EVENTS, Database
from .expressions import TableColumns
from .keys import NUMBERS


class Value(NamedTuple):
    """The value of a nonzero.

    Attributes
    ----------
    column : str or None
        SQL expression of the value; None if rows are counted.
    aggregate : bool
        Whether it is an aggregate over rows with equal keys.
    exact : bool
        Whether sums do not depend on their order.
    """

    column: str | None = None
    aggregate: bool = False
    exact: bool = True

    @classmethod
    def of(cls, database: Database, columns: TableColumns, text: str | None) -> Value:
        """Return the value for an expression; raise `InputError` if it is not a number."""
        if text is None or "".join(text.lower().split()) in ("count(*)", "count()"):
            return cls()
        name = f"{parameter('value')} {text!r}"
        expression, _ = columns.expression(database, name, text)
        with database.naming(name):
            ((_, kind),) = database.describe(f"SELECT {expression} FROM {EVENTS}")
        if kind.split("(")[0] not in NUMBERS:
            of_text = kind == "VARCHAR"
            advice = f"; if it has decimal commas, use replace({text}, ',', '.')::DOUBLE" if of_text else ""
            raise InputError(f"{name}: has type {'text' if of_text else kind}, expected a number{advice}")
        aggregate = False
        try:
            with database.naming(name):
                database.describe(f"SELECT 1 FROM {EVENTS} WHERE {expression} IS NULL")
        except InputError:  # aggregates are not allowed in conditions
            aggregate = True
        exact = kind not in ("FLOAT", "DOUBLE") and not aggregate
        number = expression if exact else f"CAST({expression} AS DOUBLE)"
        if kind in ("FLOAT", "DOUBLE"):
            number = f"CASE WHEN NOT isnan({expression}) THEN {number} END"
        return cls(f"CAST({expression} AS TINYINT)" if kind == "BOOLEAN" else number, aggregate, exact)
