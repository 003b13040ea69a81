#!/usr/bin/env python3
"""A slice of sweep.py for tests/run.sh: three kernels and the tiny model on gfx1100 with HIP 6.4; then what is said where
something is in the way of a GPU, which obstacles.py compares with docs/emulator.md. The last line counts, as that of
tests/run.sh: `N passed, N failed, N skipped`. Exit code 1 if anything failed.

    tests/emulated-gpu/quick.py BINARY
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import emulated_gpu
import obstacles
import sweep

CELLS = {
    "kernels embedding": sweep.kernels("embedding", None),
    "kernels rmsnorm": sweep.kernels("rmsnorm", "row"),
    "kernels linear, on the matrix unit": sweep.kernels("linear", "matrix"),
    "a run of the tiny model": sweep.generate(),
}
LIMIT_S = 300


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=emulated_gpu.program_file)
    binary = parser.parse_args().binary
    counts = dict(passed=0, failed=0, skipped=0)
    for name, cell in CELLS.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                done = cell(sweep.Machine("gfx1100", "6.4", binary, Path(folder), LIMIT_S))
            except emulated_gpu.Unavailable as missing:
                print(f"skipped: AMD's runtime on an emulated GPU needs what is not available here: {missing}")
                counts["skipped"] += 1
                break
            except TimeoutError as late:  # of a busy machine; it says nothing about the program
                print(f"skipped: {name}: {late}")
                counts["skipped"] += 1
                continue
        print(f"{name}: {done['status']} {done['note']}", flush=True)
        for template in done.get("templates", ()):
            for failure in template["failures"]:
                print(failure)
        counts["passed" if done["status"] == "ok" else "failed"] += 1
    if counts["skipped"] == len(CELLS):  # one that is slow is the machine's, all of them are not
        counts["failed"] += 1
    what = "skipped"
    try:
        if counts["skipped"]:
            print("skipped: obstacles: as above")
        else:
            with tempfile.TemporaryDirectory() as folder:
                differences = obstacles.differences(binary, Path(folder))
            for difference in differences:
                print(difference)
            print(f"{len(obstacles.OBSTACLES)} obstacles: {'wrong' if differences else 'ok'}", flush=True)
            what = "failed" if differences else "passed"
    except (emulated_gpu.Unavailable, subprocess.TimeoutExpired) as missing:
        print(f"skipped: obstacles: {missing}")
    counts[what] += 1
    print(", ".join(f"{n} {what}" for what, n in counts.items()))
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()
