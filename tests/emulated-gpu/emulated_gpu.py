"""Puts together what a program needs to find an AMD GPU that is emulated: Debian's packages, our driver, a topology,
and a copy of the program that starts with the packages' loader and libc. All below `target/emulated-gpu`."""

import argparse
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import emulator
import topology

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = Path(os.environ.get("EMULATED_GPU_TARGET", ROOT / "target/emulated-gpu"))
LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = "ld-linux-x86-64.so.2"

# Of each HIP: the suites of Debian that have it, of which the last is preferred, and its packages.
HIPS = {
    "5.7": ("trixie", "libamdhip64-5 libhiprtc-builtins5"),
    "6.4": ("forky", "libamdhip64-6 libhiprtc6 libhiprtc-builtins6 rocm-device-libs-21"),
    "7.2": ("sid experimental", "libamdhip64-7 libhiprtc7 libhiprtc-builtins7"),
}
TOOLS = ("forky", "clang-21 libdrm-dev linux-libc-dev")
MEMORY_BYTES = 8 << 30
FLAGS = "-D_GNU_SOURCE -std=gnu11 -O2 -g -Wall -Wextra -Wno-unused-parameter -Werror -shared -fPIC".split()


class Unavailable(Exception):
    """What is missing on this machine."""


def program_file(text):
    """A built program, for argument parsers: one that is not there is told as wrong usage."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no program {path}: build it first, or name another")
    return path.resolve()


def fetch(folder, proof, suites, packages):
    environment = os.environ | {"FETCH_DEBIAN_SUITES": suites}
    command = [ROOT / "tests/fetch-debian.sh", folder, proof, *packages.split()]
    done = subprocess.run(command, env=environment, stdout=sys.stderr)
    if done.returncode:
        raise Unavailable(f"Debian's packages {packages} (tests/fetch-debian.sh, exit code {done.returncode})")
    return folder


def tools():
    """Clang, for the emulator, as a script on a folder of its own, and the headers of the driver."""
    folder = fetch(TARGET / "tools", "usr/lib/llvm-21/bin/clang", *TOOLS)
    libraries = f"{folder}/{LIBRARIES}:{folder}/usr/lib/llvm-21/lib"
    script = folder / "on-path/clang"
    script.parent.mkdir(exist_ok=True)
    clang = f"{folder}/usr/lib/llvm-21/bin/clang"
    replace(script, f'#!/bin/sh\nexec {folder}/{LIBRARIES}/{LOADER} --library-path {libraries} {clang} "$@"\n'.encode())
    script.chmod(0o755)
    headers = folder / "headers"
    headers.mkdir(exist_ok=True)
    for name in ("linux", "drm", "libdrm", "asm-generic", "x86_64-linux-gnu/asm"):
        place = headers / Path(name).name
        if not place.is_symlink():
            place.symlink_to(folder / "usr/include" / name)
    return script.parent, headers


def replace(path, content):
    """Writes a file that others may be reading, or have open as a program."""
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)


def driver(headers):
    sources = sorted(HERE.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources) + repr(FLAGS).encode()).hexdigest()[:12]
    library = TARGET / f"libemulated-gpu-{digest}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if not compiler:
            raise Unavailable("a C compiler")
        code = [path for path in sources if path.suffix == ".c"]
        subprocess.run([compiler, *FLAGS, f"-I{headers}", "-o", made, *code, "-lpthread", "-ldl"], check=True)
        made.rename(library)
    return library


def program(binary, hip, libraries):
    """A copy of the program that names the packages' loader as its interpreter: the C library, which AMD's runtime
    needs new, has to be the loader's. The name in the file has room for 27 characters."""
    loader = Path(f"/tmp/gpu-{os.getuid()}")
    loader.mkdir(mode=0o700, exist_ok=True)
    if loader.stat().st_uid != os.getuid():
        raise Unavailable(f"{loader}, which is somebody else's")
    # One for each checkout: what runs in another must not find its loader gone.
    loader = loader / hashlib.sha256(bytes(libraries)).hexdigest()[:8]
    if not loader.is_symlink():
        try:
            loader.symlink_to(libraries / LOADER)
        except FileExistsError:
            pass  # another process was faster
    stat = binary.stat()
    copy = TARGET / f"hip-{hip}/bin/{stat.st_mtime_ns}-{stat.st_size}/{binary.name}"
    if not copy.exists():
        content = bytearray(binary.read_bytes())
        at, size = interpreter(content)
        name = bytes(loader) + b"\0"
        if len(name) > size:
            raise Unavailable(f"room for {loader} in {binary}")
        content[at : at + size] = name.ljust(size, b"\0")
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=copy.parent, delete=False) as file:
            file.write(content)
        os.chmod(file.name, 0o755)
        os.replace(file.name, copy)
    return copy


