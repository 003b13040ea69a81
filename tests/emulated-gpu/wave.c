// Executes dispatches: what a wave finds when it starts, which wave goes on when, and what memory it may touch. What an
// instruction does comes from the emulator, as a function in host machine code for each; emulator.py makes them and
// leaves them in a folder, so that what was once learnt is there at the next start.
#include "gpu.h"
#include <errno.h>
#include <fcntl.h>
#include <immintrin.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- instructions ----

// What a function does; nothing; `s_mov_b64` of where LDS lies among all addresses, which the emulator does not know.
enum kind { RUN, SKIP, LDS_BASE, UNKNOWN };

// One instruction as emulator.py tells it, on disk and over the pipe. `raw` is zero from `size` on.
struct instruction {
  uint8_t raw[16];
  uint8_t size, kind, is_barrier, n_arguments, arguments[6], reserved[2];
  uint32_t code_at;
};
_Static_assert(sizeof(struct instruction) == 32, "emulator.py packs it so");

typedef void (*code)(void *, void *, void *, void *, void *, void *);

enum { MAX_KNOWN = 1 << 20, MAX_CODE_BYTES = 1 << 30, N_NEAR = 1 << 16 };
static struct instruction known[MAX_KNOWN];
static uint32_t n_known, buckets[2 * MAX_KNOWN]; // place in `known` plus 1
static const uint8_t *code_base;
static int question_fd = -1, answer_fd = -1;

static uint64_t hash(const uint8_t *raw, int size) {
  uint64_t h = 0xcbf29ce484222325;
  for (int i = 0; i < size; i++) h = (h ^ raw[i]) * 0x100000001b3;
  return (h ^ h >> 29) % (2 * MAX_KNOWN);
}

static void learn(const struct instruction *one) {
  if (n_known == MAX_KNOWN) cannot("more than %d instructions", MAX_KNOWN);
  known[n_known++] = *one;
  uint64_t at = hash(one->raw, one->size);
  while (buckets[at]) at = (at + 1) % (2 * MAX_KNOWN);
  buckets[at] = n_known;
}

// No encoding is the start of a longer one, so that the first length that is known is the right one.
static const struct instruction *recall(const uint8_t *raw) {
  for (int size = 4; size <= 16; size += 4)
    for (uint64_t at = hash(raw, size); buckets[at]; at = (at + 1) % (2 * MAX_KNOWN)) {
      const struct instruction *one = &known[buckets[at] - 1];
      if (one->size == size && !memcmp(one->raw, raw, size)) return one;
    }
  return NULL;
}

static void start_emulator(void) {
  int question[2], answer[2];
  if (pipe2(question, O_CLOEXEC) || pipe2(answer, O_CLOEXEC)) cannot("no pipe: %s", strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, question[0], 0);
  posix_spawn_file_actions_adddup2(&actions, answer[1], 1);
  // The emulator runs with this machine's own libraries, and sees its own GPUs.
  extern char **environ;
  int n = 0, kept = 0;
  while (environ[n]) n++;
  char *environment[n + 1];
  for (int i = 0; i < n; i++)
    if (strncmp(environ[i], "LD_", 3)) environment[kept++] = environ[i];
  environment[kept] = NULL;
  const char *python = setting("EMULATED_GPU_PYTHON", "python3");
  char *arguments[] = {(char *)python, (char *)setting("EMULATED_GPU_EMULATOR", ""), NULL};
  pid_t pid;
  int error = posix_spawnp(&pid, python, &actions, NULL, arguments, environment);
  if (error) cannot("could not start %s: %s", python, strerror(error));
  close(question[0]), close(answer[1]);
  question_fd = question[1], answer_fd = answer[0];
}

static void read_all(void *to, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t n = read(answer_fd, (char *)to + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) cannot("the emulator's process ended");
    done += n;
  }
}

