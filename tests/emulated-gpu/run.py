#!/usr/bin/env python3
"""Runs a command of gptoss-jit with AMD's own HIP runtime on an emulated AMD GPU.

    TINYGRAD=<checkout> tests/emulated-gpu/run.py gfx1100 run --device hip -i "Once upon a time" -n 8

The exit code is the command's; 3: something is not available on this machine; 70: the emulation cannot go on, and says
why. docs/emulator.md has the rest, and the variables that change what is emulated.
"""

import argparse
import os
import sys

import emulated_gpu
import topology


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hip", choices=emulated_gpu.HIPS, default="6.4", help="which HIP, as Debian packages it")
    default = str(emulated_gpu.ROOT / "target/release/gptoss-jit")
    parser.add_argument("--binary", type=emulated_gpu.program_file, default=default)
    parser.add_argument("arch", choices=topology.CHIPS)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    try:
        program, environment = emulated_gpu.prepare(args.arch, args.hip, args.binary)
    except emulated_gpu.Unavailable as missing:
        print(f"skipped: not available here: {missing}", file=sys.stderr)
        sys.exit(3)
    sys.stderr.flush()
    os.execve(program, [str(program), *args.command], environment)


if __name__ == "__main__":
    main()
