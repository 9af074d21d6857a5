/* Count and delay operations on files below a folder, for files.py: gcc -shared -fPIC -o files.so files.c -ldl
 *
 * FLEET_FILES_UNDER: the folder. FLEET_FILES_LOG: a file that receives a line for each operation, if set.
 * FLEET_FILES_DELAY_US: delay of each operation, in microseconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *under;
static int log_to = -1;
static useconds_t delay;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FLEET_FILES_LOG"), *us = getenv("FLEET_FILES_DELAY_US");
    int (*open_)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    under = getenv("FLEET_FILES_UNDER");
    if (path) log_to = open_(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (us) delay = atoi(us);
}

static int is_inside(int folder, const char *path) {
    char name[64], where[4096];
    if (!under) return 0;
    if (path && *path == '/') return !strncmp(path, under, strlen(under));
    if (folder < 0) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", folder);
    ssize_t size = readlink(name, where, sizeof where - 1);
    if (size < 0) return 0;
    where[size] = 0;
    return !strncmp(where, under, strlen(under));
}

static void met(const char *what, int folder, const char *path) {
    char line[4200];
    if (!is_inside(folder, path)) return;
    if (log_to >= 0) {
        int size = snprintf(line, sizeof line, "%s %s\n", what, path ? path : "");
        if (size > 0 && write(log_to, line, size) < 0) return;
    }
    if (delay) usleep(delay);
}

#define NEXT(name) static __typeof__(&name) next; if (!next) next = dlsym(RTLD_NEXT, #name)
#define OPEN(name, head, pass, at, path)                                        \
    int name head {                                                            \
        NEXT(name); va_list more; va_start(more, flags);                       \
        int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, int) : 0;    \
        va_end(more); met("open", at, path); return next pass; }
OPEN(open, (const char *path, int flags, ...), (path, flags, mode), -1, path)
OPEN(open64, (const char *path, int flags, ...), (path, flags, mode), -1, path)
OPEN(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode), at, path)
OPEN(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode), at, path)

#define WRAP(kind, result, name, head, pass, at, path) \
    result name head { NEXT(name); met(kind, at, path); return next pass; }
WRAP("open", FILE *, fopen, (const char *path, const char *mode), (path, mode), -1, path)
WRAP("open", FILE *, fopen64, (const char *path, const char *mode), (path, mode), -1, path)
WRAP("stat", int, stat, (const char *path, struct stat *to), (path, to), -1, path)
WRAP("stat", int, stat64, (const char *path, struct stat64 *to), (path, to), -1, path)
WRAP("stat", int, lstat, (const char *path, struct stat *to), (path, to), -1, path)
WRAP("stat", int, lstat64, (const char *path, struct stat64 *to), (path, to), -1, path)
WRAP("stat", int, fstat, (int file, struct stat *to), (file, to), file, NULL)
WRAP("stat", int, fstat64, (int file, struct stat64 *to), (file, to), file, NULL)
WRAP("stat", int, fstatat, (int at, const char *path, struct stat *to, int f), (at, path, to, f), at, path)
WRAP("stat", int, fstatat64, (int at, const char *path, struct stat64 *to, int f), (at, path, to, f), at, path)
WRAP("stat", int, access, (const char *path, int mode), (path, mode), -1, path)
WRAP("rename", int, rename, (const char *from, const char *to), (from, to), -1, from)
WRAP("rename", int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), a, from)
WRAP("fsync", int, fsync, (int file), (file), file, NULL)
WRAP("fsync", int, fdatasync, (int file), (file), file, NULL)
WRAP("mkdir", int, mkdir, (const char *path, mode_t mode), (path, mode), -1, path)
WRAP("unlink", int, unlink, (const char *path), (path), -1, path)
WRAP("unlink", int, unlinkat, (int at, const char *path, int flags), (at, path, flags), at, path)
WRAP("unlink", int, rmdir, (const char *path), (path), -1, path)
WRAP("link", int, link, (const char *from, const char *to), (from, to), -1, from)
WRAP("link", int, linkat, (int a, const char *from, int b, const char *to, int f), (a, from, b, to, f), a, from)
