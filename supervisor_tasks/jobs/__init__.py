"""The life of a job: its events, its states, and the work that follows.

Claim: `claim`, within `claim_limits`. Fetch: `fetch_script`.

Submit: `submit`; before it `earlier_submissions`, by `submission_rules`; after one that
was cut off `find_submission`, `submission_records` and `extra_submissions`; after a
false answer `false_slurm_ids`; after a node that starts nothing `launch_failures`.

Monitor: `monitor`, which reads callbacks (`callback_hints`) and looks at jobs
(`observe`): what SLURM gives them (`size_check`, `size_rules`, `paid_size`,
`site_choices`), jobs that do not go on (`stalled`), and ends that SLURM has forgotten
(`callback_fallback`). The seconds of all runs: `runs`, `run_callbacks`,
`wait_for_runs`.

Report: `report`, with the minutes of `billing`. On request: `cancel`,
`extend_time_limit`, `notify_customer`.

`model` says what a job is, `events` what can happen to it, and `state_machine` what
each event makes of it, with `effect_timing` and `reorg_rules`. Pure rules: `billing`,
`claim_limits`, `reorg_rules`, `runs`, `size_rules`, `stalled`, `state_machine`.

What is due is requested by `dispatch`. The effects of one kind are carried out together
by `batch`, with `batch_policies`, `effect_group`, `per_job_results` and
`outcome_recorder`. What operators see of a task and of a job's life: `task_summary`,
`trace`.
"""