def interpreter(content):
    """Offset and size of the segment PT_INTERP of a 64-bit ELF file."""
    (headers_at,), (size, n) = struct.unpack_from("<Q", content, 32), struct.unpack_from("<HH", content, 54)
    for i in range(n):
        kind, _, at, _, _, length = struct.unpack_from("<IIQQQQ", content, headers_at + i * size)
        if kind == 3:
            return at, length
    raise Unavailable("a program that is linked dynamically")


def learnt(arch, tinygrad):
    """Where what the emulator told of instructions is kept: it is for this emulator and this processor."""
    sources = [HERE / "emulator.py", *(tinygrad / f"test/mockgpu/amd/{name}.py" for name in ("emu", "pcode"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    flags = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")]
    digest.update("".join(flags[:1]).encode())
    folder = TARGET / f"learnt/{emulator.family(arch) or 'nothing'}-{digest.hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def prepare(arch, hip, binary):
    """The command to start instead of `binary`, and its environment. Fails with `Unavailable`."""
    tinygrad = Path(os.environ.get("TINYGRAD", ""))
    if not (tinygrad / "test/mockgpu/amd/emu.py").is_file():
        raise Unavailable("TINYGRAD names no checkout of github.com/tinygrad/tinygrad with test/mockgpu/amd/emu.py")
    TARGET.mkdir(parents=True, exist_ok=True)
    suites, packages = HIPS[hip]
    library = f"{LIBRARIES}/libamdhip64.so.{hip[0]}"
    libraries = fetch(TARGET / f"hip-{hip}/packages", library, suites, packages) / LIBRARIES
    clang, headers = tools()
    memory = int(os.environ.get("EMULATED_GPU_MEMORY", MEMORY_BYTES))
    units = int(os.environ.get("EMULATED_GPU_UNITS", 0))
    shown = TARGET / f"topology/{arch}-{memory}-{units}"
    topology.write(shown, arch, memory, units)
    environment = os.environ | {
        # An emulated step takes as long as it takes.
        "GPTOSS_JIT_STEP_TIMEOUT": "0",
        "LD_PRELOAD": str(driver(headers)),
        "LD_LIBRARY_PATH": str(libraries),
        "PATH": f"{clang}:{os.environ.get('PATH', '')}",
        "EMULATED_GPU_ARCH": arch,
        "EMULATED_GPU_MEMORY": str(memory),
        "EMULATED_GPU_DEVICE_ID": str(topology.CHIPS[arch]["device"]),
        "EMULATED_GPU_TOPOLOGY": str(shown),
        "EMULATED_GPU_PYTHON": sys.executable,
        "EMULATED_GPU_EMULATOR": str(HERE / "emulator.py"),
        "EMULATED_GPU_LEARNT": str(learnt(arch, tinygrad)),
        # tinygrad's own cache, which would be the user's.
        "CACHEDB": str(TARGET / "learnt/tinygrad.db"),
        # Each allocation is the driver's own then, with pages behind it that fault.
        "HSA_DISABLE_FRAGMENT_ALLOCATOR": "1",
        "GPTOSS_JIT_HIP": str(libraries),
        "GPTOSS_JIT_HIPRTC": str(libraries),
    }
    return program(binary, hip, libraries), environment
