-- SLURM's job_submit/lua for a site that has no job_submit.lua of its own. It lies beside slurm.conf, and so does
-- supervisor_submit.lua. A site that has its own calls these two functions at the beginning of its own.
local folder = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$")
local supervisor = dofile(folder .. "/supervisor_submit.lua")

function slurm_job_submit(job, partitions, submit_uid)
    return supervisor.submit(job, submit_uid)
end

function slurm_job_modify(request, job, partitions, modify_uid)
    return supervisor.modify(request, job, modify_uid)
end

return slurm.SUCCESS
