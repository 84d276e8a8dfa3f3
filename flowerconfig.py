"""How Flower shows the fleet: each task with the job that it is about."""

tasks_columns = "name,args,state,received,runtime,worker,uuid"
max_tasks = 20_000
