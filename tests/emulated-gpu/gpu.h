// An AMD GPU that is not there: what the three parts of it know of each other. driver.c answers for the kernel driver,
// queue.c reads the packets that the runtime writes, wave.c executes a dispatch's machine code.
#pragma once
#include <pthread.h>
#include <stdint.h>

void say(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Ends the process: the emulation, and not what runs on it, cannot go on. Exit code 70.
void cannot(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
const char *setting(const char *name, const char *otherwise);

// driver.c
uint64_t nanoseconds(void);
void raise_event(uint32_t id);
// Tells the runtime, as the driver would, that a kernel touched memory that it may not touch.
void raise_memory_fault(uint64_t address, int is_write);
// Tells the runtime that the GPU hangs or has gone.
void raise_device_lost(void);
int is_device_lost(void);
void describe_address(uint64_t address, char *text, int size);

// queue.c
struct queue { int used, stopped; uint64_t ring, size, write_pointer, read_pointer; uint32_t type; };
enum { MAX_QUEUES = 64 };
extern struct queue queues[MAX_QUEUES];
extern pthread_mutex_t driver_lock;
void start_engine(void);

// wave.c
enum outcome { DONE, FAULTED };
// Executes all workgroups of an AQL dispatch packet.
enum outcome dispatch(const uint8_t *packet, uint64_t queue_at);
