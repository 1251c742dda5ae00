"""The wheel `weft-runtime`: what runs bundles, without the compiler.

    python -m weft.bundles.wheel --out dist        (or: make runtime-wheel)

It is `weft.bundles.load` with the modules that it needs, as the package `weft_runtime`: so it can
be installed beside Weft, or without it. The same sources give the same bytes.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import zipfile
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path
from typing import Final

_OWN: Final = "weft_runtime"
_ENTRY: Final = "bundles/load.py"
_NEEDED: Final = ("numpy", "ml_dtypes")
_INIT: Final = '''"""Models that `weft.build` wrote, without the compiler."""

from weft_runtime.bundles.load import Bundle, Instance, load_bundle
from weft_runtime.foundation.errors import WeftError

__all__ = ["Bundle", "Instance", "WeftError", "load_bundle"]
__version__ = "@VERSION@"
'''


def write_wheel(out: Path) -> Path:
    """Write the wheel into a folder; where it is."""
    version = metadata.version("weft")
    info = f"{_OWN}-{version}.dist-info"
    files = {f"{_OWN}/__init__.py": _INIT.replace("@VERSION@", version)}
    for path, text in sorted(_module_texts().items()):
        files[f"{_OWN}/{path}"] = text.replace("from weft.", f"from {_OWN}.")
    files[f"{_OWN}/py.typed"] = ""
    files[f"{info}/METADATA"] = _metadata(version)
    files[f"{info}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = [*(_record_file(name, text) for name, text in files.items()), f"{info}/RECORD,,"]
    files[f"{info}/RECORD"] = "\n".join(record) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    wheel = out / f"{_OWN}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, text)
    return wheel


def _module_texts() -> dict[str, str]:
    """The texts of the modules that the entry needs, and of their packages, by path."""
    root = resources.files("weft")
    found: dict[str, str] = {}
    waiting = [_ENTRY]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = root.joinpath(path).read_text()
        waiting += _list_imports(found[path])
        waiting += [
            f"{folder.as_posix()}/__init__.py" for folder in Path(path).parents if folder.name
        ]
    return found


def _list_imports(source: str) -> Iterator[str]:
    """The modules of ours that a text imports, as paths."""
    root = resources.files("weft")
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("weft."):
            continue
        path = (node.module or "").removeprefix("weft.").replace(".", "/")
        for name in ("", *(f"/{alias.name}" for alias in node.names)):
            if root.joinpath(f"{path}{name}.py").is_file():
                yield f"{path}{name}.py"


def _metadata(version: str) -> str:
    lines = ["Metadata-Version: 2.1", "Name: weft-runtime", f"Version: {version}"]
    lines += ["Summary: Runs models that weft.build wrote, without the compiler"]
    needed = [each for each in metadata.requires("weft") or () if each.startswith(_NEEDED)]
    lines += ["Requires-Python: >=3.11", *(f"Requires-Dist: {each}" for each in needed)]
    return "\n".join(lines) + "\n"


def _record_file(name: str, text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(text.encode())}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the wheel weft-runtime.")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="the folder it goes to")
    wheel = write_wheel(parser.parse_args().out)
    print(f"wrote {wheel}, {wheel.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
