#define _GNU_SOURCE
#include "spool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SPOOL_FOLDER
#define SPOOL_FOLDER "/var/spool/supervisor"
#endif

enum {
    BACKGROUND_S = 60,          /* a writer that hangs for longer is ended, where the kernel can end it */
    RESERVE_BYTES = 64 * 1024,  /* of `lost.log`, taken from the disk while it has room */
    LOST_BYTES = 1024 * 1024,   /* `lost.log` grows no further */
    SEQUENCE_DIGITS = 20,
};

void spool_defaults(struct spool *spool)
{
    snprintf(spool->folder, sizeof spool->folder, "%s", SPOOL_FOLDER);
    spool->max_events = 50000;
    spool->timeout_ms = 2000;
}

static bool set_number(unsigned long *number, const char *text)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value == 0 || value > INT_MAX)
        return false;
    *number = value;
    return true;
}

bool spool_set(struct spool *spool, const char *setting)
{
    if (strncmp(setting, "spool=/", 7) == 0 && strlen(setting + 6) < sizeof spool->folder) {
        strcpy(spool->folder, setting + 6);
        return true;
    }
    if (strncmp(setting, "max_events=", 11) == 0)
        return set_number(&spool->max_events, setting + 11);
    if (strncmp(setting, "timeout_ms=", 11) == 0)
        return set_number(&spool->timeout_ms, setting + 11);
    return false;
}

bool spool_is_job_id(const char *name)
{
    return name != NULL && strlen(name) == SPOOL_JOB_ID && strncmp(name, "0x", 2) == 0
        && strspn(name + 2, "0123456789abcdef") == SPOOL_JOB_ID - 2;
}

void spool_started(struct spool_event *event, const char *job_id, unsigned long slurm_id)
{
    event->kind = "start";
    event->slurm_id = slurm_id;
    snprintf(event->job_id, sizeof event->job_id, "%s", job_id);
    snprintf(event->text, sizeof event->text, "event=started\njob_id=%s\nslurm_id=%lu\ncomplete=1\n", job_id, slurm_id);
}

static bool failed(char *why, const char *what)
{
    snprintf(why, SPOOL_WHY, "%s: %s", what, strerror(errno));
    return false;
}

static bool write_all(int file, const char *text)
{
    for (size_t left = strlen(text); left > 0;) {
        ssize_t written = write(file, text, left);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        text += written;
        left -= (size_t)written;
    }
    return true;
}

/* How many events wait, drafts included, and the highest sequence number among them. */
static bool survey(int folder, unsigned long *waiting, unsigned long long *highest)
{
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = again < 0 ? NULL : fdopendir(again);
    if (names == NULL)
        return false;
    *waiting = 0;
    *highest = 0;
    for (struct dirent *entry; (entry = readdir(names)) != NULL;) {
        const char *name = entry->d_name + (entry->d_name[0] == '.');
        size_t digits = strspn(name, "0123456789");
        if (digits == 0 || digits >= SEQUENCE_DIGITS || name[digits] != '-')
            continue;
        unsigned long long sequence = strtoull(name, NULL, 10);
        *highest = sequence > *highest ? sequence : *highest;
        ++*waiting;
    }
    closedir(names);
    return true;
}

/* A number that is higher than that of every event that waits, even if the clock was set back. */
static unsigned long long next_sequence(unsigned long long highest)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long clock_ns = (unsigned long long)now.tv_sec * 1000000000ULL + (unsigned long long)now.tv_nsec;
    return clock_ns > highest ? clock_ns : highest + 1;
}

static bool write_draft(int folder, const char *draft, const char *text, char *why)
{
    int file = openat(folder, draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0)
        return failed(why, "create the event's file");
    bool written = write_all(file, text);
    if (!written)
        failed(why, "write the event");
    else if (fsync(file) != 0)
        written = failed(why, "bring the event to the disk");
    close(file);
    return written;
}

static bool write_event(int folder, const struct spool *spool, const struct spool_event *event, char *why)
{
    unsigned long waiting;
    unsigned long long highest;
    if (!survey(folder, &waiting, &highest))
        return failed(why, "list the spool");
    if (waiting >= spool->max_events) {
        snprintf(why, SPOOL_WHY, "the spool is full: %lu events wait, max_events is %lu", waiting, spool->max_events);
        return false;
    }
    char name[100], draft[140];
    snprintf(name, sizeof name, "%019llu-%lu-%s", next_sequence(highest), event->slurm_id, event->kind);
    snprintf(draft, sizeof draft, ".%s.%ld", name, (long)getpid());
    bool done = write_draft(folder, draft, event->text, why);
    if (done && renameat(folder, draft, folder, name) != 0)
        done = failed(why, "rename the event's file");
    if (!done)
        unlinkat(folder, draft, 0);
    else if (fsync(folder) != 0)
        done = failed(why, "bring the event's name to the disk");
    return done;
}

