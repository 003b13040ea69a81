"""What serving costs beside computing: processor time of the server's threads, with 64 clients that read streams.

    python server.py TINY -b 64 --threads 1 -- python overhead.py [arguments of bench_serve.py]

The threads of HTTP (`http`) against all others, which are the engine's; one number a line, and the share last. A first
round, which is not counted, loads the kernels.
"""

import os
import pathlib
import subprocess
import sys

URL, PID = os.environ["TINY"], os.environ["TINY_PID"]
BENCH = [sys.executable, str(pathlib.Path(__file__).with_name("bench_serve.py")), "--url", URL, "--vocab", "700"]
USUAL = ["--concurrency", "64", "--input", "64", "--output", "256", "--requests", "192", "--processes", "2"]


def seconds():
    """Processor time by the names of threads."""
    spent = {}
    for task in pathlib.Path(f"/proc/{PID}/task").iterdir():
        name = (task / "comm").read_text().strip()
        spent[name] = spent.get(name, 0) + int((task / "schedstat").read_text().split()[0]) / 1e9
    return spent


def main():
    warm = ["--concurrency", "64", "--input", "64", "--output", "8", "--requests", "64", "--processes", "2"]
    subprocess.run(BENCH + warm, check=True, stdout=subprocess.DEVNULL)
    before = seconds()
    subprocess.run(BENCH + (sys.argv[1:] or USUAL), check=True)
    spent = {name: after - before.get(name, 0) for name, after in seconds().items()}
    for name, s in sorted(spent.items()):
        print(f"{name:16} {s:8.3f} s")
    http = spent.pop("http")
    print(f"serving costs {http:.3f} s beside {sum(spent.values()):.3f} s: {100 * http / sum(spent.values()):.1f} %")


main()
