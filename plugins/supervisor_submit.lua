-- A customer's jobs are what the supervisor has submitted, and nothing else. slurmctld runs this for each submission
-- and for each change of a job (job_submit/lua; Lua 5.1 to 5.4, as SLURM was built). It asks no network.
-- plugins/README.md says how it is installed.
--
-- The supervisor proves itself by a token in the job's comment: `... token=N.EXPIRY.CODE`. CODE is the HMAC-SHA256, by
-- a key that only SlurmUser and the supervisor read, of all that a job costs, of who owns it, and of N, the number of
-- this submission of the job: `signed_text` below, and supervisor_tasks/slurm/submit_token.py. A job's number goes up
-- each time, so that no token counts twice, nor one that is older than a token that did. What the token does not tell
-- must be as sbatch leaves it.
--
-- The words behind `supervisor:` in each refusal are read by supervisor_tasks/slurm/parsers.py.
local folder = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$")
local sha256 = dofile(folder .. "/supervisor_sha256.lua")

local MAX_AHEAD_S = 3600 -- a token that expires later was made by a clock that is wrong
-- A number is kept for as long as any token that counts now may still count, and 300 s more: a backup slurmctld on
-- another host may have another clock.
local REMEMBERED_FOR_S = MAX_AHEAD_S + 300
local SPARE_LINES = 1000 -- of the file of used tokens, before the script rewrites it
local CODE_DIGITS = 64
-- The code of a text takes 2.5 us a character, and slurmctld waits for it: a customer may ask for thousands. The text of
-- a job of ours has at most 253 characters of a host name, 108 of name and user, and some numbers.
local MAX_TEXT = 700
local MAX_DIGITS = 10 -- of a token's number, and of its expiry: what is logged is no longer
local FIRST_ENDED_STATE = 3 -- of slurm.h: PENDING, RUNNING and SUSPENDED come before

local supervisor = {}

-- --- settings and keys -----------------------------------------------------------------------------------------------

-- `name = value` lines; # begins a comment, also behind a value. Read at each submission of a customer, so that a
-- change needs no restart.
local function settings()
    local found = { nested_jobs = "no" }
    local file = assert(io.open(folder .. "/supervisor_submit.conf"))
    for line in file:lines() do
        local name, value = line:gsub("%s#.*$", ""):match("^%s*([%w_]+)%s*=%s*(.-)%s*$")
        if name then
            found[name] = value
        end
    end
    file:close()
    assert(found.key_file and found.used_file, "supervisor_submit.conf: expected key_file = ... and used_file = ...")
    return found
end

local codes_of_key = {} -- what is computed once for each key

