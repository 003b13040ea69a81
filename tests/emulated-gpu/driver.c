// Answers for the kernel driver: /dev/kfd, the render node, libdrm_amdgpu, the topology below /sys. Preloaded before
// AMD's runtime, which is not changed. What memory it is given lies in a file in memory, at addresses that it chose.
#include "gpu.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libdrm/amdgpu.h>
#include <linux/falloc.h>
#include <linux/kfd_ioctl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { GPU_ID = 0x1234, DOORBELLS = 0, MMIO_PAGE = 0x8000, FIRST_ROOM = 0x10000, NOT_THERE = -2, NOT_OURS = -1 };

pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t event_raised = PTHREAD_COND_INITIALIZER;
static int device = -1;
static uint64_t device_bytes, used_bytes;
static volatile int is_lost;

const char *setting(const char *name, const char *otherwise) {
  const char *value = getenv(name);
  return value && *value ? value : otherwise;
}

void say(int level, const char *format, ...) {
  static int wanted = -1;
  if (wanted < 0) wanted = atoi(setting("EMULATED_GPU_LOG", "0"));
  if (level > wanted) return;
  char line[1200];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  dprintf(2, "emulated-gpu: %s\n", line);
}

void cannot(const char *format, ...) {
  char line[1200];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  say(0, "%s", line);
  _exit(70);
}

uint64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ull + now.tv_nsec;
}

// ---- files ----

// The topology lies elsewhere, and the devices are there to whoever asks without opening them.
static const char *moved(const char *path, char room[4096]) {
  static const char *const prefixes[] = {"/sys/devices/virtual/kfd", "/sys/class/kfd"};
  // Rust asks for the status of the file of no name. The headers say that nobody does, and the compiler believes them.
  __asm__("" : "+r"(path));
  if (!path) return path;
  for (int i = 0; i < 2; i++) {
    size_t length = strlen(prefixes[i]);
    if (strncmp(path, prefixes[i], length) || (path[length] && path[length] != '/')) continue;
    snprintf(room, 4096, "%s%s", setting("EMULATED_GPU_TOPOLOGY", "/nowhere"), path + length);
    return room;
  }
  // It is no container, whatever this process is in.
  if (!strcmp(path, "/.dockerenv") || !strcmp(path, "/run/.containerenv")) return "/nowhere";
  if (strcmp(path, "/dev/kfd") && strcmp(path, "/dev/dri/renderD128")) return path;
  return strcmp(setting("EMULATED_GPU_ABSENT", ""), path) ? "/dev/null" : "/nowhere";
}

static int is_setting(const char *name, const char *path) { return !strcmp(setting(name, ""), path); }

static int open_device(const char *path) {
  if (!path || (strcmp(path, "/dev/kfd") && strncmp(path, "/dev/dri/renderD", 16))) return NOT_OURS;
  const int is_another = path[5] == 'd' && strcmp(path, "/dev/dri/renderD128");
  if (is_another || is_setting("EMULATED_GPU_ABSENT", path) || is_setting("EMULATED_GPU_DENIED", path)) {
    errno = is_setting("EMULATED_GPU_DENIED", path) ? EACCES : ENOENT;
    return NOT_THERE;
  }
  pthread_mutex_lock(&driver_lock);
  if (device < 0) {
    device = memfd_create("emulated-gpu", MFD_CLOEXEC);
    device_bytes = FIRST_ROOM;
    if (device < 0 || ftruncate(device, device_bytes)) cannot("no file in memory: %s", strerror(errno));
  }
  pthread_mutex_unlock(&driver_lock);
  return fcntl(device, F_DUPFD_CLOEXEC, 100);
}

static int is_device(int fd) {
  struct stat theirs, ours;
  return device >= 0 && !fstat(fd, &theirs) && !fstat(device, &ours) && theirs.st_ino == ours.st_ino &&
         theirs.st_dev == ours.st_dev;
}

