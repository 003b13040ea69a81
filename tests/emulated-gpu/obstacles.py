#!/usr/bin/env python3
"""What `doctor`, `run` and `serve` say, and how they end, where something is in the way of an AMD GPU: with AMD's own HIP
runtimes on an emulated one. The table in docs/emulator.md is held to what is seen. Exit code 1 where they differ.

    TINYGRAD=<checkout> tests/emulated-gpu/obstacles.py BINARY            # compares
    TINYGRAD=<checkout> tests/emulated-gpu/obstacles.py BINARY --write    # writes the table
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import emulated_gpu

PAGE = emulated_gpu.ROOT / "docs/emulator.md"
BEGIN, END = "<!-- tests/emulated-gpu/obstacles.py: begin -->\n", "<!-- tests/emulated-gpu/obstacles.py: end -->\n"
LIMIT_S = 300
PROMPT = ["run", "-i", "Once upon a time", "--max-new-tokens", "2"]


def with_variables(**variables):
    return lambda environment, folder: environment.update(variables)


def without(library):
    """A folder of all of HIP's libraries but one that it needs."""

    def change(environment, folder):
        real = Path(environment["GPTOSS_JIT_HIP"])
        shown = folder / f"without-{library}"
        shown.mkdir(exist_ok=True)
        for file in real.iterdir():
            if file.is_file() and not file.name.startswith(library) and not (shown / file.name).exists():
                (shown / file.name).symlink_to(file)
        environment.update(LD_LIBRARY_PATH=str(shown), GPTOSS_JIT_HIP=str(shown))

    return change


def without_device_libraries(environment, folder):
    """hipRTC in a folder beside which there are none: that of the packages that came without them."""
    alone = emulated_gpu.TARGET / "hiprtc-alone/lib"
    alone.mkdir(parents=True, exist_ok=True)
    for file in Path(environment["GPTOSS_JIT_HIPRTC"]).iterdir():
        if file.is_file() and not (alone / file.name).exists():
            (alone / file.name).symlink_to(file)
    environment.update(GPTOSS_JIT_HIPRTC=str(alone), GPTOSS_JIT_CACHE=str(folder / "empty-cache"))


def with_an_empty_cache(environment, folder):
    environment.update(GPTOSS_JIT_HIPRTC="/nowhere", GPTOSS_JIT_CACHE=str(folder / "empty-cache"))


FAMILY = ["--device", "hip:0@gfx11-generic"]

# What is in the way; HIP, chip, what changes the environment, and words for `run` and `serve`.
OBSTACLES = {
    "nothing": ("6.4", "gfx1100", with_variables(), []),
    "`HIP_VISIBLE_DEVICES=-1`": ("6.4", "gfx1100", with_variables(HIP_VISIBLE_DEVICES="-1"), []),
    "`HIP_VISIBLE_DEVICES=`, empty": ("6.4", "gfx1100", with_variables(HIP_VISIBLE_DEVICES=""), []),
    "`CUDA_VISIBLE_DEVICES=`, empty": ("7.2", "gfx1100", with_variables(CUDA_VISIBLE_DEVICES=""), []),
    "`ROCR_VISIBLE_DEVICES=7`": ("6.4", "gfx1100", with_variables(ROCR_VISIBLE_DEVICES="7"), []),
    "`HSA_OVERRIDE_GFX_VERSION=10.3.0`": ("6.4", "gfx1100", with_variables(HSA_OVERRIDE_GFX_VERSION="10.3.0"), []),
    "no right to `/dev/kfd`": ("6.4", "gfx1100", with_variables(EMULATED_GPU_DENIED="/dev/kfd"), []),
    "no right to the render node": ("6.4", "gfx1100", with_variables(EMULATED_GPU_DENIED="/dev/dri/renderD128"), []),
    "no `/dev/kfd`, as in a container": ("6.4", "gfx1100", with_variables(EMULATED_GPU_ABSENT="/dev/kfd"), []),
    "no HIP runtime": ("6.4", "gfx1100", with_variables(GPTOSS_JIT_HIP="/nowhere"), []),
    "a HIP runtime without `libhsa-runtime64`": ("6.4", "gfx1100", without("libhsa-runtime64"), []),
    "a HIP runtime without `libamd_comgr`": ("6.4", "gfx1100", without("libamd_comgr"), []),
    "no hipRTC": ("6.4", "gfx1100", with_an_empty_cache, []),
    "no hipRTC, but all kernels in the cache": ("6.4", "gfx1100", with_variables(GPTOSS_JIT_HIPRTC="/nowhere"), []),
    "a C compiler that fails": ("6.4", "gfx1100", with_variables(CC="/bin/false"), []),
    "HIP 5.7 with a gfx1151": ("5.7", "gfx1151", with_variables(), []),
    "HIP 6.4 with a gfx950": ("6.4", "gfx950", with_variables(), []),
    "1 MiB of memory": ("6.4", "gfx1100", with_variables(EMULATED_GPU_MEMORY=str(1 << 20)), []),
    "`--device hip:0@gfx11-generic`": ("6.4", "gfx1100", with_variables(), FAMILY),
    "`--device hip:0@gfx11-generic` without `rocm-device-libs-21`": ("6.4", "gfx1100", without_device_libraries, FAMILY),
}


