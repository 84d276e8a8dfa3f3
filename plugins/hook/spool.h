/* The spool's writing side: how a program that SLURM runs hands an event to the reporter. Needs libc and nothing else. */
#ifndef SUPERVISOR_SPOOL_H
#define SUPERVISOR_SPOOL_H

#include <limits.h>
#include <stdbool.h>

enum { SPOOL_WHY = 512, SPOOL_TEXT = 512, SPOOL_JOB_ID = 66 };

/* Where and how much. One event is one file of less than a block. */
struct spool {
    char folder[PATH_MAX];
    unsigned long max_events; /* that wait; what comes then is noted in `lost.log` and nowhere else */
    unsigned long timeout_ms; /* how long SLURM is kept waiting at most */
};

struct spool_event {
    const char *kind; /* "start" or "end" */
    unsigned long slurm_id;
    char job_id[SPOOL_JOB_ID + 1];
    char text[SPOOL_TEXT];
};

void spool_defaults(struct spool *spool);

/* One setting, `key=value`. False when it is none or makes no sense: the setting stays as it was. */
bool spool_set(struct spool *spool, const char *setting);

/* Whether a job's name is a job id of the grid: 0x and 64 lowercase hex digits. The name is a customer's text. */
bool spool_is_job_id(const char *name);

/* The event that a job has started. */
void spool_started(struct spool_event *event, const char *job_id, unsigned long slurm_id);

/* Writes an event so that it is on disk whole, or not in the spool at all. On failure, false and a reason of SPOOL_WHY bytes
 * at most, and a line in the spool's `lost.log` as far as the disk takes it. */
bool spool_write(const struct spool *spool, const struct spool_event *event, char *why);

/* Does the work in a process of its own and waits for it `timeout_ms` at most; work that takes longer goes on by itself.
 * `alone` closes all files that the caller had open, so that no other process waits for their end. */
bool spool_in_time(const struct spool *spool, bool (*work)(void *context, char *why), void *context, bool alone, char *why);

#endif
