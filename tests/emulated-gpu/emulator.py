"""What each instruction does, from tinygrad's emulator of AMD's instruction sets: wave.c asks with 16 bytes on stdin,
and is told on stdout where in the file `code` lies a function that does it. What was told is left in the file `index`.

Needs EMULATED_GPU_ARCH, EMULATED_GPU_LEARNT (the folder of both files), TINYGRAD (a checkout), and clang on the PATH.
"""

import fcntl
import inspect
import os
import re
import struct
import sys
from pathlib import Path

RECORD = struct.Struct("<16s4B6s2xI")  # `struct instruction` of wave.c
RUN, SKIP, LDS_BASE, UNKNOWN = range(4)  # `enum kind` of wave.c

# What writes back or drops caches, which the emulator has none of: first words without the bits that name a scope,
# those bits, and how many words there are.
CACHE_CONTROL = {
    "rdna3": ({0xE0AC0000, 0xE0B00000}, 0, 2),
    "rdna4": ({0xEE0AC07C, 0xEE0B007C, 0xEE13C07C}, 0, 3),
    "cdna": ({0xE0A00000, 0xE0A40000}, 0xC000, 2),
}


def family(arch):
    """The emulator's name for what it tells apart, or None."""
    if arch.startswith("gfx9"):
        return "cdna"
    return {"gfx11": "rdna3", "gfx12": "rdna4"}.get(arch[:5])


def let_atomics_return(emulator):
    """An atomic gives back what was there if a bit says so: `glc` on RDNA3, which the emulator asks for; `sc0` on CDNA3
    and the lowest of `th` on RDNA4, for which it gives nothing back."""
    real = emulator._iattr

    def attribute(instruction, name, default=0):
        if name != "glc" or hasattr(instruction, "glc"):
            return real(instruction, name, default)
        return (real(instruction, "sc0") | real(instruction, "th")) & 1

    emulator._iattr = attribute


def let_flat_be_without_base(emulator):
    """CDNA's FLAT instructions have zeros where those of GLOBAL name the register of a base: no register, where the
    emulator reads s0."""
    real = emulator._Ctx.optional_field

    def field(self, instruction, name):
        return None if name == "saddr" and isinstance(instruction, emulator.irc.FLAT) else real(self, instruction, name)

    emulator._Ctx.optional_field = field


def let_flat_know_its_address(emulator):
    """RDNA4's FLAT instructions ask for where scratch lies, which the emulator has no name for: the address in their
    registers is the address here, as for the others."""
    real = emulator.get_pcode

    def text(operation):
        text = real(operation)
        if "CalcFlatAddr" not in text:
            return text
        return re.sub(r"addr\s*=\s*CalcFlatAddr\([^)]*\)\s*;?\n?", "", text).replace("MEM[addr", "MEM[ADDR")

    emulator.get_pcode = text


def rewrite(emulator, function, replaced):
    """A function of the emulator's with parts of its text replaced, each found as often as told."""
    real = getattr(emulator, function)
    source = inspect.getsource(real)
    for times, old, new in replaced:
        if source.count(old) != times:
            raise NotImplementedError(f"another {function} than that of the checkout that docs/emulator.md names")
        source = source.replace(old, new)
    exec(source, vars(emulator))
    handlers = emulator._INST_HANDLERS
    handlers.update({kind: getattr(emulator, function) for kind, handler in handlers.items() if handler is real})


def let_wmma_add_to_constants(emulator):
    """What RDNA's matrix instructions add to may be a constant, 0 above all: 128 is one, and no v128."""
    rewrite(emulator, "_compile_wmma", (
        (1, "  src2_r = (src2_r >=", "  in_registers, constant = src2_r >= 256, src2_r\n  src2_r = (src2_r >="),
        (1, "mat_c = [ctx.rvgpr_dyn(src2_r + _c(vgpr), UOp.const(lane, dtypes.int)).bitcast(out_dt)",
         "mat_c = [in_registers.where(ctx.rvgpr_dyn(src2_r + _c(vgpr), UOp.const(lane, dtypes.int)),"
         " ctx.rsgpr_dyn(in_registers.where(_c(128), constant))).bitcast(out_dt)"),
    ))  # fmt: skip


def let_lds_take_accumulators(emulator):
    """CDNA's instructions of LDS store accumulators too, where their `acc` bit says so: the emulator heeds it at what
    they load alone."""
    data = "(ctx.raccvgpr_dyn if use_acc else ctx.rvgpr_dyn)"
    rewrite(emulator, "_compile_mem_op", (
        (8, "ctx.rvgpr_dyn(vdata_reg", f"{data}(vdata_reg"),
        (3, "ctx.rvgpr_dyn(data1_reg", f"{data}(data1_reg"),
    ))  # fmt: skip


def let_registers_be_chosen(emulator):
    """RDNA's v_movrels_b32 takes the register that M0 counts from the one it names: the emulator cannot say which."""
    first = "  if op_name in ('V_READFIRSTLANE_B32_E32'"
    rewrite(emulator, "_compile_vop12", (
        (1, first, "  if op_name == 'V_MOVRELS_B32_E32':\n"
         "    lane, exec_mask, kind = ctx.range(), ctx.rexec(), type(inst)\n"
         "    chosen = ctx.rvgpr_dyn(ctx.inst_field(kind.src0) - _c(256) + ctx.rsgpr_dyn(_c(125)), lane)\n"
         "    stored = ctx.wvgpr_dyn(ctx.inst_field(kind.vdst), lane, chosen, exec_mask)\n"
         f"    return UOp.sink(stored.end(lane), *ctx.inc_pc())\n{first}"),
    ))  # fmt: skip


