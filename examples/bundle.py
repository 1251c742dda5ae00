"""A model built as a bundle, and run from C and C++.

    python -m examples.bundle [--out DIR]        (or: make example-c)

The example of the bundle is compiled by gcc and by g++, with warnings as errors, linked with the
shared library and with the archive, and run; so is the same model from Python.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import numpy as np

import weft
from weft import functional as F
from weft import nn

STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-O2")
COMPILERS = {"gcc": ("-std=c99",), "g++": ("-std=c++11", "-x", "c++")}


def build(folder: Path) -> Path:
    """A classifier for 1 to 32 rows."""
    nn.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))
    classify = weft.jit(lambda x: F.softmax(model(x), axis=-1), dynamic={"x": {0: "B"}})
    x = np.zeros((1, 64), np.float32)
    return weft.build(classify, x, out=folder, name="classify", sizes={"B": (1, 32)})


def run(folder: Path, compiler: str, linked: str) -> str:
    """What the example prints."""
    library = [f"-L{folder}", "-lclassify", f"-Wl,-rpath,{folder.resolve()}"]
    if linked == "static":
        library = [str(folder / "libclassify.a"), "-lpthread"]
    program = folder.parent / f"example-{compiler}-{linked}"
    source = [*COMPILERS[compiler], str(folder / "example.c"), "-x", "none", f"-I{folder}"]
    subprocess.run([compiler, *STRICT, *source, "-o", str(program), *library], check=True)  # noqa: S603
    command = [str(program), str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="build a model, and run it from C and C++")
    parser.add_argument("--out", type=Path, default=Path("build/example-c"))
    folder = build(parser.parse_args().out / "classify")
    bundle = weft.load_bundle(folder)
    print(f"Python: out[0] = {bundle(np.zeros((1, 64), np.float32))[0][0, 0]:g}")
    for compiler in COMPILERS:
        if shutil.which(compiler) is None:
            print(f"there is no {compiler}: install it to see the example in its language")
            continue
        for linked in ("shared", "static"):
            print(f"{compiler}, {linked}: {run(folder, compiler, linked).strip()}")


if __name__ == "__main__":
    main()
