"""Results as JSON: a line each while they are made, so that a run can be taken up again, and the
whole of a run at its end."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from weft.foundation.errors import UserError
from weft.testing.conformance.judge import WrongElement
from weft.testing.conformance.run import Failure, Outcome, Result


def encode_result(result: Result) -> dict[str, Any]:
    """A result as plain data; what is empty is left out."""
    return {
        key: value for key, value in dataclasses.asdict(result).items() if value not in ((), "")
    }


def decode(data: dict[str, Any]) -> Result:
    """The result that `encode` wrote."""
    fields = {
        field.name: data[field.name] for field in dataclasses.fields(Result) if field.name in data
    }
    fields["outcome"] = Outcome(fields["outcome"])
    fields["decomposed"] = tuple(fields.get("decomposed", ()))
    if fields.get("failure"):
        fields["failure"] = _failure(fields["failure"])
    return Result(**fields)


def _failure(data: dict[str, Any]) -> Failure:
    parts = {name: tuple(data[name]) for name in ("inputs", "expected", "got")}
    elements = tuple(WrongElement(**element) for element in data["elements"])
    return Failure(data["program"], **parts, elements=elements)


class Journal:
    """A file with a line of JSON for each finished case."""

    def __init__(self, path: Path, backend: str) -> None:
        self.path = path
        self.backend = backend
        self.done: dict[str, Result] = {}
        """What the file already holds for this backend, by case."""
        self._read_lines()
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from None

    def _read_lines(self) -> None:
        if not self.path.exists():
            return
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror or error}") from None
        for number, line in enumerate(lines):
            record = _parse_record(line)
            if record is not None:
                if record["backend"] == self.backend:
                    result = self._result(record, number)
                    self.done[result.id] = result
            elif line and number == 0:
                raise UserError(
                    f"{self.path} does not hold conformance results; it was not changed"
                )
        if lines[-1]:
            # A line that was cut off when the last run ended.
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def _result(self, record: dict[str, Any], number: int) -> Result:
        try:
            result = decode(record)
            hash(result)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"line {number + 1} of {self.path} is not a conformance result of this version "
                f"({type(error).__name__}: {error}); take the line out, or give another file"
            ) from None
        return result

    def add(self, result: Result) -> None:
        """Write a result down at once."""
        line = json.dumps({"backend": self.backend, **encode_result(result)}, ensure_ascii=False)
        self._file.write(line + "\n")
        self._file.flush()
        self.done[result.id] = result

    def close(self) -> None:
        self._file.close()


def _parse_record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    known = isinstance(record, dict) and {"backend", "id", "outcome"} <= record.keys()
    return record if known else None


def write_json(path: Path, backend: str, results: Iterable[Result]) -> None:
    """The whole of a run as one JSON document."""
    encoded = [encode_result(result) for result in results]
    counts = {outcome.value: 0 for outcome in Outcome}
    for result in encoded:
        counts[result["outcome"]] += 1
    document = {"backend": backend, "cases": len(encoded), **counts, "results": encoded}
    try:
        path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
