"""Starts `gptoss-jit serve`, runs a command beside it, and ends it as a service manager does.

    python server.py VARIABLE [arguments of serve] -- COMMAND...

VARIABLE is set to the address of the server (http://127.0.0.1:PORT) for COMMAND, VARIABLE_PID to its process and VARIABLE_LOG
to the file with its stderr. The program is what GPTOSS_JIT_BINARY names, else the newest in target/. The exit code is
COMMAND's, or 1 if the server died or did not end with 0 after SIGTERM.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]


def binary():
    if named := os.environ.get("GPTOSS_JIT_BINARY"):
        return named
    built = [
        path for profile in ("ci", "release", "debug") if (path := ROOT / "target" / profile / "gptoss-jit").exists()
    ]
    if not built:
        sys.exit("server.py: nothing is built: cargo build --release")
    return str(max(built, key=lambda path: path.stat().st_mtime))


class Server:
    """A running server: `with Server("--replay", file) as server: server.url`."""

    def __init__(self, *arguments, port=0):
        if not port:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", prefix="serve-", delete=False)
        command = [binary(), "serve", *arguments, "--port", str(port)]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.code = None

    def ready(self, seconds=120):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5).read()
                return True
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        return False

    def said(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def __enter__(self):
        if not self.ready():
            said = self.said()
            self.__exit__()
            raise RuntimeError(f"the server did not start:\n{said[-2000:]}")
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.code = self.process.wait()
        self.log.close()


def main():
    if len(sys.argv) < 4 or "--" not in sys.argv:
        sys.exit(__doc__)
    cut = sys.argv.index("--")
    name, arguments, command = sys.argv[1], sys.argv[2:cut], sys.argv[cut + 1 :]
    server = Server(*arguments)
    with server:
        told = {name: server.url, f"{name}_PID": str(server.process.pid), f"{name}_LOG": server.log.name}
        code = subprocess.run(command, env={**os.environ, **told}).returncode
        alive = server.process.poll() is None
    if not alive or server.code != 0:
        print(
            f"FAILED  the server {'ended with' if alive else 'died with'} {server.code}; the end of what it said:\n{server.said()[-2000:]}"
        )
        code = code or 1
    return code


if __name__ == "__main__":
    sys.exit(main())