// What was learnt before lies in the folder as `index`, of `struct instruction`, and `code`, which grows while it is
// mapped.
static void open_cache(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s/code", setting("EMULATED_GPU_LEARNT", "."));
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) cannot("%s: %s", path, strerror(errno));
  code_base = mmap(NULL, MAX_CODE_BYTES, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
  close(fd);
  if (code_base == MAP_FAILED) cannot("%s: %s", path, strerror(errno));
  snprintf(path, sizeof path, "%s/index", setting("EMULATED_GPU_LEARNT", "."));
  FILE *index = fopen(path, "rb");
  struct instruction one;
  while (index && fread(&one, sizeof one, 1, index) == 1)
    if (!recall(one.raw)) learn(&one);
  if (index) fclose(index);
  say(1, "%u instructions are known", n_known);
}

static const struct instruction *look_up(uint64_t pc) {
  const struct instruction *one = recall((const uint8_t *)pc);
  if (one) return one;
  if (question_fd < 0) start_emulator();
  struct instruction answer;
  if (write(question_fd, (const void *)pc, 16) != 16) cannot("the emulator's process ended");
  read_all(&answer, sizeof answer);
  if (answer.kind == UNKNOWN) {
    char why[1025] = "";
    read_all(why, answer.code_at < 1024 ? answer.code_at : 1024);
    cannot("not emulated: %s", why);
  }
  learn(&answer);
  return &known[n_known - 1];
}

// ---- waves ----

// The emulator's registers: scalar ones with inline constants from 128 on, and behind them what has no number.
enum { N_SCALAR = 260, NO_REGISTER = 124, EXEC = 126, INLINE = 128, FLOATS = 240 };
enum { PC = 256, SCRATCH_STRIDE = 259, TTMP = 108 };
static const uint64_t ENDED = UINT64_MAX;
// What nobody has written: a NaN in f32, and in both halves in bf16 and f16.
static const uint32_t UNDEFINED = 0xffedfeed;

struct wave { uint32_t *scalar, *vector, *accumulators; uint8_t *scratch; int has_ended, waits; };

static struct launch {
  const char *arch;
  int is_cdna, is_rdna4, wave_size;
  uint64_t code;
  uint32_t size[3], groups[3], private_bytes, lds_bytes, rsrc2, user[64];
  int n_user;
} now;

static uint8_t *lds;
static const size_t LDS_ROOM = (1ull << 32) + (1 << 20), LDS_CHECKED = 4096;
static struct wave waves[64];
static uint8_t *scratch_room;
static uint64_t scratch_room_bytes, random_state;
static long max_instructions;

static uint64_t random_below(uint64_t n) {
  random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
  return random_state % n;
}

static void *pages(size_t size) {
  void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) cannot("no memory for %zu bytes", size);
  return at;
}

static void fill(void *at, size_t bytes) {
  for (size_t i = 0; i < bytes / 4; i++) ((uint32_t *)at)[i] = UNDEFINED;
}

// Scratch of each wave of a workgroup, with a page that faults behind each.
static void place_scratch(int n_waves) {
  uint64_t one = (((uint64_t)now.private_bytes * now.wave_size + 4095) & ~4095ull) + 4096;
  if (one * n_waves > scratch_room_bytes) {
    if (scratch_room) munmap(scratch_room, scratch_room_bytes);
    scratch_room_bytes = one * n_waves;
    scratch_room = pages(scratch_room_bytes);
  }
  mprotect(scratch_room, scratch_room_bytes, PROT_READ | PROT_WRITE);
  for (int i = 0; i < n_waves; i++) {
    waves[i].scratch = scratch_room + i * one;
    mprotect(waves[i].scratch + one - 4096, 4096, PROT_NONE);
  }
}

