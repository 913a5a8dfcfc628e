"""What a bench may find: a figure beside its budget, met or missed."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Figure:
    """One measured value and the bound it is held to.

    value: None when this run of the bench could not measure it; `note` says why then.
    """

    name: str
    value: float | None
    sign: Literal["≤", "≥", ">"]
    budget: float
    unit: str = ""
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the value keeps to the budget; None when there is no value."""
        if self.value is None:
            return None
        if self.sign == "≤":
            return self.value <= self.budget
        return self.value >= self.budget if self.sign == "≥" else self.value > self.budget

    @property
    def verdict(self) -> str:
        """`met`, `missed`, or why nothing can be said."""
        return {True: "met", False: "missed", None: self.note}[self.is_met]

    def row(self) -> list[str]:
        """Name, value, budget and verdict, for a table."""
        value = "–" if self.value is None else self._written(self.value)
        return [self.name, value, f"{self.sign} {self._written(self.budget)}", self.verdict]

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        bound = {"sign": self.sign, "budget": self.budget, "unit": self.unit}
        return {"name": self.name, "value": self.value} | bound | {"is_met": self.is_met, "note": self.note}

    def _written(self, number: float) -> str:
        return f"{number:,.0f} {self.unit}" if self.unit else f"{number:.2f}"
