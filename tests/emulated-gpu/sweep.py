#!/usr/bin/env python3
"""Runs every cell of docs/emulator.md's tables: commands of gptoss-jit with AMD's own HIP runtime on an emulated GPU.
What is done is not done again: each cell leaves a line in RECORDS, and `--markdown` makes the tables of those.

    TINYGRAD=<checkout> tests/emulated-gpu/sweep.py RECORDS --hip 6.4 --arch gfx1100,gfx942
    tests/emulated-gpu/sweep.py RECORDS --markdown docs/emulator.md
"""

import argparse
import array
import datetime
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import emulated_gpu
import tables

PROMPTS = ["Once upon a time", "The little dog", "Lily and Tom", "One day, a", "She was very", "The sun"]
IDS = "1 5 9 13 20 33\n7 8 100 50 60\n"
# The templates, each once: what covers several ops is met at one of them.
KERNELS = [
    ("embedding", None), ("multiply", None), ("narrow", None), ("rmsnorm", "row"), ("norm_and_add", None), ("head_norm", None), ("silu_and_mul", None),
    ("gelu_and_mul", None), ("rope_angles", None), ("rope_kv", None), ("attention", None),
    ("moe_route", None), ("moe_sort", "block"), ("moe_mlp1", None), ("moe_mlp2", None), ("linear", None),
    ("sample", None), ("take_token", None),
    ("all_reduce", None), ("all_gather", None), ("all_argmax", None),
    ("change_logits", None), ("logprobs", None), ("min_p", None), ("random_weights", None),
    ("fill_lds", None), ("peak_copy", None), ("peak_read", None), ("peak_multiply_add", None), ("peak_matrix", None),
]  # fmt: skip


class Machine:
    """The program on one emulated GPU, and beside it on the processor."""

    def __init__(self, arch, hip, binary, folder, limit_s):
        self.arch, self.hip, self.binary, self.folder, self.limit_s = arch, hip, binary, folder, limit_s

    def start(self, *arguments, **variables):
        old = dict(os.environ)
        # The wider the chip the more blocks fill its LDS before each kernel; four units are a chip.
        os.environ.update({"EMULATED_GPU_UNITS": "4"} | variables)
        try:
            program, environment = emulated_gpu.prepare(self.arch, self.hip, self.binary)
        finally:
            os.environ.clear()
            os.environ.update(old)
        if self.hip == "7.2" and "OWN_HIPRTC" not in variables:
            # One compiler for both: what it made once is not made again, and it is the runtime that is looked at here.
            # HIP 5.7 uses its own.
            environment["GPTOSS_JIT_HIPRTC"] = str(emulated_gpu.TARGET / "hip-6.4/packages" / emulated_gpu.LIBRARIES)
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=self.folder)
        return subprocess.Popen([str(program), *arguments], env=environment, **pipes)

    def finish(self, process):
        """Exit code, stdout, stderr."""
        try:
            out, err = process.communicate(timeout=self.limit_s)
            return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise TimeoutError(f"not done after {self.limit_s} s") from None

    def gpu(self, *arguments, **variables):
        return self.finish(self.start(*arguments, "--device", "hip", **variables))

    def simulator(self, *arguments):
        """Our own simulator, which needs no runtime."""
        command = [self.binary, *arguments, "--arch", f"sim:{self.arch}"]
        done = subprocess.run(command, capture_output=True, cwd=self.folder, text=True)
        return done.returncode, done.stdout, done.stderr

    def cpu(self, *arguments):
        command = [self.binary, *arguments, "--device", "cpu"]
        done = subprocess.run(command, capture_output=True, cwd=self.folder, text=True)
        if done.returncode:
            raise RuntimeError(f"on the processor: {done.stderr[-500:]}")
        return done.stdout

    def file(self, name, content):
        (self.folder / name).write_text(content)
        return name


def last_words(err):
    lines = [line for line in err.splitlines() if line.strip()]
    named = [line for line in lines if re.search("error|fault|emulated-gpu|abort|exception", line, re.I)]
    return " / ".join((named or lines)[:3])[:400]


def verdict(ok, note="", **more):
    return dict(status="ok" if ok else "wrong", note=note) | more


