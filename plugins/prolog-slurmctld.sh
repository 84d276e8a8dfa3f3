#!/bin/sh
# The start hook (PrologSlurmctld): slurmctld runs it once a job, when the job has got its nodes. It only writes an event into
# the spool; plugins/reporter.py delivers it. A job of somebody else, or without the supervisor's comment, is none of ours.
case $SLURM_JOB_COMMENT in
supervisor*) ;;
*) exit 0 ;;
esac
case $SLURM_JOB_NAME in
0x*[!0-9a-f]*) exit 0 ;;
0x????????????????????????????????????????????????????????????????) ;;
*) exit 0 ;;
esac
spool='@SPOOL@'
now=$(date +%s%N) || exit 0
draft="$spool/.$now-$SLURM_JOB_ID-start"
# A start that cannot be written must not keep the job from starting: the witness sees it all the same.
printf 'event=started\njob_id=%s\nslurm_id=%s\n' "$SLURM_JOB_NAME" "$SLURM_JOB_ID" >"$draft" || exit 0
sync "$draft" && mv "$draft" "$spool/$now-$SLURM_JOB_ID-start"
exit 0
