/* SLURM's hooks on the controller: writes one event into the spool, which plugins/reporter.py delivers.
 *
 * One program, told apart by the name that it is called by (or by its first argument):
 *   supervisor-started   PrologSlurmctld: a job has got its nodes
 *   supervisor-ended     JobCompType=jobcomp/script: a job has ended
 *
 * Settings: spool.conf beside the program itself. What goes wrong is said on standard error and in syslog, as a line of JSON (on a
 * terminal as text). A start that cannot
 * be written must not keep the job from starting (SLURM would requeue it), so the status is 0; an end then gives 1, which
 * slurmctld logs and nothing more.
 */
#define _GNU_SOURCE
#include "spool.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

enum { SYSLOG_S = 3 }; /* a syslog that hangs delays no job either */

static int last_status;

static void give_up(int number)
{
    (void)number;
    _exit(last_status);
}

/* The job that the lines are about, once it is known */
static const char *job_id = "";
static unsigned long slurm_id;

/* A text as the inside of a JSON string; what is not printable ASCII, as strangers may write it, becomes \u00XX */
static void escape(char *to, size_t room, const char *text)
{
    for (; *text != '\0' && room > 7; text++) {
        unsigned char byte = (unsigned char)*text;
        int length = snprintf(to, room, byte < ' ' || byte > '~' ? "\\u%04x" : byte == '"' || byte == '\\' ? "\\%c" : "%c", byte);
        to += length;
        room -= (size_t)length;
    }
    *to = '\0';
}

/* One line about what went wrong. `event` is its fixed name (docs/reference/log-events.md). */
__attribute__((format(printf, 2, 3))) static void complain(const char *event, const char *format, ...)
{
    static char text[SPOOL_WHY + 2 * PATH_MAX], escaped[6 * sizeof text], line[sizeof escaped + 300];
    char moment[32] = "", job[150] = "";
    va_list words;
    va_start(words, format);
    vsnprintf(text, sizeof text, format, words);
    va_end(words);
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc) != NULL)
        strftime(moment, sizeof moment, "%Y-%m-%dT%H:%M:%SZ", &utc);
    if (slurm_id != 0)
        snprintf(job, sizeof job, "\"job_id\": \"%s\", \"slurm_id\": %lu, ", job_id, slurm_id);
    escape(escaped, sizeof escaped, text);
    snprintf(line, sizeof line,
        "{\"event\": \"%s\", %s\"error\": \"%s\", \"level\": \"error\", \"logger\": \"supervisor-hook\", \"timestamp\": \"%s\"}",
        event, job, escaped, moment);
    bool readable = isatty(STDERR_FILENO);
    const char *shown = readable ? text : line;
    struct iovec parts[] = {{"supervisor-hook: ", 17}, {(char *)shown, strlen(shown)}, {"\n", 1}};
    (void)!writev(STDERR_FILENO, readable ? parts : parts + 1, readable ? 3 : 2);
    alarm(SYSLOG_S);
    syslog(LOG_DAEMON | LOG_ERR, "%s", line);
    alarm(0);
}

/* The first thing that is wrong with the settings, or "". It is told when the event is safe: syslog may hang. */
static char mistake[2 * PATH_MAX + 300];

static void read_settings(struct spool *spool)
{
    char file[PATH_MAX], line[PATH_MAX + 100];
    ssize_t length = readlink("/proc/self/exe", file, sizeof file - sizeof "/spool.conf");
    if (length < 0)
        return;
    file[length] = '\0';
    strcpy(strrchr(file, '/'), "/spool.conf");
    FILE *settings = fopen(file, "re");
    if (settings == NULL) {
        if (errno != ENOENT)
            snprintf(mistake, sizeof mistake, "%s: %s", file, strerror(errno));
        return;
    }
    while (fgets(line, sizeof line, settings) != NULL) {
        line[strcspn(line, "\r\n")] = '\0';
        if (line[0] != '\0' && line[0] != '#' && !spool_set(spool, line) && mistake[0] == '\0')
            snprintf(mistake, sizeof mistake,
                "%s: found \"%s\"; expected spool=/folder, max_events=number or timeout_ms=number", file, line);
    }
    fclose(settings);
}