def kernels(op, variant):
    def cell(machine):
        only = ["--op", op] + (["--variant", variant] if variant else [])
        command = ["kernels", "check", "--first-shape", "--json", *only]
        code, out, err = machine.simulator(*command) if machine.hip == "simulator" else machine.gpu(*command)
        if code not in (0, 1) or not out.strip():
            return verdict(False, last_words(err))
        keys = ("op", "variant", "precision", "cases", "worst_error", "status", "failures")
        rows = [{key: row[key] for key in keys} for row in json.loads(out)["templates"]]
        for row in rows:
            row["failures"] = [one[:300] for one in row["failures"][:3]]
        not_emulated = re.findall(r"emulated-gpu: (not emulated: .*)", err)
        return verdict(code == 0, not_emulated[0][:300] if not_emulated else "", templates=rows)

    return cell


def text(precision):
    def cell(machine):
        command = ["run", "-m", "getp", "-i", machine.file("prompts.lines", "\n".join(PROMPTS) + "\n"), "-n", "16"]
        command += ["--precision", precision]
        want = machine.cpu(*command).splitlines()
        code, out, err = machine.gpu(*command)
        same = sum(a == b for a, b in zip(want, out.splitlines()))
        return verdict(code == 0 and same == len(want), f"{same} of {len(want)}" if code == 0 else last_words(err))

    return cell


def numbers(path):
    """The f32 of a file of NumPy's."""
    raw = path.read_bytes()
    (length,) = memoryview(raw)[8:10].cast("H")
    values = array.array("f")
    values.frombytes(raw[10 + length :])
    return values


def logits(precision):
    def cell(machine):
        command = ["logits", "--ids", machine.file("ids.txt", IDS), "--precision", precision]
        machine.cpu(*command, "-o", "want.npy")
        code, _, err = machine.gpu(*command, "-o", "got.npy")
        if code:
            return verdict(False, last_words(err))
        want, got = (numbers(machine.folder / name) for name in ("want.npy", "got.npy"))
        most = max(abs(a - b) for a, b in zip(got, want))
        norm = math.sqrt(sum((a - b) ** 2 for a, b in zip(got, want)) / sum(b * b for b in want))
        within = norm <= 2**-7
        if precision == "f32":
            within = all(abs(a - b) <= 1e-4 + 1e-4 * abs(b) for a, b in zip(got, want))
        return verdict(within and len(got) == len(want), f"{most:.1e}, {norm:.1e} of the norm")

    return cell


def chat(machine):
    command = ["run", "-m", "chat", "-i", "Hello", "--max-new-tokens", "12", "-T", "0", "--show-reasoning"]
    want = machine.cpu(*command)
    code, out, err = machine.gpu(*command)
    return verdict(code == 0 and out == want, "" if code == 0 else last_words(err))


def generate(*options, **variables):
    def cell(machine):
        command = ["run", "-i", PROMPTS[0], "-n", "12", *options]
        want = machine.cpu("run", "-i", PROMPTS[0], "-n", "12")
        code, out, err = machine.gpu(*command, **variables)
        return verdict(code == 0 and out == want, "" if code == 0 else last_words(err))

    return cell


def runs(*command, **variables):
    def cell(machine):
        code, out, err = machine.gpu(*command, **variables)
        return verdict(code == 0 and bool(out.strip()), "" if code == 0 else last_words(err))

    return cell


def tune(machine):
    """Until whole steps of the tiny model decide."""
    model = str(emulated_gpu.ROOT / "examples/tiny/model.bin")
    command = "--op rmsnorm --tokens 1 --rows decode --most 3 --journal tune.jsonl".split()
    code, out, err = machine.gpu("tune", model, *command)
    ok = code == 0 and "whole steps, tok/s" in out
    return verdict(ok, "" if ok else f"exit code {code}: {last_words(err)}")


def two(machine):
    command = ["run", "-i", PROMPTS[0], "-n", "12"]
    want = machine.cpu(*command)
    both = [machine.start(*command, "--device", "hip") for _ in range(2)]
    done = [machine.finish(one) for one in both]
    return verdict(all(code == 0 and out == want for code, out, _ in done), " ".join(str(code) for code, *_ in done))