class Room:
    """The program, with a cache that all obstacles share."""

    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder
        self.cache = emulated_gpu.TARGET / "obstacles-cache"

    def environment(self, hip, arch, change):
        for name in [name for name in os.environ if name.startswith(("HIP_", "HSA_", "ROCR_", "CUDA_"))]:
            del os.environ[name]
        program, environment = emulated_gpu.prepare(arch, hip, self.binary)
        environment |= {"GPTOSS_JIT_CACHE": str(self.cache), "XDG_CONFIG_HOME": str(self.folder)}
        # Of the machine's own ROCm, CUDA and compilers nothing is used.
        environment |= {"GPTOSS_JIT_CUDA": "/nowhere", "VIRTUAL_ENV": "", "CONDA_PREFIX": ""}
        environment.pop("CC", None)
        if hip == "7.2":  # what one hipRTC made once is not made again
            environment["GPTOSS_JIT_HIPRTC"] = str(emulated_gpu.TARGET / "hip-6.4/packages" / emulated_gpu.LIBRARIES)
        change(environment, self.folder)
        return str(program), environment

    def ask(self, obstacle):
        """What became of the three commands: exit code, device, and what was said, of each."""
        hip, arch, change, words = OBSTACLES[obstacle]
        program, environment = self.environment(hip, arch, change)
        pipes = dict(env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        run = subprocess.run([program, *PROMPT, *words, "--json"], timeout=LIMIT_S, **pipes)
        doctor = subprocess.run([program, "doctor", *words, "--json"], timeout=LIMIT_S, **pipes)
        serve = self.serve(program, environment, words)
        return self.row(obstacle, run, doctor, serve)

    def serve(self, program, environment, words):
        """Until it serves, or does not; then it is told to end."""
        pipes = dict(env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, text=True)
        errors = tempfile.TemporaryFile("w+", dir=self.folder)
        command = [program, "serve", "--port", "0", "--json", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, **pipes)
        late = threading.Timer(LIMIT_S, process.kill)
        late.start()
        try:
            told = process.stdout.readline()
            if told:
                process.send_signal(signal.SIGTERM)
            process.communicate()
        finally:
            late.cancel()
        errors.seek(0)
        return process.returncode, json.loads(told)["device"] if told else None, errors.read()

    def row(self, obstacle, run, doctor, serve):
        report = json.loads(doctor.stdout) if doctor.stdout.strip() else {"checks": [], "device": "nothing"}
        ran = json.loads(run.stdout)["device"] if run.returncode == 0 else None
        said, said_by_server = sentences(run.stderr), sentences(json_lines(serve[2]))
        cells = [obstacle, ending(doctor.returncode, report["device"]), ending(run.returncode, ran), ending(*serve[:2])]
        is_same = said == said_by_server
        cells.append(said if is_same else f"{said} **serve:** {said_by_server}")
        cells.append(findings(report, said))
        return "| " + " | ".join(self.without_paths(cell).replace("|", "\\|") for cell in cells) + " |"

    def without_paths(self, text):
        for folder in (str(self.folder), str(emulated_gpu.TARGET)):
            text = re.sub(re.escape(folder) + r"[^ `]*/", "…/", text)
        return re.sub(r"\s+", " ", text)


def ending(code, device):
    where = (device or "").split(" ")[0]
    return f"{code}, {where}" if where else str(code)


def json_lines(text):
    """What a server's log says, as the other commands say it."""
    def plain(line):
        try:
            told = json.loads(line)
        except ValueError:
            return line
        return "warning: " + told.get("message", "") if told.get("level") == "warn" else ""

    return "\n".join(filter(None, map(plain, text.splitlines())))


def sentences(text):
    """Warnings, the error and the hint of what was printed on stderr, without what compilers said below."""
    kept = [line for line in text.splitlines() if line.startswith(("warning: ", "error: ", "hint: ", "  `"))]
    return re.sub(" +", " ", " ".join(kept)) or "—"


def findings(report, said):
    """Of the checks of AMD's parts what is not as it should be, and what is to be done: in short what `run` said too."""
    def unless_said(text, hint=None):
        text, hint_, said_ = (re.sub(r"\s+", " ", words or "") for words in (text, hint, said))
        if text in said_ and hint_ in said_:
            return "the same words"
        return f"{text}. hint: {hint}" if hint else text

    found = []
    for check in report["checks"]:
        told = [line for line in check["details"] if "is ignored" in line]
        if check["name"] in ("AMD driver", "HIP runtime", "hipRTC") and check["state"] != "ok":
            told = [line for line in check["details"] if is_finding(line)][:2]
        if told:
            found.append(f"{check['name']} {check['state']}: {unless_said('; '.join(told), check['hint'])}")
    verdict = report.get("verdicts", [{}])[0]
    if verdict.get("works") is False:
        found.append(f"run: {unless_said(verdict['said'])}")
    return ". ".join(found) or "—"


def is_finding(line):
    return not re.match(r"HIP runtime \d|node \d+: |(no )?amdgpu.* on Linux|it finds no device", line)


HEADER = [
    "| what is in the way | `doctor` | `run` | `serve` | `run` and `serve` say | `doctor` finds |",
    "|---|---|---|---|---|---|",
]


def rows(binary, folder):
    room = Room(binary, folder)
    return [room.ask(obstacle) for obstacle in OBSTACLES]


def differences(binary, folder):
    """Lines of the page that are not what is seen, and what is."""
    written = PAGE.read_text().split(BEGIN)[1].split(END)[0].split("\n")
    seen = [*HEADER, *rows(binary, folder)]
    lost = [f"docs/emulator.md: {line}" for line in written if line and line not in seen]
    return lost + [f"seen:             {line}" for line in seen if line not in written]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=emulated_gpu.program_file)
    parser.add_argument("--write", action="store_true", help="puts the table into docs/emulator.md")
    parser.add_argument("--only", help="asks for one obstacle, and prints its row")
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            if args.only:
                print(Room(args.binary, Path(folder)).ask(args.only))
                return
            if args.write:
                before, rest = PAGE.read_text().split(BEGIN)
                table = "\n".join([*HEADER, *rows(args.binary, Path(folder))])
                PAGE.write_text(f"{before}{BEGIN}\n{table}\n\n{END}{rest.split(END)[1]}")
                return
            found = differences(args.binary, Path(folder))
    except emulated_gpu.Unavailable as missing:
        print(f"skipped: not available here: {missing}", file=sys.stderr)
        sys.exit(3)
    for difference in found:
        print(difference)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
