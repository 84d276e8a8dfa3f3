"""The life of a job: its events, its states, and the work that follows.

The work is in this order: `claim`, `fetch_script`, `submit`, `monitor`, `report`. On
request: `cancel`, `extend_time_limit`, `notify_customer`. `dispatch` requests what is
due; `batch` and what it uses carry out the effects of one kind together.

`state_machine` says what each event makes of a job. The other rules are pure as well:
`size_rules`, `reorg_rules`, `claim_limits`, `billing`, `runs`.
"""
