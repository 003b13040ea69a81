"""Where the program of this package is: the module starts it to compile kernels."""

import os
import shutil
import subprocess
from importlib import metadata

from ._engine import __version__

NAME = "gptoss-jit"


def find_program() -> str:
    """The path of `gptoss-jit`: `$GPTOSS_JIT_PROGRAM`, the one that was installed with this package, or one on PATH of
    the same version."""
    named = os.environ.get("GPTOSS_JIT_PROGRAM")
    if named:
        return _of_this_version(named)
    try:
        files = metadata.files(NAME) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = str(file.locate())
        if file.name == NAME and os.access(path, os.X_OK):
            return os.path.realpath(path)
    on_path = shutil.which(NAME)
    if on_path is None:
        raise FileNotFoundError(
            f"there is no program `{NAME}`: it is neither among the files of the package nor on PATH"
            " (name it in GPTOSS_JIT_PROGRAM)"
        )
    return _of_this_version(on_path)


def _of_this_version(program: str) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()
    if said != [NAME, __version__]:
        raise RuntimeError(f"`{program}` is {' '.join(said)}, expected {NAME} {__version__}, as the module is")
    return os.path.realpath(program)
