#!/usr/bin/env python3
"""Runs our GPU objects in an emulator that is not ours: tinygrad's, which executes AMD machine code on a CPU.

    gptoss-jit kernels check --arch gfx1100 --export CASES
    python3 -m venv venv && venv/bin/pip install numpy msgpack pyelftools
    TINYGRAD=<checkout of github.com/tinygrad/tinygrad> venv/bin/python tests/emulator/run.py CASES [--markdown FILE]

CASES is a folder that `kernels check --export` filled. Every folder below it with a `case.json` is launched once, between
guards, and its outputs are compared with those of the references, by the contract's tolerance. What the emulator cannot do is said and
is no pass. Needs `clang` on the PATH. Fails if a case disagrees. `docs/emulator.md` has what it showed.
"""

import argparse
import ctypes
import hashlib
import io
import json
import mmap
import multiprocessing
import os
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import numpy as np
from elftools.elf.elffile import ELFFile

GUARD_BYTES = 4096
ALIGNMENT_BYTES = 256

# What storing an element may add to the error, relative to the element.
ROUNDOFF = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 0.0}
WHOLE = {"u32": np.uint32, "i32": np.int32, "u8": np.uint8}

# Instructions that write caches back or invalidate them, which the emulator does not know and has no use for: it has no
# caches, and runs block after block. By family: first words, bits of them that say which caches, and how many words.
CACHE_CONTROL = {
    "rdna3": ({0xE0AC0000, 0xE0B00000}, 0, 2),  # buffer_gl0_inv, buffer_gl1_inv
    "rdna4": ({0xEE0AC07C, 0xEE0B007C, 0xEE13C07C}, 0, 3),  # global_inv, global_wb, global_wbinv
    "cdna": ({0xE0A00000, 0xE0A40000}, 0xC000, 2),  # buffer_wbl2, buffer_inv
}
S_NOP = 0xBF800000

AGREES, DISAGREES, NOT_RUN = "agrees", "DISAGREES", "not run"


