/* A wall clock that steps while a process runs: for LD_PRELOAD. The file named by LYING_CLOCK holds the lie, an int64 of
 * nanoseconds, which is mapped into memory and may be changed at any time. Other clocks tell the truth, as they do when
 * an operator sets the clock. (libfaketime makes Python's clock_nanosleep fail while its own offset changes.)
 *
 * Deadlines of waits are given by the same clock: those by the wall clock, seconds since 1970, are put right again;
 * those by the monotonic clock, seconds since the start, are left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define EPOCH_SECONDS_MIN 1000000000LL

static volatile const int64_t *lie;
static int (*real_gettime)(clockid_t, struct timespec *);
static int (*real_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_semwait)(sem_t *, const struct timespec *);

__attribute__((constructor)) static void open_lie(void) {
  const char *path = getenv("LYING_CLOCK");
  real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  real_timedwait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (!real_timedwait) real_timedwait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  real_semwait = dlsym(RTLD_NEXT, "sem_timedwait");
  int file = path ? open(path, O_RDONLY) : -1;
  if (file >= 0) {
    void *found = mmap(0, sizeof *lie, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) lie = found;
    close(file);
  }
}

static struct timespec moved(struct timespec at, int64_t by) {
  int64_t total = at.tv_sec * SECOND + at.tv_nsec + by;
  return (struct timespec){.tv_sec = total / SECOND, .tv_nsec = total % SECOND};
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  int status = real_gettime(clock, at);
  if (status == 0 && lie && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) *at = moved(*at, *lie);
  return status;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}

static struct timespec true_deadline(const struct timespec *deadline) {
  return lie && deadline->tv_sec > EPOCH_SECONDS_MIN ? moved(*deadline, -*lie) : *deadline;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *deadline) {
  struct timespec at = true_deadline(deadline);
  return real_timedwait(condition, mutex, &at);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *deadline) {
  struct timespec at = true_deadline(deadline);
  return real_semwait(semaphore, &at);
}