static void start_wave(struct wave *w, uint32_t first, const uint32_t group[3]) {
  static const uint32_t floats[] = {0x3f000000, 0xbf000000, 0x3f800000, 0xbf800000, 0x40000000,
                                    0xc0000000, 0x40800000, 0xc0800000, 0x3e22f983};
  const size_t vector_bytes = 256 * 4 * now.wave_size;
  if (!w->scalar) w->scalar = pages(4096), w->vector = pages(256 * 4 * 64), w->accumulators = pages(256 * 4 * 64);
  fill(w->vector, vector_bytes);
  if (now.is_cdna) fill(w->accumulators, vector_bytes);
  fill(w->scratch, (size_t)now.private_bytes * now.wave_size);
  uint32_t *s = w->scalar, n_threads = now.size[0] * now.size[1] * now.size[2];
  fill(s, 4 * INLINE);
  if (!now.is_cdna) s[NO_REGISTER] = 0;
  memset(s + INLINE, 0, 4 * (N_SCALAR - INLINE));
  for (int i = 0; i <= 64; i++) s[INLINE + i] = i;
  for (int i = 1; i <= 16; i++) s[INLINE + 64 + i] = -i;
  memcpy(s + FLOATS, floats, sizeof floats);
  uint32_t n_lanes = n_threads - first < (uint32_t)now.wave_size ? n_threads - first : (uint32_t)now.wave_size;
  uint64_t lanes = n_lanes == 64 ? UINT64_MAX : (1ull << n_lanes) - 1;
  s[EXEC] = lanes, s[EXEC + 1] = lanes >> 32;
  s[PC] = now.code, s[PC + 1] = now.code >> 32;
  s[SCRATCH_STRIDE] = now.private_bytes;
  memcpy(s, now.user, 4 * now.n_user);
  if (now.is_rdna4) {
    s[TTMP + 7] = (group[1] & 0xffff) | group[2] << 16, s[TTMP + 9] = group[0];
  } else {
    int next = now.rsrc2 >> 1 & 31;
    for (int axis = 0; axis < 3; axis++)
      if (now.rsrc2 >> (7 + axis) & 1) s[next++] = group[axis];
  }
  for (uint32_t lane = 0; lane < n_lanes; lane++) {
    uint32_t thread = first + lane, x = now.size[0], y = now.size[1];
    w->vector[lane] = thread / (x * y) << 20 | thread / x % y << 10 | thread % x;
  }
  w->has_ended = w->waits = 0;
}

// ---- faults ----

static sigjmp_buf fault_exit;
static volatile int is_emulating;
static uint64_t fault_address;
static int fault_is_write;
static struct wave *running;

static void on_fault(int number, siginfo_t *info, void *context) {
  if (!is_emulating) {
    signal(number, SIG_DFL);
    return;
  }
  fault_address = (uint64_t)info->si_addr;
  fault_is_write = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] >> 1 & 1;
  siglongjmp(fault_exit, 1);
}

static uint64_t pc_of(const struct wave *w) { return w->scalar[PC] | (uint64_t)w->scalar[PC + 1] << 32; }

// Runs a wave until it ends, waits at a barrier, or has had its turn.
static void run_wave(struct wave *w, long turn) {
  static struct { uint64_t pc, raw[2]; const struct instruction *is; } near[N_NEAR];
  running = w;
  void *buffers[6] = {w->scalar, w->vector, NULL, lds, w->scratch, now.is_cdna ? w->accumulators : w->vector};
  for (long n = 0;; n++) {
    if (n == turn) return;
    uint64_t pc = pc_of(w), raw[2];
    if (pc == ENDED) {
      w->has_ended = 1;
      return;
    }
    memcpy(raw, (void *)pc, 16);
    typeof(near[0]) *at = &near[(pc >> 2) % N_NEAR];
    if (at->pc != pc || at->raw[0] != raw[0] || at->raw[1] != raw[1]) {
      const unsigned modes = _mm_getcsr();
      at->is = look_up(pc), at->pc = pc, at->raw[0] = raw[0], at->raw[1] = raw[1];
      _mm_setcsr(modes);
    }
    const struct instruction *one = at->is;
    if (one->kind == LDS_BASE) {
      uint32_t *to = &w->scalar[raw[0] >> 16 & 127];
      to[0] = 0, to[1] = (uint64_t)lds >> 32;
    }
    if (one->kind != RUN) {
      pc += one->size;
      w->scalar[PC] = pc, w->scalar[PC + 1] = pc >> 32;
      continue;
    }
    const uint8_t *to = one->arguments;
    ((code)(code_base + one->code_at))(buffers[to[0]], buffers[to[1]], buffers[to[2]], buffers[to[3]], buffers[to[4]],
                                       buffers[to[5]]);
    if (one->is_barrier) {
      w->waits = 1;
      return;
    }
    if (n >= max_instructions) cannot("a wave executed %ld instructions: EMULATED_GPU_MAX_INSTRUCTIONS", n);
  }
}