-- One code for each key of the file, a line each: while the key is being changed there are two.
local function codes(key_file)
    local file = assert(io.open(key_file))
    local text, kept, found = file:read(1000) or "", {}, {}
    file:close()
    for key in text:gmatch("%S+") do
        assert(#key == 64 and key:match("^%x+$"), key_file .. ": expected one or two lines of 64 hex digits")
        kept[key] = codes_of_key[key] or sha256.hmac(key)
        found[#found + 1] = kept[key]
    end
    assert(#found == 1 or #found == 2, key_file .. ": expected one or two lines of 64 hex digits")
    codes_of_key = kept
    return found
end

-- --- the numbers that were used --------------------------------------------------------------------------------------

local used, used_file, lines, rewritten_at_lines = nil, nil, 0, 0 -- used[job name] = { number, kept until }

local function write(file_name, mode, text)
    local file = assert(io.open(file_name, mode))
    local written, why = file:write(text)
    local closed, why_not = file:close()
    assert(written and closed, why or why_not)
end

local function line_of(name, entry)
    return ("%d %d %s .\n"):format(entry[1], entry[2], name)
end

-- The file has a line for each token, and what is over is left out now and then.
local function delete_expired(file_name, entries, now)
    local text, live = {}, {}
    for name, entry in pairs(entries) do
        if entry[2] >= now then
            live[name] = entry
            text[#text + 1] = line_of(name, entry)
        end
    end
    write(file_name .. ".new", "w", table.concat(text))
    assert(os.rename(file_name .. ".new", file_name))
    used, used_file, lines = live, file_name, #text
    rewritten_at_lines = 2 * lines + SPARE_LINES
end

-- What a slurmctld that has ended, or a script that was loaded before, has left. A last line that was cut off is left
-- out: its job was not taken.
local function remember(file_name, now)
    if used_file == file_name then
        return
    end
    local found, file = {}, io.open(file_name)
    for line in file and file:lines() or function() end do
        local number, kept_until, name = line:match("^(%d+) (%d+) (%S+) %.$")
        if number then
            found[name] = { tonumber(number), tonumber(kept_until) }
        end
    end
    if file then
        file:close()
    end
    delete_expired(file_name, found, now)
end

local function keep(name, number, kept_until, now)
    local entry, file_name = { number, kept_until }, used_file
    -- nil until the line is whole: `remember` takes one that was cut off out of the file, before the next is added
    used_file = nil
    write(file_name, "a", line_of(name, entry))
    used_file = file_name
    used[name], lines = entry, lines + 1
    if lines > rewritten_at_lines then
        delete_expired(used_file, used, now)
    end
end

-- --- what a token covers ---------------------------------------------------------------------------------------------

-- A value as text, the same in each version of Lua: SLURM gives all numbers as floats, and Lua 5.3 and later write 2.0
-- for one.
local function text_of(value)
    if type(value) ~= "number" then
        return tostring(value)
    end
    local is_whole = value % 1 == 0 and math.abs(value) < 2 ^ 53 -- "%d" takes no other number in Lua 5.3 and later
    return is_whole and ("%d"):format(value) or "other"
end

local function signed_text(job, comment, number, expiry)
    local gpus = job.tres_per_job == nil and "0" or job.tres_per_job:match("^gres[:/]gpu[:=](%d+)$") or "other"
    local parts = {
        "supervisor-submit-1", job.name, job.user_name:lower(), job.time_limit, job.num_tasks, job.cpus_per_task,
        job.min_mem_per_cpu or "other", gpus, job.partition, comment, number, expiry,
    }
    for i = 1, 12 do
        parts[i] = text_of(parts[i])
        if parts[i]:find("\n") then
            return nil
        end
    end
    local text = table.concat(parts, "\n")
    return #text <= MAX_TEXT and text or nil
end

local NO_VAL = 4294967294
-- NO_VAL of 32 and of 16 bits. No field below has 8 bits, and 254 is a number of CPUs.
local NOT_GIVEN = { [NO_VAL] = true, [65534] = true }

-- Texts, and numbers for which 0 means something: sbatch leaves them out.
local NOT_ASKED_FOR = {
    "account", "admin_comment", "array_inx", "batch_features", "burst_buffer", "clusters", "container", "core_spec",
    "cores_per_socket", "cpu_freq_gov", "cpu_freq_max", "cpu_freq_min", "cpus_per_tres", "delay_boot", "dependency",
    "exc_nodes", "extra", "features", "het_job_offset", "licenses", "max_cpus", "max_nodes", "mcs_label",
    "mem_per_tres", "min_mem_per_node", "min_nodes", "network", "nice", "ntasks_per_core", "ntasks_per_gpu",
    "ntasks_per_node", "ntasks_per_socket", "ntasks_per_tres", "pn_min_tmp_disk", "prefer", "priority", "qos", "reboot",
    "req_nodes", "req_switch", "reservation", "shared", "site_factor", "sockets_per_node", "thread_spec",
    "threads_per_core", "time_min", "tres_bind", "tres_freq", "tres_per_node", "tres_per_socket", "wait4switch",
    "wckey",
}
-- Numbers that are 0 when they are left out.
local ZERO = {
    "begin_time", "boards_per_node", "contiguous", "end_time", "immediate", "ntasks_per_board", "sockets_per_board",
}

-- Whether a job asks for each task's paid CPUs and for nothing else. sbatch writes --cpus-per-task into tres_per_task
-- too, since SLURM 22.11: `cpu:4`, or `cpu=4` in later versions.
local function has_paid_tasks(job)
    local asked = job.tres_per_task
    return asked == nil or asked == "" or tonumber(asked:match("^cpu[:=](%d+)$")) == job.cpus_per_task
end

-- The first thing that was asked for and not paid for; nil when there is none.
local function not_covered(job)
    for _, name in ipairs(NOT_ASKED_FOR) do
        local value = job[name]
        if value ~= nil and not NOT_GIVEN[value] then
            return name
        end
    end
    for _, name in ipairs(ZERO) do
        local value = job[name]
        if value ~= nil and value ~= 0 and not NOT_GIVEN[value] then
            return name
        end
    end
    local cpus = job.num_tasks * job.cpus_per_task
    if (job.min_cpus ~= cpus and job.min_cpus ~= NO_VAL) or job.cron_job then
        return job.cron_job and "cron_job" or "min_cpus"
    elseif job.pn_min_cpus ~= job.cpus_per_task and not NOT_GIVEN[job.pn_min_cpus] then
        return "pn_min_cpus"
    elseif not has_paid_tasks(job) then
        return "tres_per_task"
    elseif job.requeue ~= 0 then
        return "requeue"
    end
    -- The line by which the supervisor finds its job among all of the customer's.
    local header = (job.script or ""):match("^[^\n]*\n([^\n]*)\n")
    return header ~= "# supervisor job " .. job.name and "script" or nil
end

-- Whether two codes are the same, in a time that does not tell where they differ.
local function same(one, other)
    if #one ~= #other then
        return false
    end
    local difference = 0
    for i = 1, #one do
        difference = difference + (one:byte(i) - other:byte(i)) ^ 2
    end
    return difference == 0
end

-- --- what slurmctld asks ---------------------------------------------------------------------------------------------

-- The Linux user of a customer has the customer's address as a name.
local function is_customer(user_name)
    return #user_name == 42 and user_name:match("^0[xX]%x+$") ~= nil
end

-- Whether a job's comment says that it is paid for. Only the supervisor's jobs may: a nested job that did would count
-- as a paid one, in which its owner may submit others, and so on without an end.
local function says_paid(comment)
    return comment:match("^supervisor") ~= nil
end

-- Whether this user's job of ours runs now: what a job submits is not told from what its owner submits elsewhere
-- meanwhile.
local function has_a_running_job(user_id)
    for _, job in pairs(slurm.jobs) do
        if job.user_id == user_id and job.job_state % 256 == 1 and (job.comment or ""):match("^supervisor %S+$") then
            return true
        end
    end
    return false
end

-- Whether SLURM has this job of ours already, and it has not ended. A customer can keep the tokens of several
-- submissions, and each has a higher number.
local function is_live(name, user_id)
    for _, job in pairs(slurm.jobs) do
        if job.user_id == user_id and job.name == name and job.job_state % 256 < FIRST_ENDED_STATE then
            return true
        end
    end
    return false
end

-- Why a customer's job is not taken; nil when it is, and then its comment is without the token, and the token is used.
local function refusal(job)
    local known, given = pcall(settings)
    if not known then
        return "no key", given
    end
    local comment, number, expiry, code = (job.comment or ""):match("^(.-) token=(%d+)%.(%d+)%.(%x+)$")
    if not comment then
        local nested = given.nested_jobs == "yes" and not says_paid(job.comment or "")
            and has_a_running_job(job.user_id)
        return not nested and "no token" or nil
    end
    if #code ~= CODE_DIGITS or #comment > MAX_TEXT or #number > MAX_DIGITS or #expiry > MAX_DIGITS then
        return "wrong token"
    end
    local readable, accepted = pcall(codes, given.key_file)
    if not readable then
        return "no key", accepted
    end
    local now = os.time()
    if tonumber(expiry) < now or tonumber(expiry) > now + MAX_AHEAD_S then
        return "token expired", ("it ends at %s, and it is %d"):format(expiry, now)
    end
    local text = signed_text(job, comment, number, expiry)
    local genuine = false
    for _, code_of in ipairs(text and accepted or {}) do
        genuine = same(code_of(text), code:lower()) or genuine
    end
    if not genuine then
        return "wrong token"
    end
    number = tonumber(number)
    local other = not_covered(job)
    if other then
        return "token does not cover " .. other
    end
    local remembered, why = pcall(remember, given.used_file, now)
    if remembered and used[job.name] and number <= used[job.name][1] then
        return "token used"
    elseif number > 1 and is_live(job.name, job.user_id) then -- seldom: it takes a look at all jobs
        return "token used"
    end
    local kept, why_not = remembered, why
    if remembered then
        kept, why_not = pcall(keep, job.name, number, now + REMEMBERED_FOR_S, now)
    end
    if not kept then
        return "no memory", why_not
    end
    job.comment = comment
    return nil
end

local ADVICE = {
    ["no key"] = "slurmctld cannot read the supervisor's settings or key",
    ["no token"] = "a customer's jobs are submitted by the supervisor",
    ["wrong token"] = "it was made with another key, or for another job",
    ["token expired"] = "it was made too long ago, or clocks differ",
    ["token used"] = "the job was submitted with it, or with a later one",
    ["no memory"] = "slurmctld cannot write down that the token is used",
}

function supervisor.submit(job, submit_uid)
    if submit_uid == 0 or submit_uid ~= job.user_id then -- SLURM lets only its administrators submit for others
        return slurm.SUCCESS
    end
    if job.user_name == nil then
        slurm.log_user("supervisor: unknown user: slurmctld cannot tell whether this is a customer")
        return slurm.ESLURM_ACCESS_DENIED
    elseif not is_customer(job.user_name) then
        return slurm.SUCCESS
    end
    local why, details = refusal(job)
    if why == nil then
        return slurm.SUCCESS
    end
    slurm.log_info("supervisor: refused a job of %s: %s (%s)",
        job.user_name, why, tostring(details or ADVICE[why] or ""))
    slurm.log_user("supervisor: %s: %s", why, ADVICE[why] or "it was not paid for")
    return slurm.ESLURM_ACCESS_DENIED
end

-- A job's owner changes nothing of it (scancel is no change, and SLURM lets only its administrators do so). `request`
-- has the user who asks. Jobs of customers are also known by the comment that the token covers.
function supervisor.modify(request, job, modify_uid)
    if modify_uid == 0 or modify_uid ~= job.user_id then
        return slurm.SUCCESS
    end
    local asks = request.user_id == modify_uid and request.user_name or ""
    -- The request names another user than the one who sends it: he may be a customer, and the job a nested one.
    local makes_paid = asks == "" and says_paid(request.comment or "")
    if is_customer(asks) or makes_paid or (job.comment or ""):match("^supervisor %S+$") then
        slurm.log_info("supervisor: refused a change of job %d by its owner %s", job.job_id, asks)
        return slurm.ESLURM_ACCESS_DENIED
    end
    return slurm.SUCCESS
end

return supervisor
