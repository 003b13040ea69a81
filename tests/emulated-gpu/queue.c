// Reads what the runtime writes to its queues, as the command processor and the copy engines would: AQL packets of the
// HSA Platform System Architecture with AMD's own, and SDMA packets.
#include "gpu.h"
#include <linux/kfd_ioctl.h>
#include <string.h>
#include <unistd.h>

struct queue queues[MAX_QUEUES];

// ---- AQL ----

struct signal { int64_t kind, value; uint64_t mailbox; uint32_t event, reserved; uint64_t start, end; };
enum { VENDOR, INVALID, KERNEL, BARRIER_AND, AGENT, BARRIER_OR };
enum { PM4 = 1, BARRIER_VALUE = 2 };

static uint64_t at64(const uint8_t *packet, int offset) {
  uint64_t value;
  memcpy(&value, packet + offset, 8);
  return value;
}

static int64_t value_of(uint64_t signal) {
  return __atomic_load_n(&((struct signal *)signal)->value, __ATOMIC_ACQUIRE);
}

static void complete(uint64_t handle, uint64_t started) {
  struct signal *signal = (struct signal *)handle;
  if (!signal) return;
  signal->start = started, signal->end = nanoseconds() / 10;
  __atomic_sub_fetch(&signal->value, 1, __ATOMIC_SEQ_CST);
  if (signal->mailbox) {
    *(volatile uint64_t *)signal->mailbox = signal->event;
    if (signal->event) raise_event(signal->event);
  }
}

static int is_barrier_open(const uint8_t *packet, int type) {
  int n = 0, n_zero = 0;
  for (int i = 0; i < 5; i++) {
    uint64_t signal = at64(packet, 8 + 8 * i);
    if (signal) n++, n_zero += value_of(signal) == 0;
  }
  return type == BARRIER_AND ? n_zero == n : n == 0 || n_zero > 0;
}

static int is_value_reached(const uint8_t *packet) {
  uint64_t signal = at64(packet, 8);
  if (!signal) return 1;
  int64_t wanted = at64(packet, 16), value = value_of(signal) & at64(packet, 24);
  switch (packet[32]) {
  case 0: return value == wanted;
  case 1: return value != wanted;
  case 2: return value < wanted;
  default: return value >= wanted;
  }
}

// Whether a packet was there and done with.
static int run_aql(struct queue *queue) {
  uint64_t *read_pointer = (uint64_t *)queue->read_pointer, at = *read_pointer;
  if (at >= __atomic_load_n((uint64_t *)queue->write_pointer, __ATOMIC_ACQUIRE)) return 0;
  uint8_t *packet = (uint8_t *)queue->ring + at % (queue->size / 64) * 64;
  const int type = __atomic_load_n((uint16_t *)packet, __ATOMIC_ACQUIRE) & 0xff;
  const uint64_t started = nanoseconds() / 10, completion = at64(packet, 56);
  switch (type) {
  case INVALID: return 0; // not written yet
  case KERNEL:
    // The packet's queue starts 56 bytes before its write pointer (`amd_queue_t`).
    if (dispatch(packet, queue->write_pointer - 56) == FAULTED) {
      queue->stopped = 1;
      return 0;
    }
    break;
  case BARRIER_AND:
  case BARRIER_OR:
    if (!is_barrier_open(packet, type)) return 0;
    break;
  case VENDOR:
    if (packet[2] == BARRIER_VALUE && !is_value_reached(packet)) return 0;
    if (packet[2] == PM4) say(2, "a PM4 packet is ignored");
    else if (packet[2] != BARRIER_VALUE) cannot("a vendor's packet of format %u", packet[2]);
    break;
  default: cannot("an AQL packet of type %d", type);
  }
  __atomic_store_n((uint16_t *)packet, INVALID, __ATOMIC_RELEASE);
  __atomic_store_n(read_pointer, at + 1, __ATOMIC_RELEASE);
  complete(completion, started);
  return 1;
}

// ---- SDMA ----