#define NEXT(name) \
  static typeof(&name) next; \
  if (!next) next = dlsym(RTLD_NEXT, #name); \
  char room[4096]

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    NEXT(name); \
    va_list arguments; \
    va_start(arguments, flags); \
    int mode = va_arg(arguments, int), fd = open_device(path); \
    va_end(arguments); \
    return fd >= 0 ? fd : fd == NOT_THERE ? -1 : next(moved(path, room), flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
  int name(int folder, const char *path, int flags, ...) { \
    NEXT(name); \
    va_list arguments; \
    va_start(arguments, flags); \
    int mode = va_arg(arguments, int), fd = open_device(path); \
    va_end(arguments); \
    return fd >= 0 ? fd : fd == NOT_THERE ? -1 : next(folder, moved(path, room), flags, mode); \
  }
OPENAT(openat)
OPENAT(openat64)

FILE *fopen(const char *path, const char *mode) { NEXT(fopen); return next(moved(path, room), mode); }
FILE *fopen64(const char *path, const char *mode) { NEXT(fopen64); return next(moved(path, room), mode); }
DIR *opendir(const char *path) { NEXT(opendir); return next(moved(path, room)); }
int access(const char *path, int mode) { NEXT(access); return next(moved(path, room), mode); }
int stat(const char *path, struct stat *to) { NEXT(stat); return next(moved(path, room), to); }
int stat64(const char *path, struct stat64 *to) { NEXT(stat64); return next(moved(path, room), to); }
int lstat(const char *path, struct stat *to) { NEXT(lstat); return next(moved(path, room), to); }
int lstat64(const char *path, struct stat64 *to) { NEXT(lstat64); return next(moved(path, room), to); }
int statx(int folder, const char *path, int flags, unsigned mask, struct statx *to) {
  NEXT(statx);
  return next(folder, moved(path, room), flags, mask, to);
}
ssize_t readlink(const char *path, char *to, size_t size) { NEXT(readlink); return next(moved(path, room), to, size); }
char *realpath(const char *path, char *to) { NEXT(realpath); return next(moved(path, room), to); }

// ---- processes ----

// The program is itself what it starts, and needs the packages' libraries, or it starts something of the machine's, whose
// loader does not take them. Environments that were cleared are told too: that of a process that compiles.
static char **environment_for(const char *program, char *const *given) {
  static const char *const ours[] = {"LD_LIBRARY_PATH=", "LD_PRELOAD="};
  struct stat theirs, self;
  const int is_ours = !stat(program, &theirs) && !stat("/proc/self/exe", &self) && theirs.st_ino == self.st_ino &&
                      theirs.st_dev == self.st_dev;
  int n = 0;
  while (given && given[n]) n++;
  char **made = calloc(n + 3, sizeof *made), **to = made;
  for (int i = 0; i < n; i++) {
    const int is_one = !strncmp(given[i], ours[0], strlen(ours[0])) || !strncmp(given[i], ours[1], strlen(ours[1]));
    if (!is_one) *to++ = given[i];
  }
  for (int i = 0; is_ours && i < 2; i++) {
    char *value = NULL;
    const char *name = i ? "LD_PRELOAD" : "LD_LIBRARY_PATH";
    if (getenv(name) && asprintf(&value, "%s=%s", name, getenv(name)) > 0) *to++ = value;
  }
  return made;
}

#define SPAWN(name) \
  int name(pid_t *pid, const char *program, const posix_spawn_file_actions_t *actions, \
           const posix_spawnattr_t *attributes, char *const *words, char *const *environment) { \
    static typeof(&name) next; \
    if (!next) next = dlsym(RTLD_NEXT, #name); \
    char **made = environment_for(program, environment); \
    int error = next(pid, program, actions, attributes, words, made); \
    free(made); \
    return error; \
  }
SPAWN(posix_spawn)
SPAWN(posix_spawnp)

int execvp(const char *program, char *const *words) {
  return execvpe(program, words, environment_for(program, environ));
}

// ---- libdrm ----

int drmOpenRender(int minor) {
  char path[64];
  snprintf(path, sizeof path, "/dev/dri/renderD%d", minor);
  return open(path, O_RDWR);
}
int drmClose(int fd) { return close(fd); }
int amdgpu_device_initialize(int fd, uint32_t *major, uint32_t *minor, amdgpu_device_handle *handle) {
  *major = 3, *minor = 57, *handle = (amdgpu_device_handle)(uintptr_t)fcntl(fd, F_DUPFD_CLOEXEC, 100);
  return 0;
}
int amdgpu_device_deinitialize(amdgpu_device_handle handle) { return close((int)(uintptr_t)handle); }
int amdgpu_device_get_fd(amdgpu_device_handle handle) { return (int)(uintptr_t)handle; }
const char *amdgpu_get_marketing_name(amdgpu_device_handle handle) { return "emulated AMD GPU"; }
int amdgpu_query_gpu_info(amdgpu_device_handle handle, struct amdgpu_gpu_info *info) {
  memset(info, 0, sizeof *info);
  info->asic_id = atoi(setting("EMULATED_GPU_DEVICE_ID", "0")), info->family_id = 145, info->gpu_counter_freq = 100000;
  info->max_engine_clk = 2400000, info->max_memory_clk = 1249000, info->vram_bit_width = 384;
  return 0;
}

// ---- memory ----

enum { MAX_ALLOCATIONS = 1 << 16 };
static struct memory { uint64_t start, size, room; uint32_t flags; int is_live; } memories[MAX_ALLOCATIONS];

static uint64_t total_bytes(void) { return strtoull(setting("EMULATED_GPU_MEMORY", "8589934592"), NULL, 0); }

static int allocate(struct kfd_ioctl_alloc_memory_of_gpu_args *asked) {
  const int is_video = !!(asked->flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM);
  if (is_video && used_bytes + asked->size > total_bytes()) return ENOMEM;
  int i = 1;
  while (i < MAX_ALLOCATIONS && memories[i].is_live) i++;
  if (i == MAX_ALLOCATIONS) return ENOMEM;
  struct memory *one = &memories[i];
  *one = (struct memory){asked->va_addr, asked->size, 0, asked->flags, 1};
  if (asked->flags & KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL) {
    asked->mmap_offset = DOORBELLS;
  } else if (asked->flags & KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP) {
    asked->mmap_offset = MMIO_PAGE;
  } else if (asked->flags & KFD_IOC_ALLOC_MEM_FLAGS_USERPTR) {
    if (asked->va_addr != asked->mmap_offset) cannot("memory of the program's at another address for the GPU");
  } else {
    one->room = asked->mmap_offset = (device_bytes + 0xffff) & ~0xffffull;
    device_bytes = one->room + ((asked->size + 4095) & ~4095ull);
    if (ftruncate(device, device_bytes)) return ENOMEM;
    if (is_video) used_bytes += asked->size;
  }
  asked->handle = i;
  return 0;
}

static int release(uint64_t handle) {
  struct memory *one = &memories[handle];
  if (one->flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM) used_bytes -= one->size;
  if (one->room) fallocate(device, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, one->room, one->size);
  one->is_live = 0;
  return 0;
}

// Memory that the processor may not see is mapped without rights; here the GPU is the processor.
static int map_to_gpu(uint64_t handle) {
  const struct memory *one = &memories[handle];
  if (one->flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM && one->start)
    mprotect((void *)one->start, one->size, PROT_READ | PROT_WRITE);
  return 0;
}

void describe_address(uint64_t address, char *text, int size) {
  const struct memory *below = NULL, *above = NULL;
  pthread_mutex_lock(&driver_lock);
  for (int i = 1; i < MAX_ALLOCATIONS; i++) {
    const struct memory *one = &memories[i];
    const uint32_t no_memory = KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL | KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP;
    if (!one->is_live || !one->size || one->flags & no_memory) continue;
    if (one->start <= address && (!below || one->start > below->start)) below = one;
    if (one->start > address && (!above || one->start < above->start)) above = one;
  }
  uint64_t past = below ? address - below->start : UINT64_MAX, before = above ? above->start - address : UINT64_MAX;
  if (below && past < below->size)
    snprintf(text, size, "%lu bytes into an allocation of %lu bytes, without the right to", past, below->size);
  else if (below && past - below->size <= before)
    snprintf(text, size, "%lu bytes past the end of an allocation of %lu bytes at %#lx", past - below->size,
             below->size, below->start);
  else if (above)
    snprintf(text, size, "%lu bytes before an allocation of %lu bytes at %#lx", before, above->size, above->start);
  else snprintf(text, size, "and there is no allocation");
  pthread_mutex_unlock(&driver_lock);
}

// ---- events ----

enum { MAX_EVENTS = 8192 };
static struct event {
  int is_used, is_set, resets_itself, n_waiting;
  uint32_t type;
  uint64_t age;
  union { struct kfd_hsa_memory_exception_data memory; struct kfd_hsa_hw_exception_data hardware; };
} events[MAX_EVENTS];

static void raise_locked(struct event *one) {
  one->age++;
  if (!one->resets_itself || !one->n_waiting) one->is_set = 1;
  pthread_cond_broadcast(&event_raised);
}

void raise_event(uint32_t id) {
  pthread_mutex_lock(&driver_lock);
  if (id < MAX_EVENTS && events[id].is_used) raise_locked(&events[id]);
  pthread_mutex_unlock(&driver_lock);
}

void raise_memory_fault(uint64_t address, int is_write) {
  pthread_mutex_lock(&driver_lock);
  for (int i = 1; i < MAX_EVENTS; i++) {
    if (!events[i].is_used || events[i].type != KFD_IOC_EVENT_MEMORY) continue;
    events[i].memory = (struct kfd_hsa_memory_exception_data){
        .failure = {.NotPresent = 1, .ReadOnly = is_write}, .va = address & ~4095ull, .gpu_id = GPU_ID};
    raise_locked(&events[i]);
  }
  pthread_mutex_unlock(&driver_lock);
}

void raise_device_lost(void) {
  pthread_mutex_lock(&driver_lock);
  is_lost = 1;
  for (int i = 1; i < MAX_EVENTS; i++) {
    if (!events[i].is_used || events[i].type != KFD_IOC_EVENT_HW_EXCEPTION) continue;
    events[i].hardware = (struct kfd_hsa_hw_exception_data){
        .reset_type = KFD_HW_EXCEPTION_WHOLE_GPU_RESET, .reset_cause = KFD_HW_EXCEPTION_GPU_HANG, .memory_lost = 1,
        .gpu_id = GPU_ID};
    raise_locked(&events[i]);
  }
  pthread_mutex_unlock(&driver_lock);
}

int is_device_lost(void) { return is_lost; }

static int create_event(struct kfd_ioctl_create_event_args *asked) {
  int i = 1;
  while (i < MAX_EVENTS && events[i].is_used) i++;
  if (i == MAX_EVENTS) return ENOSPC;
  events[i] = (struct event){.is_used = 1, .resets_itself = asked->auto_reset, .type = asked->event_type, .age = 1};
  if (!asked->event_page_offset) asked->event_page_offset = 1ull << 40;
  asked->event_id = asked->event_slot_index = asked->event_trigger_data = i;
  return 0;
}

// Called with the lock held. A waiter is woken by what is set, by what was raised since the age that it has seen, and
// by what is raised while it waits.
static int wait_for_events(struct kfd_ioctl_wait_events_args *asked) {
  struct kfd_event_data *data = (void *)(uintptr_t)asked->events_ptr;
  const unsigned n = asked->num_events;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += asked->timeout / 1000, until.tv_nsec += asked->timeout % 1000 * 1000000l;
  if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
  uint64_t seen[n];
  char is_up[n];
  for (unsigned i = 0; i < n; i++) {
    struct event *one = &events[data[i].event_id];
    uint64_t last = one->type == KFD_IOC_EVENT_SIGNAL ? data[i].signal_event_data.last_event_age : 0;
    seen[i] = last ? last : one->age, is_up[i] = one->is_set, one->n_waiting++;
    if (one->is_set && one->resets_itself) one->is_set = 0;
  }
  for (int over = 0;;) {
    unsigned n_up = 0;
    for (unsigned i = 0; i < n; i++) n_up += is_up[i] |= events[data[i].event_id].age != seen[i];
    const int is_complete = asked->wait_for_all ? n_up == n : n_up > 0;
    asked->wait_result = is_complete ? KFD_IOC_WAIT_RESULT_COMPLETE : KFD_IOC_WAIT_RESULT_TIMEOUT;
    if (is_complete || over) break;
    if (asked->timeout == UINT32_MAX) pthread_cond_wait(&event_raised, &driver_lock);
    else over = pthread_cond_timedwait(&event_raised, &driver_lock, &until) == ETIMEDOUT;
  }
  for (unsigned i = 0; i < n; i++) {
    struct event *one = &events[data[i].event_id];
    one->n_waiting--;
    if (one->type == KFD_IOC_EVENT_SIGNAL && data[i].signal_event_data.last_event_age)
      data[i].signal_event_data.last_event_age = one->age;
    if (is_up[i] && one->type == KFD_IOC_EVENT_MEMORY) data[i].memory_exception_data = one->memory;
    if (is_up[i] && one->type == KFD_IOC_EVENT_HW_EXCEPTION) data[i].hw_exception_data = one->hardware;
  }
  return 0;
}

// ---- the driver's calls ----

static int create_queue(struct kfd_ioctl_create_queue_args *asked) {
  int i = 0;
  while (i < MAX_QUEUES && queues[i].used) i++;
  if (i == MAX_QUEUES) return ENOMEM;
  queues[i] = (struct queue){1, 0, asked->ring_base_address, asked->ring_size, asked->write_pointer_address,
                             asked->read_pointer_address, asked->queue_type};
  asked->queue_id = i, asked->doorbell_offset = DOORBELLS + 8 * i;
  start_engine();
  return 0;
}

static int apertures(struct kfd_ioctl_get_process_apertures_new_args *asked) {
  struct kfd_process_device_apertures *to = (void *)(uintptr_t)asked->kfd_process_device_apertures_ptr;
  if (to && asked->num_of_nodes)
    *to = (struct kfd_process_device_apertures){
        .gpu_id = GPU_ID, .lds_base = 0x1000000000000, .lds_limit = 0x10000ffffffff, .scratch_base = 0x2000000000000,
        .scratch_limit = 0x20000ffffffff, .gpuvm_base = 0x10000, .gpuvm_limit = 0x7fffffffffff};
  asked->num_of_nodes = 1;
  return 0;
}

// 0, or what `errno` becomes. By the call's number alone: the size of its arguments, which the request holds too, grew
// between versions. Called with the lock held.
static int call(unsigned number, void *with) {
  switch (number) {
  case _IOC_NR(AMDKFD_IOC_GET_VERSION): {
    struct kfd_ioctl_get_version_args *asked = with;
    asked->major_version = 1, asked->minor_version = 16;
    return 0;
  }
  case _IOC_NR(AMDKFD_IOC_CREATE_QUEUE): return is_lost ? EIO : create_queue(with);
  case _IOC_NR(AMDKFD_IOC_DESTROY_QUEUE):
    queues[((struct kfd_ioctl_destroy_queue_args *)with)->queue_id].used = 0;
    return 0;
  case _IOC_NR(AMDKFD_IOC_GET_CLOCK_COUNTERS): {
    struct kfd_ioctl_get_clock_counters_args *asked = with;
    asked->cpu_clock_counter = asked->system_clock_counter = nanoseconds();
    asked->gpu_clock_counter = nanoseconds() / 10;
    asked->system_clock_freq = 1000000000;
    return 0;
  }
  case _IOC_NR(AMDKFD_IOC_CREATE_EVENT): return create_event(with);
  case _IOC_NR(AMDKFD_IOC_DESTROY_EVENT):
    events[((struct kfd_ioctl_destroy_event_args *)with)->event_id].is_used = 0;
    return 0;
  case _IOC_NR(AMDKFD_IOC_SET_EVENT):
    raise_locked(&events[((struct kfd_ioctl_set_event_args *)with)->event_id]);
    return 0;
  case _IOC_NR(AMDKFD_IOC_RESET_EVENT):
    events[((struct kfd_ioctl_reset_event_args *)with)->event_id].is_set = 0;
    return 0;
  case _IOC_NR(AMDKFD_IOC_WAIT_EVENTS): return wait_for_events(with);
  case _IOC_NR(AMDKFD_IOC_GET_TILE_CONFIG): {
    struct kfd_ioctl_get_tile_config_args *asked = with;
    asked->gb_addr_config = 0x10000444, asked->num_tile_configs = asked->num_macro_tile_configs = 0;
    return 0;
  }
  case _IOC_NR(AMDKFD_IOC_GET_PROCESS_APERTURES_NEW): return apertures(with);
  case _IOC_NR(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU): return is_lost ? EIO : allocate(with);
  case _IOC_NR(AMDKFD_IOC_FREE_MEMORY_OF_GPU):
    return release(((struct kfd_ioctl_free_memory_of_gpu_args *)with)->handle);
  case _IOC_NR(AMDKFD_IOC_MAP_MEMORY_TO_GPU): {
    struct kfd_ioctl_map_memory_to_gpu_args *asked = with;
    asked->n_success = asked->n_devices;
    return map_to_gpu(asked->handle);
  }
  case _IOC_NR(AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU): {
    struct kfd_ioctl_unmap_memory_from_gpu_args *asked = with;
    asked->n_success = asked->n_devices;
    return 0;
  }
  case _IOC_NR(AMDKFD_IOC_SET_XNACK_MODE): {
    struct kfd_ioctl_set_xnack_mode_args *asked = with;
    if (asked->xnack_enabled > 0) return EPERM;
    asked->xnack_enabled = 0;
    return 0;
  }
  case _IOC_NR(AMDKFD_IOC_AVAILABLE_MEMORY):
    ((struct kfd_ioctl_get_available_memory_args *)with)->available = total_bytes() - used_bytes;
    return 0;
  case _IOC_NR(AMDKFD_IOC_SET_MEMORY_POLICY):
  case _IOC_NR(AMDKFD_IOC_UPDATE_QUEUE):
  case _IOC_NR(AMDKFD_IOC_SET_SCRATCH_BACKING_VA):
  case _IOC_NR(AMDKFD_IOC_SET_TRAP_HANDLER):
  case _IOC_NR(AMDKFD_IOC_ACQUIRE_VM):
  case _IOC_NR(AMDKFD_IOC_SET_CU_MASK):
  case _IOC_NR(AMDKFD_IOC_ALLOC_QUEUE_GWS):
  case _IOC_NR(AMDKFD_IOC_RUNTIME_ENABLE):
  case _IOC_NR(AMDKFD_IOC_SVM): return 0;
  default: say(1, "the driver's call %#x is refused", number); return EINVAL;
  }
}

int ioctl(int fd, unsigned long request, ...) {
  static int (*next)(int, unsigned long, ...);
  if (!next) next = dlsym(RTLD_NEXT, "ioctl");
  va_list arguments;
  va_start(arguments, request);
  void *with = va_arg(arguments, void *);
  va_end(arguments);
  if ((_IOC_TYPE(request) != 'K' && _IOC_TYPE(request) != 'd') || !is_device(fd)) return next(fd, request, with);
  if (_IOC_NR(request) != _IOC_NR(AMDKFD_IOC_WAIT_EVENTS)) say(3, "call %#x", (unsigned)_IOC_NR(request));
  int error = EINVAL;
  if (_IOC_TYPE(request) == 'K') {
    pthread_mutex_lock(&driver_lock);
    error = call(_IOC_NR(request), with);
    pthread_mutex_unlock(&driver_lock);
  }
  if (!error) return 0;
  errno = error;
  return -1;
}