class Object:
    """A code object, laid out as a loader would: its segments at their addresses."""

    def __init__(self, blob):
        elf = ELFFile(io.BytesIO(blob))
        loaded = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD"]
        end = max(segment["p_vaddr"] + segment["p_memsz"] for segment in loaded)
        self.memory = mmap.mmap(-1, -(-(end + 4096) // 4096) * 4096)  # instructions are fetched ahead
        for segment in loaded:
            self.memory[segment["p_vaddr"] : segment["p_vaddr"] + segment["p_filesz"]] = segment.data()
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        symbols = elf.get_section_by_name(".dynsym").iter_symbols()
        self.symbols = {symbol.name: (symbol["st_value"], symbol["st_size"]) for symbol in symbols}
        section = elf.get_section_by_name(".text")
        self.text, self.text_at = section.data(), section["sh_addr"]
        self.kernels = {kernel[".name"]: kernel for kernel in metadata(elf)["amdhsa.kernels"]}

    def without_cache_control(self, arch):
        """Puts s_nop in the place of each such instruction; gives their number."""
        first, scopes, n_words = CACHE_CONTROL[family(arch)]
        words = np.frombuffer(self.text, np.uint32).copy()
        found = [i for i, word in enumerate(words[: -n_words]) if word & ~np.uint32(scopes) in first]
        found = [i for i in found if words[i + n_words - 1] == 0]
        for i in found:
            words[i : i + n_words] = S_NOP
        self.memory[self.text_at : self.text_at + len(self.text)] = words.tobytes()
        return len(found)

    def launch(self, name, arch, grid, block_size, values):
        """`values`: for each argument its bytes, in order (of memory, its address)."""
        from test.mockgpu.amd.emu import run_asm

        segment = self.kernel_arguments(name, grid, block_size, values)
        buffer = ctypes.create_string_buffer(bytes(segment), len(segment) + 64)
        at, _ = self.symbols[name + ".kd"]
        descriptor = bytes(self.memory[at : at + 64])
        lds_bytes, private_bytes = struct.unpack_from("<II", descriptor, 0)
        (entry,) = struct.unpack_from("<q", descriptor, 16)
        _, _, rsrc2, properties, preload = struct.unpack_from("<IIIHH", descriptor, 44)
        n_preloaded, first_preloaded = preload & 0x7F, preload >> 7
        registers = scalar_registers(properties, ctypes.addressof(buffer), private_bytes)
        registers += struct.unpack_from(f"<{n_preloaded}I", segment, 4 * first_preloaded)
        # Code that expects preloaded arguments has a way in for hardware without them, 256 bytes before its own.
        code = self.base + at + entry + (256 if n_preloaded else 0)
        rsrc2 = rsrc2 & ~(0x1FF << 15) | -(-lds_bytes // 512) << 15  # left open by the compiler, given at dispatch
        size = self.symbols[name][1]
        address = ctypes.addressof(buffer)
        run_asm(code, size, *grid, block_size, 1, 1, address, rsrc2, private_bytes, family(arch), list(registers))

    def kernel_arguments(self, name, grid, block_size, values):
        kernel = self.kernels[name]
        segment = bytearray(kernel[".kernarg_segment_size"])
        hidden = {f"hidden_block_count_{axis}": struct.pack("<I", n) for axis, n in zip("xyz", grid)}
        hidden |= {f"hidden_group_size_{axis}": struct.pack("<H", n) for axis, n in zip("xyz", (block_size, 1, 1))}
        values = iter(values)
        for argument in kernel[".args"]:
            kind, offset = argument[".value_kind"], argument[".offset"]
            value = hidden.get(kind, b"") if kind.startswith("hidden_") else next(values)
            segment[offset : offset + len(value)] = value
        if next(values, None) is not None:
            raise ValueError(f"{name} takes fewer arguments than case.json has")
        return segment


def family(arch):
    """The emulator's name for what it tells apart."""
    return "cdna" if arch.startswith("gfx9") else "rdna4" if arch.startswith("gfx12") else "rdna3"


def metadata(elf):
    for segment in elf.iter_segments():
        if segment["p_type"] == "PT_NOTE":
            for note in segment.iter_notes():
                if note["n_name"] == "AMDGPU":
                    text = note["n_desc"]
                    return msgpack.unpackb(text.encode("latin1") if isinstance(text, str) else text, raw=False)
    raise ValueError("the object has no AMDGPU metadata")


def scalar_registers(properties, arguments_at, private_bytes):
    """What a wave finds in its first scalar registers, as the kernel descriptor asks for it."""
    asked = [bool(properties >> bit & 1) for bit in range(7)]
    if asked[1] or asked[2] or asked[4]:
        raise NotImplementedError("the kernel asks for its dispatch packet, queue or number, which a launch here lacks")
    low_high = (arguments_at & 0xFFFFFFFF, arguments_at >> 32)
    found = [(0, 0, 0, 0), (), (), low_high, (), (0, 0), (private_bytes,)]
    return tuple(register for has, part in zip(asked, found) if has for register in part)


def give_lds_room(emulator):
    """The emulator reads and writes LDS for inactive lanes as well, at whatever address their registers hold, and puts back
    what it read. So its LDS must lie at the start of all that 32 bits can address; pages that nobody touches cost nothing."""
    real, no_reserve = emulator.Buffer, 0x4000

    def buffer(device, n_elements, dtype, **options):
        if options or dtype != emulator.dtypes.uint32:
            return real(device, n_elements, dtype, **options)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
        room = mmap.mmap(-1, (1 << 32) + 4 * n_elements, flags=flags)
        start = ctypes.addressof(ctypes.c_char.from_buffer(room))
        lds = real(device, n_elements, dtype, options=emulator.BufferSpec(external_ptr=start))
        lds.room = room  # lives as long as it
        return lds

    emulator.Buffer = buffer


class Memory:
    """A tensor between two guards, which are NaNs where elements are floats."""

    def __init__(self, argument, folder):
        length = argument["len_bytes"]
        self.argument = argument
        fill = 0 if argument["dtype"] in WHOLE else 0xFF
        self.all = np.full(length + 2 * GUARD_BYTES + ALIGNMENT_BYTES, fill, np.uint8)
        start = -(-(self.all.ctypes.data + GUARD_BYTES) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES - self.all.ctypes.data
        self.part = slice(start, start + length)
        if argument["file"]:
            self.all[self.part] = np.fromfile(folder / argument["file"], np.uint8)
        else:
            self.all[self.part] = 0 if argument["access"] == "zeroed" else 0xFF
        self.before = self.all.copy()

    def address(self):
        return struct.pack("<Q", self.all.ctypes.data + self.part.start)

    def wrong(self):
        """What happened to memory that is not to change, or None."""
        changed = self.all != self.before
        inside = changed[self.part].any()
        changed[self.part] = False
        name, access = self.argument["name"], self.argument["access"]
        if changed.any():
            return f"writes outside of {name}"
        if inside and access in ("read", "zeroed"):
            return f"leaves {name} changed"
        return None

    def error(self, folder, case):
        """The largest error, as a fraction of the tolerance; infinite for a NaN, and for any wrong whole number."""
        want, scale = (np.fromfile(folder / self.argument[key], np.float64) for key in ("want", "scale"))
        got, dtype = values(self.all[self.part], self.argument["dtype"]), self.argument["dtype"]
        if len(got) != len(want):
            return float("inf")
        allowed = 0.0 if dtype in WHOLE else case["atol"] + case["rtol"] * scale + ROUNDOFF[dtype] * np.abs(want)
        with np.errstate(all="ignore"):
            error = np.abs(got - want)
            fraction = np.where(error == 0, 0.0, error / allowed)
        fraction[np.isnan(fraction)] = np.inf
        fraction[np.isinf(scale)] = 0.0  # the contract leaves these open
        return float(fraction.max(initial=0.0))


def values(raw, dtype):
    if dtype in WHOLE:
        return raw.view(WHOLE[dtype]).astype(np.float64)
    if dtype == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.view({"f32": np.float32, "f16": np.float16}[dtype]).astype(np.float64)


def run(folder):
    """Launches a case; gives status, error and remark."""
    folder = Path(folder)
    case = json.loads((folder / "case.json").read_text())
    memory, arguments = [], []
    for argument in case["args"]:
        if argument["access"] == "scalar":
            kind, number = {"f32": ("<f", float), "i32": ("<i", int)}.get(argument["dtype"], ("<I", int))
            arguments.append(struct.pack(kind, number(argument["value"])))
        else:
            memory.append(Memory(argument, folder))
            arguments.append(memory[-1].address())
    code = Object((folder / "object").read_bytes())
    n_left_out = code.without_cache_control(case["arch"])
    try:
        code.launch(case["kernel"], case["arch"], case["grid"], case["block_size"], arguments)
    except Exception as error:  # whatever the emulator does not know ends here, by many names
        return NOT_RUN, None, " ".join(f"{type(error).__name__}: {error}".split())[:300]
    errors = [one.error(folder, case) for one in memory if one.argument["want"]]
    wrong = [remark for one in memory if (remark := one.wrong())]
    notes = wrong + ([f"{n_left_out} cache instructions left out"] if n_left_out else [])
    if not errors:
        return NOT_RUN, None, "the case has nothing to compare"
    return AGREES if max(errors) <= 1 and not wrong else DISAGREES, max(errors), "; ".join(notes)


def serve(pipe):
    sys.path.insert(0, os.environ["TINYGRAD"])
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "emulated-gpu"))
    from emulator import let_atomics_return, let_fp4_be_converted
    from test.mockgpu.amd import emu

    give_lds_room(emu)
    let_atomics_return(emu)
    let_fp4_be_converted(emu)
    while True:
        pipe.send(run(pipe.recv()))


class Worker(threading.local):
    """A process of this thread's own that runs cases one by one, so that what the emulator has learnt is kept; another
    after one that took too long or died."""

    process = None

    def run(self, folder, limit_s):
        if self.process is None:
            self.pipe, theirs = multiprocessing.Pipe()
            self.process = multiprocessing.Process(target=serve, args=(theirs,), daemon=True)
            self.process.start()
            theirs.close()
        try:
            self.pipe.send(str(folder))
            if self.pipe.poll(limit_s):
                return self.pipe.recv()
            remark = f"not done after {limit_s} s"
        except (EOFError, BrokenPipeError, ConnectionResetError):
            remark = "the emulator's process died"
        self.process.kill()
        self.process.join()
        self.process = None
        return NOT_RUN, None, remark


def row(folder, worker, limit_s, same):
    started = time.monotonic()
    status, error, remark = (None, None, f"the same machine code as {same}") if same else worker.run(folder, limit_s)
    case = json.loads((folder / "case.json").read_text())
    done = dict(folder=folder, case=case, status=status, error=error, remark=remark, seconds=time.monotonic() - started)
    if not same:
        print(" | ".join(cells(done)), flush=True)
    return done


def same_code(folders):
    """For each case the arch of an earlier one with the same machine code and launch, or None."""
    seen, same = {}, {}
    for folder in folders:
        case = json.loads((folder / "case.json").read_text())
        arch = case.pop("arch")
        digest = hashlib.sha256(Object((folder / "object").read_bytes()).text).digest()
        first = seen.setdefault((family(arch), folder.name, digest, json.dumps(case, sort_keys=True)), arch)
        same[folder] = None if first == arch else first
    return same


HEADER = ["arch", "kernel", "precision", "types", "shape", "largest error, % of tolerance", "s", ""]


def cells(done):
    case = done["case"]
    types = ", ".join(f"{name} {dtype}" for name, dtype in case["dtypes"].items())
    error = "-" if done["error"] is None else f"{100 * done['error']:.2g}"
    status = ": ".join(part for part in (done["status"], done["remark"]) if part)
    kernel = f"{case['op']}/{case['variant']}"
    return [case["arch"], kernel, case["precision"], types, case["shape"], error, f"{done['seconds']:.0f}", status]


def markdown(rows):
    lines = [HEADER, ["---"] * 5 + ["---:"] * 2 + ["---"]] + [cells(done) for done in rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, nargs="+", help="folders with cases somewhere below")
    parser.add_argument("--match", default="", help="only folders with this in their path")
    parser.add_argument("--markdown", type=Path, help="write the table to this file, too")
    parser.add_argument("--limit", type=int, default=120, help="seconds for a case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cases at a time")
    args = parser.parse_args()
    if not (Path(os.environ.get("TINYGRAD", "")) / "test/mockgpu/amd/emu.py").is_file():
        sys.exit("set TINYGRAD to a checkout of github.com/tinygrad/tinygrad (it has test/mockgpu/amd/emu.py)")
    folders = sorted({path.parent for top in args.cases for path in top.rglob("case.json") if args.match in str(path)})
    if not folders:
        sys.exit("no case.json there; `gptoss-jit kernels check --arch ARCH --export DIR` writes them")
    same, worker = same_code(folders), Worker()
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(lambda folder: row(folder, worker, args.limit, same[folder]), folders))
    # What has the code of another case has its result.
    results = {(done["case"]["arch"], done["folder"].name): done for done in rows}
    for done in rows:
        if first := same[done["folder"]]:
            found = results[first, done["folder"].name]
            done |= dict(status=found["status"], error=found["error"])
    if args.markdown:
        args.markdown.write_text(markdown(rows))
    counts = {status: sum(done["status"] == status for done in rows) for status in (AGREES, DISAGREES, NOT_RUN)}
    print(", ".join(f"{n} {status}" for status, n in counts.items()))
    sys.exit(1 if counts[DISAGREES] else 0)


if __name__ == "__main__":
    main()