enum { NOP, COPY, FENCE = 5, TRAP, POLL = 8, ATOMIC = 10, FILL, TIMESTAMP = 13, CACHE = 17, ATOMIC_ADD_64 = 47 };

static int is_poll_over(uint32_t header, uint32_t value, uint32_t wanted) {
  switch (header >> 28 & 7) {
  case 0: return 1;
  case 1: return value < wanted;
  case 2: return value <= wanted;
  case 3: return value == wanted;
  case 4: return value != wanted;
  case 5: return value >= wanted;
  default: return value > wanted;
  }
}

static int run_sdma(struct queue *queue) {
  uint64_t *read_pointer = (uint64_t *)queue->read_pointer, at = *read_pointer;
  if (at >= __atomic_load_n((uint64_t *)queue->write_pointer, __ATOMIC_ACQUIRE)) return 0;
  if (is_device_lost()) {
    queue->stopped = 1;
    return 0;
  }
  uint32_t words[8];
  for (int i = 0; i < 8; i++) words[i] = *(uint32_t *)(queue->ring + (at + 4 * i) % queue->size);
#define ADDRESS(i) ((void *)((uint64_t)words[(i) + 1] << 32 | words[i]))
  const unsigned operation = words[0] & 0xff;
  unsigned n_words = 0;
  switch (operation) {
  case NOP: n_words = 1 + (words[0] >> 16 & 0x3fff); break;
  case COPY:
    if (words[0] >> 8 & 0xff) cannot("an SDMA copy that is not linear");
    memmove(ADDRESS(5), ADDRESS(3), (words[1] & 0x3fffffff) + 1);
    n_words = 7;
    break;
  case FENCE: __atomic_store_n((uint32_t *)ADDRESS(1), words[3], __ATOMIC_RELEASE); n_words = 4; break;
  case TRAP: raise_event(words[1] & 0xfffffff); n_words = 2; break;
  case POLL:
    if (words[0] >> 31 && !is_poll_over(words[0], *(volatile uint32_t *)ADDRESS(1) & words[4], words[3])) return 0;
    n_words = 6;
    break;
  case ATOMIC:
    if (words[0] >> 25 != ATOMIC_ADD_64) cannot("SDMA atomic %u", words[0] >> 25);
    __atomic_add_fetch((uint64_t *)ADDRESS(1), (uint64_t)words[4] << 32 | words[3], __ATOMIC_SEQ_CST);
    n_words = 8;
    break;
  case FILL:
    for (uint32_t i = 0; i <= (words[4] & 0x3fffffff) / 4; i++) ((uint32_t *)ADDRESS(1))[i] = words[3];
    n_words = 5;
    break;
  case TIMESTAMP: *(uint64_t *)ADDRESS(1) = nanoseconds() / 10; n_words = 3; break;
  case CACHE: n_words = 5; break;
  default: cannot("SDMA operation %u", operation);
  }
  __atomic_store_n(read_pointer, at + 4 * n_words, __ATOMIC_RELEASE);
  return 1;
}

// ---- the engine: one thread that looks at all queues ----

static void *engine(void *unused) {
  for (unsigned idle = 0;;) {
    int worked = 0;
    for (int i = 0; i < MAX_QUEUES; i++) {
      pthread_mutex_lock(&driver_lock);
      const int is_live = queues[i].used && !queues[i].stopped;
      pthread_mutex_unlock(&driver_lock);
      if (!is_live) continue;
      if (queues[i].type == KFD_IOC_QUEUE_TYPE_COMPUTE_AQL) worked |= run_aql(&queues[i]);
      else while (run_sdma(&queues[i])) worked = 1;
    }
    idle = worked ? 0 : idle + 1;
    if (idle > 200) usleep(idle < 4000 ? 50 : 500);
  }
  return unused;
}

void start_engine(void) {
  static int is_running;
  if (is_running) return;
  is_running = 1;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 64 << 20);
  pthread_t thread;
  if (pthread_create(&thread, &attributes, engine, NULL)) cannot("no thread");
}