def fails(saying, *options, codes=(1,), **variables):
    """Right is an error that says so, and no text."""

    def cell(machine):
        code, _, err = machine.gpu("run", "-i", PROMPTS[0], "-n", "12", *options, **variables)
        return verdict(code in codes and re.search(saying, err) is not None, f"exit code {code}: {last_words(err)}")

    return cell


CELLS = {
    "text, bf16": text("bf16"),
    "text, f32": text("f32"),
    "logits, bf16": logits("bf16"),
    "logits, f32": logits("f32"),
    "a chat's turn": chat,
    "steps replayed as a graph": generate(),
    "each op alone (`-f 1`)": generate("-f", "1"),
    "compiled by its own hipRTC": generate(OWN_HIPRTC="1"),
    "waves in random order": generate(EMULATED_GPU_SEED="7"),
    "two processes at once": two,
    "memory runs out": fails("could not fit the model|out of memory", EMULATED_GPU_MEMORY=str(1 << 19)),
    "a kernel touches what is not there": fails(
        "Memory access fault by GPU|illegal memory access", codes=(1, -6), EMULATED_GPU_ASTRAY="60"
    ),
    "the GPU goes away": fails("HW Exception by GPU|launch failure", codes=(1, -6), EMULATED_GPU_LOST_AFTER="60"),
    # So little time that no whole steps decide, which would be gpt-oss-20b's; then with those of the tiny model.
    "`tune --op rmsnorm`": runs(*"tune --op rmsnorm --tokens 1 --most 3 --within 2s --journal tune.jsonl".split()),
    "`tune` with whole steps": tune,
    "`bench --kernels`": runs(*"bench --kernels --work decode -b 1 --context 1 -n 1 --repeats 1".split()),
} | {f"kernels {op}": kernels(op, variant) for op, variant in KERNELS}  # fmt: skip


def load(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return {(one["hip"], one["arch"], one["cell"]): one for one in map(json.loads, lines)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="a file with a line of JSON for each cell")
    parser.add_argument("--markdown", type=Path, help="run nothing: put the tables into this file, between their marks")
    parser.add_argument("--hip", default="6.4,7.2,5.7", help="or `simulator`, which has kernels alone")
    parser.add_argument("--arch", default="gfx1100,gfx942,gfx1201,gfx1151,gfx950,gfx90a,gfx1030")
    parser.add_argument("--match", default="", help="only cells with this in their names")
    parser.add_argument("--again", action="store_true", help="run what was wrong or not run once more")
    parser.add_argument("--limit", type=int, default=1800, help="seconds for a command")
    default = str(emulated_gpu.ROOT / "target/release/gptoss-jit")
    parser.add_argument("--binary", type=emulated_gpu.program_file, default=default)
    args = parser.parse_args()
    records = load(args.records)
    if args.markdown:
        tables.put(list(records.values()), args.markdown)
        return
    for hip in args.hip.split(","):
        for arch in args.arch.split(","):
            for name, cell in CELLS.items():
                known = records.get((hip, arch, name))
                if hip == "simulator" and not name.startswith("kernels "):
                    continue
                if args.match not in name or known and not (args.again and known["status"] != "ok"):
                    continue
                done = run(cell, name, arch, hip, args)
                with args.records.open("a") as file:
                    file.write(json.dumps(done) + "\n")


def run(cell, name, arch, hip, args):
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(arch, hip, args.binary, Path(folder), args.limit)
        try:
            done = cell(machine)
            # The runtime is older than the chip. HIP 5.7, whose lower half may know one that its upper half does not,
            # then frees what it never had.
            if re.search("the HIP runtime finds 0|^free..: invalid pointer", done["note"]):
                done["status"] = "not known"
        except emulated_gpu.Unavailable as missing:
            print(f"skipped: not available here: {missing}", file=sys.stderr)
            sys.exit(3)
        except Exception as error:  # a cell that cannot be run says why
            done = dict(status="not run", note=f"{type(error).__name__}: {error}"[:300])
    seconds = round(time.monotonic() - started, 1)
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    print(f"{hip} {arch} {name}: {done['status']} {done['note']} ({seconds} s)", flush=True)
    return dict(hip=hip, arch=arch, cell=name, date=today, seconds=seconds) | done


if __name__ == "__main__":
    main()