static int open_lost(int folder)
{
    return openat(folder, "lost.log", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

/* Room for `lost.log` is taken while there is some, so that a full disk leaves a trace. Without a reserve it is tried all the same. */
static void keep_reserve(int folder)
{
    struct stat state;
    int lost = open_lost(folder);
    if (lost < 0)
        return;
    if (fstat(lost, &state) == 0 && state.st_blocks * 512 < RESERVE_BYTES)
        (void)!fallocate(lost, FALLOC_FL_KEEP_SIZE, 0, RESERVE_BYTES);
    close(lost);
}

static bool note_lost(int folder, const struct spool_event *event, const char *why)
{
    struct stat state;
    char line[SPOOL_WHY + 200];
    int lost = open_lost(folder);
    if (lost < 0)
        return false;
    snprintf(line, sizeof line, "%lld %s %s %lu %s\n", (long long)time(NULL), event->kind, event->job_id, event->slurm_id, why);
    bool noted = flock(lost, LOCK_EX) == 0 && fstat(lost, &state) == 0 && state.st_size < LOST_BYTES
        && write_all(lost, line) && fsync(lost) == 0;
    close(lost);
    return noted;
}

bool spool_write(const struct spool *spool, const struct spool_event *event, char *why)
{
    int folder = open(spool->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return failed(why, "open the spool");
    keep_reserve(folder);
    bool written = write_event(folder, spool, event, why);
    if (!written && !note_lost(folder, event, why))
        strncat(why, "; and `lost.log` does not take it either", SPOOL_WHY - strlen(why) - 1);
    close(folder);
    return written;
}

struct answer {
    bool done;
    char why[SPOOL_WHY];
};

static void close_all_from(unsigned int first)
{
#ifdef SYS_close_range
    if (syscall(SYS_close_range, first, ~0U, 0U) == 0)
        return;
#endif
    for (unsigned int file = first; file < 1024; ++file)
        close((int)file);
}

/* The writer: a process that waits for its parent does not wait for it. */
static void detach(int *answer, bool alone)
{
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    setsid();
    signal(SIGALRM, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    sigprocmask(SIG_UNBLOCK, &alarm_only, NULL);
    alarm(BACKGROUND_S);
    int nothing = open("/dev/null", O_RDWR);
    for (int file = 0; file < 3 && nothing >= 0; ++file)
        dup2(nothing, file);
    if (alone) {
        dup2(*answer, 3);
        *answer = 3;
        close_all_from(4);
    }
}

static bool await(int answers, unsigned long timeout_ms, char *why)
{
    struct answer answer;
    struct pollfd waits = {.fd = answers, .events = POLLIN};
    int ready;
    while ((ready = poll(&waits, 1, (int)timeout_ms)) < 0 && errno == EINTR)
        ;
    if (ready == 0) {
        snprintf(why, SPOOL_WHY, "not on disk after %lu ms; the writing goes on for %d s", timeout_ms, BACKGROUND_S);
        return false;
    }
    if (read(answers, &answer, sizeof answer) != (ssize_t)sizeof answer) {
        snprintf(why, SPOOL_WHY, "the writing process was ended");
        return false;
    }
    memcpy(why, answer.why, sizeof answer.why);
    return answer.done;
}

bool spool_in_time(const struct spool *spool, bool (*work)(void *context, char *why), void *context, bool alone, char *why)
{
    int pipes[2];
    if (pipe2(pipes, O_CLOEXEC) != 0)
        return failed(why, "pipe");
    pid_t child = fork();
    if (child == 0) {
        struct answer answer = {0};
        detach(&pipes[1], alone);
        answer.done = work(context, answer.why);
        (void)!write(pipes[1], &answer, sizeof answer);
        _exit(0);
    }
    close(pipes[1]);
    bool done = child < 0 ? failed(why, "fork") : await(pipes[0], spool->timeout_ms, why);
    close(pipes[0]);
    return done;
}
