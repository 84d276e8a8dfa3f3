#!/bin/sh
# The completion hook (SLURM's stock jobcomp/script): slurmctld runs it once a job, when the job has ended, and waits for it.
# It only writes an event into the spool: one file, complete or not there at all. plugins/reporter.py delivers it.
# Environment: jobcomp/script of SLURM 22.05. JOBNAME is the customer's text: only a job id of the grid passes.
case $JOBNAME in
0x*[!0-9a-f]*) exit 0 ;;
0x????????????????????????????????????????????????????????????????) ;;
*) exit 0 ;;
esac
spool='@SPOOL@'
now=$(date +%s%N) || exit 1
draft="$spool/.$now-$JOBID-end"
printf 'event=ended\njob_id=%s\nslurm_id=%s\nstate=%s\nexit=%s\nstart_s=%s\nend_s=%s\n' \
    "$JOBNAME" "$JOBID" "$JOBSTATE" "$EXITCODE" "$START" "$END" >"$draft" || exit 1
sync "$draft" && mv "$draft" "$spool/$now-$JOBID-end"