/* A variable of SLURM's that is a word or a number, or "" */
static const char *plain(const char *name)
{
    const char *value = getenv(name);
    const char *allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_:+-";
    if (value == NULL || strlen(value) > 40 || strspn(value, allowed) != strlen(value))
        return "";
    return value;
}

/* The grid's id of a job, or NULL: by its log, `<job id>.log`, as the supervisor submits it, or else by its name. A job's owner may
 * change its name at any time; its log's, once it runs, never. */
static const char *whose(const char *log, const char *name)
{
    static char stem[SPOOL_JOB_ID + 1];
    const char *path = getenv(log), *slash = path == NULL ? NULL : strrchr(path, '/');
    const char *file = slash == NULL ? path : slash + 1;
    if (file != NULL && strlen(file) == SPOOL_JOB_ID + strlen(".log") && strcmp(file + SPOOL_JOB_ID, ".log") == 0) {
        memcpy(stem, file, SPOOL_JOB_ID);
        if (spool_is_job_id(stem))
            return stem;
    }
    return spool_is_job_id(getenv(name)) ? getenv(name) : NULL;
}

static bool read_job(struct spool_event *event, const char *log, const char *name, const char *id)
{
    const char *owner = whose(log, name), *digits = plain(id);
    if (owner == NULL)
        return false; /* another user's job */
    char *end;
    unsigned long number = strtoul(digits, &end, 10);
    if (number == 0 || *end != '\0') {
        complain("slurm_id_unusable", "%s: found \"%s\"; expected a SLURM job id", id, digits);
        return false;
    }
    job_id = owner;
    slurm_id = number;
    spool_started(event, job_id, number);
    return true;
}

static bool read_start(struct spool_event *event)
{
    const char *comment = getenv("SLURM_JOB_COMMENT");
    if (comment == NULL || strncmp(comment, "supervisor", strlen("supervisor")) != 0)
        return false; /* none of ours, or not for the chain */
    return read_job(event, "SLURM_JOB_STDOUT", "SLURM_JOB_NAME", "SLURM_JOB_ID");
}

static bool read_end(struct spool_event *event)
{
    if (!read_job(event, "STDOUT", "JOBNAME", "JOBID"))
        return false;
    event->kind = "end";
    snprintf(event->text, sizeof event->text,
        "event=ended\njob_id=%s\nslurm_id=%lu\nstate=%s\nexit=%s\nstart_s=%s\nend_s=%s\ncomplete=1\n", event->job_id,
        event->slurm_id, plain("JOBSTATE"), plain("EXITCODE"), plain("START"), plain("END"));
    return true;
}

struct writing {
    const struct spool *spool;
    const struct spool_event *event;
};

static bool write_it(void *context, char *why)
{
    const struct writing *writing = context;
    return spool_write(writing->spool, writing->event, why);
}

static bool is_called(int argc, char **argv, const char *word)
{
    const char *called = argc > 1 ? argv[1] : argv[0];
    size_t length = strlen(called), expected = strlen(word);
    return length >= expected && strcmp(called + length - expected, word) == 0;
}

int main(int argc, char **argv)
{
    struct spool spool;
    struct spool_event event;
    char why[SPOOL_WHY];
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    signal(SIGALRM, give_up);
    sigprocmask(SIG_UNBLOCK, &alarm_only, NULL);
    bool ended = is_called(argc, argv, "ended");
    last_status = ended ? 1 : 0;
    if (!ended && !is_called(argc, argv, "started")) {
        complain("hook_misnamed", "called as \"%s\"; expected supervisor-started or supervisor-ended", argv[0]);
        return getenv("SLURM_JOB_ID") == NULL ? 2 : 0;
    }
    if (!(ended ? read_end(&event) : read_start(&event)))
        return 0;
    spool_defaults(&spool);
    read_settings(&spool);
    struct writing writing = {&spool, &event};
    if (spool_in_time(&spool, write_it, &writing, true, why))
        last_status = 0;
    else
        complain("event_not_spooled", "the %s of job %s (SLURM's %lu) is not in %s: %s", event.kind, event.job_id, event.slurm_id, spool.folder, why);
    if (mistake[0] != '\0')
        complain("spool_conf_wrong", "%s", mistake);
    return last_status;
}