// Waves take turns: each until it waits, or with EMULATED_GPU_SEED in random order and for random lengths.
static void run_workgroup(const uint32_t group[3]) {
  uint32_t n_threads = now.size[0] * now.size[1] * now.size[2];
  int n_waves = (n_threads + now.wave_size - 1) / now.wave_size, n_ended = 0;
  fill(lds, now.lds_bytes + LDS_CHECKED);
  for (int i = 0; i < n_waves; i++) start_wave(&waves[i], i * now.wave_size, group);
  while (n_ended < n_waves) {
    int n_able = 0, able[64];
    for (int i = 0; i < n_waves; i++)
      if (!waves[i].has_ended && !waves[i].waits) able[n_able++] = i;
    if (!n_able) {
      for (int i = 0; i < n_waves; i++) waves[i].waits = 0;
      continue;
    }
    struct wave *w = &waves[able[random_state ? random_below(n_able) : 0]];
    run_wave(w, random_state ? 1 + (long)random_below(200) : -1);
    n_ended += w->has_ended;
  }
  for (size_t i = 0; i < LDS_CHECKED / 4; i++)
    if (((uint32_t *)(lds + now.lds_bytes))[i] != UNDEFINED)
      cannot("workgroup %u,%u,%u writes %zu bytes past its %u bytes of LDS", group[0], group[1], group[2], 4 * i,
             now.lds_bytes);
}

// ---- a dispatch ----

static uint16_t u16(const uint8_t *at) { uint16_t v; memcpy(&v, at, 2); return v; }
static uint32_t u32(const uint8_t *at) { uint32_t v; memcpy(&v, at, 4); return v; }
static uint64_t u64(const uint8_t *at) { uint64_t v; memcpy(&v, at, 8); return v; }

static void add_user(const void *values, int n) {
  memcpy(now.user + now.n_user, values, 4 * n);
  now.n_user += n;
}

// The packet and the kernel's descriptor as LLVM's "User Guide for AMDGPU Backend" lays them out.
static void read_packet(const uint8_t *packet, uint64_t queue_at) {
  const uint64_t descriptor_at = u64(packet + 32), arguments_at = u64(packet + 40);
  const uint64_t packet_at = (uint64_t)packet, none = 0;
  const uint8_t *descriptor = (const uint8_t *)descriptor_at;
  for (int axis = 0; axis < 3; axis++) {
    uint32_t size = u16(packet + 4 + 2 * axis), grid = u32(packet + 12 + 4 * axis);
    if (!size || grid % size) cannot("a grid of %u in workgroups of %u", grid, size);
    now.size[axis] = size, now.groups[axis] = grid / size;
  }
  now.private_bytes = u32(packet + 24), now.lds_bytes = (u32(packet + 28) + 511) / 512 * 512;
  now.rsrc2 = u32(descriptor + 52);
  const uint16_t properties = u16(descriptor + 56), preload = u16(descriptor + 58);
  const int n_preloaded = preload & 127;
  now.n_user = 0;
  if (properties & 1) add_user((const void *)(queue_at + 144), 4);
  if (properties & 2) add_user(&packet_at, 2);
  if (properties & 4) add_user(&queue_at, 2);
  if (properties & 8) add_user(&arguments_at, 2);
  if (properties & 16) add_user(&none, 2);
  if (properties & 32) add_user(&none, 2);
  if (properties & 64) add_user(&now.private_bytes, 1);
  if (now.n_user + n_preloaded > 32) cannot("%d user registers", now.n_user + n_preloaded);
  add_user((const uint8_t *)arguments_at + 4 * (preload >> 7), n_preloaded);
  // Code that expects preloaded arguments has a way in for hardware without them, 256 bytes before its own.
  now.code = descriptor_at + u64(descriptor + 16) + (n_preloaded ? 256 : 0);
  // Denormals are kept or flushed as the kernel asks.
  int keeps_denormals = (u32(descriptor + 48) >> 16 & 3) == 3;
  _mm_setcsr((_mm_getcsr() & ~0x8040u) | (keeps_denormals ? 0 : 0x8040));
}

