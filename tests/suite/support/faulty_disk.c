/* A disk that is full, for the files below $FAULTY_DISK_OF: loaded in front of libc.
 *
 * While $FAULTY_DISK/full is there, no file grows: ENOSPC, as a full file system says it. What a file has room for
 * already can be written. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int is(const char *state) {
    const char *control = getenv("FAULTY_DISK");
    char path[4096];
    if (!control || snprintf(path, sizeof path, "%s/%s", control, state) >= (int)sizeof path) return 0;
    int before = errno, found = access(path, F_OK) == 0;
    errno = before;
    return found;
}

static int is_of_the_disk(int fd) {
    const char *prefix = getenv("FAULTY_DISK_OF");
    char link[64], path[4096];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    errno = before;
    return prefix && length > 0 && (size_t)length >= strlen(prefix) && !strncmp(path, prefix, strlen(prefix));
}

static int no_room(int fd, off_t end) {
    struct stat now;
    if (!is("full") || !is_of_the_disk(fd) || fstat(fd, &now) || !S_ISREG(now.st_mode) || end <= now.st_size) return 0;
    errno = ENOSPC;
    return 1;
}

static off_t length_of(const struct iovec *parts, int count) {
    off_t length = 0;
    for (int at = 0; at < count; at++) length += parts[at].iov_len;
    return length;
}

static off_t place_of(int fd) {
    struct stat now;
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_APPEND) && !fstat(fd, &now)) return now.st_size;
    int before = errno;
    off_t place = lseek(fd, 0, SEEK_CUR);
    errno = before;
    return place < 0 ? 0 : place;
}

#define REAL(result, name, ...) static result (*real)(__VA_ARGS__); if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name)

#define PWRITE(name) ssize_t name(int fd, const void *bytes, size_t count, off_t at) { \
    REAL(ssize_t, name, int, const void *, size_t, off_t); \
    return no_room(fd, at + (off_t)count) ? -1 : real(fd, bytes, count, at); }
PWRITE(pwrite)
PWRITE(pwrite64)

#define PWRITEV(name) ssize_t name(int fd, const struct iovec *parts, int count, off_t at) { \
    REAL(ssize_t, name, int, const struct iovec *, int, off_t); \
    return no_room(fd, at + length_of(parts, count)) ? -1 : real(fd, parts, count, at); }
PWRITEV(pwritev)
PWRITEV(pwritev64)

ssize_t write(int fd, const void *bytes, size_t count) {
    REAL(ssize_t, write, int, const void *, size_t);
    return is("full") && no_room(fd, place_of(fd) + (off_t)count) ? -1 : real(fd, bytes, count);
}

#define TRUNCATE(name) int name(int fd, off_t length) { \
    REAL(int, name, int, off_t); \
    return no_room(fd, length) ? -1 : real(fd, length); }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define POSIX_FALLOCATE(name) int name(int fd, off_t at, off_t length) { \
    REAL(int, name, int, off_t, off_t); \
    return no_room(fd, at + length) ? ENOSPC : real(fd, at, length); }
POSIX_FALLOCATE(posix_fallocate)
POSIX_FALLOCATE(posix_fallocate64)

#define FALLOCATE(name) int name(int fd, int mode, off_t at, off_t length) { \
    REAL(int, name, int, int, off_t, off_t); \
    return no_room(fd, at + length) ? -1 : real(fd, mode, at, length); }
FALLOCATE(fallocate)
FALLOCATE(fallocate64)