def let_fp4_be_converted(emulator):
    """CDNA4's v_cvt_scalef32_pk_bf16_fp4: the emulator has AMD's text of it, but neither the function that this calls
    for one number of 4 bits and the exponent of a factor, nor a register's byte that a text names by OPSEL. The two
    bits that choose the byte are reversed, as LLVM writes them and AMD's text of RDNA4's v_cvt_f32_fp8 says: that of
    CDNA4 takes them as they are."""
    from test.mockgpu.amd import pcode

    def fp4_to_bf16_scale(code, scale):
        code, scale = (value.cast(pcode.dtypes.uint32) for value in (code, scale))
        magnitude = code & pcode._u32(7)
        # e2m1: 2^(e - 1) (1 + m / 2) with a bias of 1, and 0 and 0.5 where e is 0.
        bits = (magnitude << pcode._u32(22)) + pcode._u32(126 << 23)
        bits = magnitude.eq(pcode._u32(0)).where(pcode._u32(0), bits)
        bits = magnitude.eq(pcode._u32(1)).where(pcode._u32(126 << 23), bits)
        bits = bits | (code >> pcode._u32(3)) << pcode._u32(31)
        factor = scale.eq(pcode._u32(0)).where(pcode._u32(1 << 22), scale << pcode._u32(23))
        factor = scale.eq(pcode._u32(255)).where(pcode._u32(0x7FC00000), factor)
        return pcode._f32_to_bf16(bits.bitcast(pcode.dtypes.float32) * factor.bitcast(pcode.dtypes.float32))

    pcode._FUNCS["fp4_to_bf16_scale"] = fp4_to_bf16_scale
    real = emulator.get_pcode

    def text(operation):
        text = real(operation)
        if "fp4_to_bf16_scale" not in text:
            return text
        byte = "((OPSEL.u32 & 1) * 2 + ((OPSEL.u32 & 2) >> 1))"
        text = text.replace("OPSEL[1 : 0].i32", byte).replace(".fp4", "").replace("scale.u8", "scale")
        return text.replace("VGPR[laneId][SRC0.u32][srcbyte + 7 : srcbyte].b8", "(S0.u32 >> srcbyte) & 255")

    emulator.get_pcode = text


class Teacher:
    def __init__(self, arch, folder):
        self.family, self.places = family(arch), {}
        if self.family is None:
            raise NotImplementedError(f"the emulator does not know {arch}")
        self.code, self.index = (open(folder / name, "ab") for name in ("code", "index"))

    def emulator(self):
        """Only what is not known yet needs it, and it takes a second to load."""
        os.environ.setdefault("DEV", "CPU")
        from test.mockgpu.amd import emu

        if not hasattr(self, "emu"):
            let_atomics_return(emu)
            let_flat_be_without_base(emu)
            let_flat_know_its_address(emu)
            let_wmma_add_to_constants(emu)
            let_lds_take_accumulators(emu)
            let_registers_be_chosen(emu)
            let_fp4_be_converted(emu)
            self.emu = emu
        return self.emu

    def teach(self, raw):
        first, scopes, n_words = CACHE_CONTROL[self.family]
        words = struct.unpack("<4I", raw)
        if words[0] & ~scopes in first and words[n_words - 1] == 0:
            return self.record(raw, 4 * n_words, SKIP)
        if words[0] & 0xFF80FFFF == 0xBE8001EB:  # s_mov_b64 sN, src_shared_base, on all of them
            return self.record(raw, 4, LDS_BASE)
        emu = self.emulator()
        instruction = emu.decode_inst(raw, self.family)
        size = instruction.size()
        program, runtime = emu._get_runner(raw[: size + 4], self.family)
        operation = getattr(instruction, "op", None)
        is_barrier = operation in emu._BARRIER_OPS or operation in emu._BARRIER_SOP1_OPS
        arguments = bytes(program.arg.globals)
        return self.record(raw, size, RUN, is_barrier, arguments, self.place(runtime))

    def place(self, runtime):
        """Where in the file the function lies; it has no addresses of this process in it."""
        if runtime not in self.places:
            at = self.code.seek(0, os.SEEK_END)
            self.code.write(bytes(-at % 64) + runtime.mem[:])
            self.code.flush()
            self.places[runtime] = at + -at % 64
        return self.places[runtime]

    def record(self, raw, size, kind, is_barrier=False, arguments=b"", code_at=0):
        record = RECORD.pack(raw[:size], size, kind, is_barrier, len(arguments), arguments, code_at)
        self.index.write(record)
        self.index.flush()
        return record

    def answer(self, raw):
        fcntl.flock(self.code, fcntl.LOCK_EX)
        try:
            return self.teach(raw)
        except Exception as error:  # whatever the emulator does not know ends here, by many names
            why = " ".join(f"{type(error).__name__}: {error}".split()).encode()[:1000]
            return RECORD.pack(raw, 0, UNKNOWN, 0, 0, b"", len(why)) + why
        finally:
            fcntl.flock(self.code, fcntl.LOCK_UN)


def refuse_what_is_elsewhere(elf):
    def link(name, libraries):
        raise NotImplementedError(f"a function calls {name}")

    elf.link_sym = link


def main():
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the emulator prints is no answer
    teacher = Teacher(os.environ["EMULATED_GPU_ARCH"], Path(os.environ["EMULATED_GPU_LEARNT"]))
    sys.path.insert(0, os.environ["TINYGRAD"])
    from tinygrad.runtime.support import elf

    refuse_what_is_elsewhere(elf)
    while len(raw := questions.read(16)) == 16:
        answers.write(teacher.answer(raw))
        answers.flush()


if __name__ == "__main__":
    main()
