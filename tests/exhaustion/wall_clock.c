/* A wall clock that a test sets, for one process: loaded with LD_PRELOAD it answers for the C
 * library's clock_gettime(2), through which the standard library, rustls and all else read the time.
 * What is added to CLOCK_REALTIME stands in a file, in nanoseconds, which is mapped before the
 * program begins: its sandbox may open no file later on. The clocks that only go forward are the
 * kernel's own, as they are when somebody sets the clock of a machine. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_ns;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("TWINRING_TEST_WALL_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) {
        return;
    }
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) {
        offset_ns = mapped;
    }
    close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int outcome = (int)syscall(SYS_clock_gettime, clock, time);
    if (outcome == 0 && offset_ns && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t shifted = time->tv_sec * 1000000000LL + time->tv_nsec + *offset_ns;
        time->tv_sec = shifted / 1000000000LL;
        time->tv_nsec = shifted % 1000000000LL;
    }
    return outcome;
}
