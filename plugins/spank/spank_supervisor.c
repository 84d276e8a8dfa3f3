/* A SPANK plugin for sites that want the node's view: tells the spool of the node that a job has started there.
 *
 * plugstack.conf on the nodes: optional /folder/spank_supervisor.so spool=/var/spool/supervisor
 * A reporter on the node delivers the spool. The job's name, which only slurmctld knows, is asked for in a process of its own:
 * slurmd is not kept waiting, and the job runs also if something fails here.
 */
#define _GNU_SOURCE
#include "../hook/spool.h"

#include <errno.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SPANK_PLUGIN(supervisor, 1);

struct starting {
    const struct spool *spool;
    uint32_t slurm_id;
};

static bool write_start(void *context, char *why)
{
    const struct starting *starting = context;
    struct spool_event event;
    job_info_msg_t *answer = NULL;
    slurm_init(NULL); /* without it, SLURM 24.11 answers nothing; 22.05 ignores it */
    if (slurm_load_job(&answer, starting->slurm_id, SHOW_ALL) != SLURM_SUCCESS || answer->record_count < 1) {
        snprintf(why, SPOOL_WHY, "slurmctld does not tell the job's name: %s", slurm_strerror(errno));
        return false;
    }
    const char *name = answer->job_array[0].name;
    if (!spool_is_job_id(name))
        return true; /* another user's job */
    spool_started(&event, name, starting->slurm_id);
    return spool_write(starting->spool, &event, why);
}

int slurm_spank_job_prolog(spank_t spank, int count, char **settings)
{
    struct spool spool;
    struct starting starting = {.spool = &spool};
    char why[SPOOL_WHY];
    const char *comment = getenv("SLURM_JOB_COMMENT");
    if (comment == NULL || strncmp(comment, "supervisor", strlen("supervisor")) != 0)
        return ESPANK_SUCCESS; /* none of ours, or not for the chain */
    spool_defaults(&spool);
    for (int number = 0; number < count; ++number)
        if (!spool_set(&spool, settings[number]))
            slurm_error("supervisor: plugstack.conf: found \"%s\"; expected spool=/folder, max_events= or timeout_ms=",
                settings[number]);
    if (spank_get_item(spank, S_JOB_ID, &starting.slurm_id) != ESPANK_SUCCESS)
        slurm_error("supervisor: SLURM does not tell the job's id");
    else if (!spool_in_time(&spool, write_start, &starting, false, why))
        slurm_error("supervisor: the start of SLURM's job %u is not in %s: %s", starting.slurm_id, spool.folder, why);
    return ESPANK_SUCCESS;
}
