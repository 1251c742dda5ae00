"""C as text: literals and tables."""

from __future__ import annotations

from collections.abc import Iterable


def c_string(text: str | None) -> str:
    """A string literal; a null pointer for None."""
    if text is None:
        return "NULL"
    # Two question marks begin a trigraph in old C. Other bytes are octal: an octal escape ends
    # after three digits, whatever comes next.
    plain = {ord('"'): '\\"', ord("\\"): "\\\\", ord("?"): "\\?"}
    body = "".join(
        plain.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
        for byte in text.encode()
    )
    return f'"{body}"'


def c_array(kind: str, name: str, items: Iterable[str], nothing: str = "0") -> str:
    """A constant table; C has none without elements."""
    listed = list(items) or [nothing]
    lines, line = [], "   "
    for item in listed:
        if len(line) + len(item) > 98:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join([f"static const {kind} {name}[] = {{", *lines, line, "};"])


def comment(text: str) -> str:
    """Text that does not end the comment around it."""
    return text.replace("*/", "* /").replace("\n", " ")