static void prepare(void) {
  now.arch = setting("EMULATED_GPU_ARCH", "");
  now.is_cdna = !strncmp(now.arch, "gfx9", 4), now.is_rdna4 = !strncmp(now.arch, "gfx12", 5);
  now.wave_size = now.is_cdna ? 64 : 32;
  // Inactive lanes read LDS too, and write back what they read, at whatever address their registers hold: all that
  // 32 bits can address is there. Pages that nobody touches cost nothing. Its address ends with 32 zeros, so that it is
  // its own aperture: a generic address whose upper half says LDS is the address here.
  lds = (uint8_t *)(((uint64_t)pages(2 * LDS_ROOM) + UINT32_MAX) & ~(uint64_t)UINT32_MAX);
  random_state = strtoull(setting("EMULATED_GPU_SEED", "0"), NULL, 0);
  max_instructions = atol(setting("EMULATED_GPU_MAX_INSTRUCTIONS", "100000000"));
  open_cache();
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGSEGV, &action, NULL);
  sigaction(SIGBUS, &action, NULL);
}

enum outcome dispatch(const uint8_t *packet, uint64_t queue_at) {
  static long n_dispatches, lost_after, astray;
  static uint32_t group[3];
  if (!lds) {
    prepare();
    // The GPU goes away after so many dispatches; the first argument of that dispatch's kernel points astray.
    lost_after = atol(setting("EMULATED_GPU_LOST_AFTER", "0")), astray = atol(setting("EMULATED_GPU_ASTRAY", "0"));
  }
  if (lost_after && n_dispatches >= lost_after) {
    say(0, "the GPU has gone after %ld dispatches", n_dispatches);
    raise_device_lost();
    return FAULTED;
  }
  const unsigned modes = _mm_getcsr();
  const uint64_t started = nanoseconds();
  read_packet(packet, queue_at);
  n_dispatches++;
  if (n_dispatches == astray) *(uint64_t *)u64(packet + 40) += 1ull << 36;
  int n_waves = (now.size[0] * now.size[1] * now.size[2] + now.wave_size - 1) / now.wave_size;
  if (n_waves > 64) cannot("%d waves in a workgroup", n_waves);
  place_scratch(n_waves);
  say(2, "dispatch %ld: code %#lx, %u,%u,%u groups of %u,%u,%u, LDS %u, scratch %u", n_dispatches,
      now.code, now.groups[0], now.groups[1], now.groups[2], now.size[0], now.size[1], now.size[2], now.lds_bytes,
      now.private_bytes);
  enum outcome outcome = DONE;
  if (sigsetjmp(fault_exit, 1)) {
    char text[200];
    describe_address(fault_address, text, sizeof text);
    const uint64_t pc = pc_of(running);
    say(0, "workgroup %u,%u,%u %s %#lx, %s (wave %ld, instruction %08x %08x, %lu bytes behind the first)",
        group[0], group[1], group[2], fault_is_write ? "writes to" : "reads", fault_address, text,
        (long)(running - waves), u32((const uint8_t *)pc), u32((const uint8_t *)pc + 4), pc - now.code);
    outcome = FAULTED;
  } else {
    is_emulating = 1;
    for (group[2] = 0; group[2] < now.groups[2]; group[2]++)
      for (group[1] = 0; group[1] < now.groups[1]; group[1]++)
        for (group[0] = 0; group[0] < now.groups[0]; group[0]++) run_workgroup(group);
  }
  is_emulating = 0;
  _mm_setcsr(modes);
  if (outcome == FAULTED) raise_memory_fault(fault_address, fault_is_write);
  say(2, "dispatch %ld: done in %.3f s", n_dispatches, (nanoseconds() - started) / 1e9);
  return outcome;
}
