// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {Errors} from "../src/Errors.sol";
import {Job, JobDefinition, JobStatus} from "../src/Types.sol";
import {Grid} from "./Grid.sol";

/// A job's statuses: who may change them, and from which to which.
contract LifeCycleTest is Grid {
    function hot(JobStatus current) private pure returns (bytes memory) {
        return abi.encodeWithSelector(Errors.JobHotStatusOnly.selector, current);
    }

    function invalid(JobStatus from, JobStatus to) private pure returns (bytes memory) {
        return abi.encodeWithSelector(Errors.InvalidTransition.selector, from, to);
    }

    function same() private pure returns (bytes memory) {
        return abi.encodeWithSelector(Errors.SameStatusError.selector);
    }

    function test_request__keeps_all_that_was_asked_for() external {
        bytes32 jobId = request(5000, true);
        Job memory job = jobs.get(jobId);
        require(job.jobId == jobId && job.jobName == "name" && job.customerAddr == address(customer), "identity");
        require(keccak256(abi.encode(job.definition)) == keccak256(abi.encode(definition())), "definition");
        require(job.cost.delegateSpendingAuthority, "delegate");
        equal(job.cost.maxCost, 5000, "maxCost");
        equal(job.time.submit, block.timestamp, "submit");
        isStatus(jobId, JobStatus.PENDING);
        bytes32[] memory mine = jobs.getByCustomer(address(customer));
        require(mine.length == 1 && mine[0] == jobId, "getByCustomer");
    }

    function test_request__a_definition_without_tasks_cpus_or_memory__is_invalid() external {
        JobDefinition memory without = definition();
        without.ntasks = 0;
        _isInvalid(without);
        without = definition();
        without.cpusPerTask = 0;
        _isInvalid(without);
        without = definition();
        without.memPerCpu = 0;
        _isInvalid(without);
    }

    function _isInvalid(JobDefinition memory wanted) private {
        bytes memory call = abi.encodeCall(grid.requestNewJob, (wanted, 5000, "", false));
        fails(customer, call, abi.encodeWithSelector(Errors.InvalidJobDefinition.selector));
    }

    function test_request__a_retired_contract__takes_none() external {
        grid.setEnableRequestNewJob(false);
        bytes memory call = abi.encodeCall(grid.requestNewJob, (definition(), 5000, "", false));
        fails(customer, call, abi.encodeWithSelector(Errors.NewJobRequestDisabled.selector));
    }

    function test_get__an_unknown_job__is_invalid() external {
        failsAt(address(jobs), other, abi.encodeCall(jobs.get, ("x")), abi.encodeWithSelector(Errors.InvalidJob.selector));
    }

    function test_journey__every_end_from_running() external {
        _endsAs(JobStatus.FINISHED);
        _endsAs(JobStatus.FAILED);
        _endsAs(JobStatus.OUT_OF_CREDITS);
        _endsAs(JobStatus.CANCELLED);
        _endsAs(JobStatus.PANICKED);
    }

    function _endsAs(JobStatus end) private {
        bytes32 jobId = request(5000);
        isStatus(jobId, JobStatus.PENDING);
        assign(jobId, provider);
        isStatus(jobId, JobStatus.META_SCHEDULED);
        claim(provider);
        isStatus(jobId, JobStatus.SCHEDULED);
        does(provider, status(jobId, JobStatus.RUNNING, 0));
        isStatus(jobId, JobStatus.RUNNING);
        bytes memory last = abi.encodeCall(grid.providerSetJobStatus, (jobId, end, 1, "what happened", -3));
        does(provider, last);
        isStatus(jobId, end);
        Job memory job = jobs.get(jobId);
        require(keccak256(bytes(job.lastError)) == keccak256("what happened"), "lastError");
        require(job.exitCode == -3, "exitCode");
        require(job.providerAddr == address(provider), "provider");
        equal(job.time.start, block.timestamp, "start");
        equal(job.time.end, block.timestamp, "end");
        equal(job.time.panicTimestamp, end == JobStatus.PANICKED ? block.timestamp : 0, "panicTimestamp");
        equal(job.time.blockNumberStateChange, block.number, "blockNumberStateChange");
    }

    function test_scheduled__ends_that_need_running__are_invalid() external {
        bytes32 jobId = scheduled(5000);
        for (uint8 end = uint8(JobStatus.FINISHED); end <= uint8(JobStatus.OUT_OF_CREDITS); end++) {
            fails(provider, status(jobId, JobStatus(end), 0), invalid(JobStatus.SCHEDULED, JobStatus(end)));
        }
    }

    function test_scheduled__cancelled_and_panicked__are_allowed() external {
        bytes32 jobId = scheduled(5000);
        does(provider, status(jobId, JobStatus.CANCELLED, 0));
        isStatus(jobId, JobStatus.CANCELLED);
        jobId = scheduled(5000);
        does(provider, status(jobId, JobStatus.PANICKED, 0));
        isStatus(jobId, JobStatus.PANICKED);
    }

    function test_provider__moves_no_job_back_or_past_the_queue() external {
        bytes32 jobId = scheduled(5000);
        fails(provider, status(jobId, JobStatus.PENDING, 0), invalid(JobStatus.SCHEDULED, JobStatus.PENDING));
        fails(provider, status(jobId, JobStatus.SCHEDULED, 0), same());
        bytes32 waiting = metaScheduled(5000);
        fails(provider, status(waiting, JobStatus.SCHEDULED, 0), invalid(JobStatus.META_SCHEDULED, JobStatus.SCHEDULED));
        fails(provider, status(waiting, JobStatus.RUNNING, 0), invalid(JobStatus.META_SCHEDULED, JobStatus.RUNNING));
    }

    function test_running__again__is_the_same_status() external {
        bytes32 jobId = running(5000);
        fails(provider, status(jobId, JobStatus.RUNNING, 0), same());
    }

    function test_cold__any_change__is_refused_with_the_present_status() external {
        bytes32 jobId = running(5000);
        does(provider, status(jobId, JobStatus.FAILED, 1));
        for (uint8 next = 0; next <= uint8(JobStatus.PANICKED); next++) {
            fails(provider, status(jobId, JobStatus(next), 0), hot(JobStatus.FAILED));
        }
        fails(customer, cancel(jobId), hot(JobStatus.FAILED));
        fails(customer, topUp(jobId, 1), hot(JobStatus.FAILED));
        fails(provider, refuse(jobId), hot(JobStatus.FAILED));
        fails(scheduler, abi.encodeCall(grid.panicJob, (jobId, "")), hot(JobStatus.FAILED));
        fails(scheduler, abi.encodeCall(grid.metaSchedule, (jobId, address(provider))), hot(JobStatus.FAILED));
        fails(scheduler, abi.encodeCall(grid.topUpJobDelegate, (jobId)), hot(JobStatus.FAILED));
        fails(customer, abi.encodeCall(grid.setDelegateSpendingAuthority, (jobId, true)), hot(JobStatus.FAILED));
        fails(other, abi.encodeCall(grid.timeoutJob, (jobId)), hot(JobStatus.FAILED));
    }

    function test_provider__of_another_job__is_refused() external {
        bytes32 jobId = running(5000);
        bytes memory reason =
            abi.encodeWithSelector(Errors.JobProviderOnly.selector, address(other), address(provider));
        fails(other, status(jobId, JobStatus.FINISHED, 0), reason);
        fails(other, refuse(jobId), reason);
    }

    function test_queue__is_first_in_first_out_across_a_removal_in_the_middle() external {
        bytes32 first = metaScheduled(5000);
        bytes32 second = metaScheduled(5000);
        bytes32 third = metaScheduled(5000);
        equal(queues.getClaimableJobQueueSize(address(provider)), 3, "size");
        does(customer, cancel(second));
        equal(queues.getClaimableJobQueueSize(address(provider)), 2, "size after the removal");
        claim(provider);
        isStatus(first, JobStatus.SCHEDULED);
        isStatus(third, JobStatus.META_SCHEDULED);
        claim(provider);
        isStatus(third, JobStatus.SCHEDULED);
        require(!queues.hasNextClaimableJob(address(provider)), "empty");
        equal(manager.getJobCount(address(provider)), 2, "getJobCount");
    }

    function test_queue__a_removal_at_each_end__leaves_the_rest() external {
        bytes32 first = metaScheduled(5000);
        bytes32 second = metaScheduled(5000);
        bytes32 third = metaScheduled(5000);
        does(customer, cancel(third));
        does(customer, cancel(first));
        bytes32 fourth = metaScheduled(5000);
        claim(provider);
        isStatus(second, JobStatus.SCHEDULED);
        claim(provider);
        isStatus(fourth, JobStatus.SCHEDULED);
        require(!queues.hasNextClaimableJob(address(provider)), "empty");
    }

    function test_queues__empty__have_no_job() external {
        bytes memory none = abi.encodeWithSelector(Errors.NoJob.selector);
        fails(provider, abi.encodeCall(grid.claimNextJob, ()), none);
        fails(provider, abi.encodeCall(grid.claimNextCancellingJob, ()), none);
        fails(provider, abi.encodeCall(grid.claimNextTopUpJob, ()), none);
    }

    function test_claim__another_providers_queue__is_not_touched() external {
        _join(other);
        metaScheduled(5000);
        fails(other, abi.encodeCall(grid.claimNextJob, ()), abi.encodeWithSelector(Errors.NoJob.selector));
    }

    function test_cancel__before_the_claim__is_at_once() external {
        bytes32 pending = request(5000);
        does(customer, cancel(pending));
        isStatus(pending, JobStatus.CANCELLED);
        bytes32 waiting = metaScheduled(5000);
        does(customer, cancel(waiting));
        isStatus(waiting, JobStatus.CANCELLED);
        require(!queues.hasNextClaimableJob(address(provider)), "off the queue");
        owns(address(customer), WEALTH, "all back");
    }

    function test_cancel__after_the_claim__asks_the_provider_once() external {
        bytes32 queued = scheduled(5000);
        bytes32 started = running(5000);
        does(customer, cancel(queued));
        does(scheduler, cancel(started));
        isStatus(queued, JobStatus.SCHEDULED);
        isStatus(started, JobStatus.RUNNING);
        require(jobs.get(queued).hasCancelRequest && jobs.get(started).hasCancelRequest, "hasCancelRequest");
        equal(jobs.get(queued).time.cancelRequestTimestamp, block.timestamp, "cancelRequestTimestamp");
        equal(queues.getCancellingJobQueueSize(address(provider)), 2, "size");
        fails(customer, cancel(queued), abi.encodeWithSelector(Errors.AlreadyDone.selector));
        does(provider, abi.encodeCall(grid.claimNextCancellingJob, ()));
        equal(queues.getCancellingJobQueueSize(address(provider)), 1, "size after one claim");
        does(provider, status(started, JobStatus.CANCELLED, 0));
        require(!queues.hasCancellingJob(address(provider)), "an ended job is off the queue");
    }

    function test_cancel__by_a_stranger__is_refused() external {
        bytes32 jobId = running(5000);
        fails(other, cancel(jobId), abi.encodeWithSelector(Errors.CustomerMetaSchedulerProviderOnly.selector));
    }

    function test_refuse__gives_the_job_back_for_another_provider() external {
        _join(other);
        bytes32 jobId = scheduled(5000);
        does(customer, topUp(jobId, 5000));
        does(provider, refuse(jobId));
        isStatus(jobId, JobStatus.PENDING);
        require(jobs.get(jobId).providerAddr == address(0), "provider");
        require(!queues.hasTopUpJob(address(provider)), "top-up queue");
        equal(jobs.get(jobId).cost.pendingTopUp, 0, "pendingTopUp");
        equal(jobs.get(jobId).cost.maxCost, 10_000, "maxCost");
        assign(jobId, other);
        claim(other);
        isStatus(jobId, JobStatus.SCHEDULED);
    }

    function test_refuse__not_claimed_or_running__is_invalid() external {
        fails(provider, refuse(metaScheduled(5000)), invalid(JobStatus.META_SCHEDULED, JobStatus.PENDING));
        claim(provider);
        fails(provider, refuse(running(5000)), invalid(JobStatus.RUNNING, JobStatus.PENDING));
    }

    function test_refuse__a_job_to_be_cancelled__is_cancelled() external {
        bytes32 jobId = scheduled(5000);
        does(customer, cancel(jobId));
        does(provider, refuse(jobId));
        isStatus(jobId, JobStatus.CANCELLED);
        require(!queues.hasCancellingJob(address(provider)), "off the queue");
        owns(address(customer), WEALTH, "all back");
    }

    function test_meta_schedule__needs_the_role_and_a_provider_in_force() external {
        bytes32 jobId = request(5000);
        bytes memory call = abi.encodeCall(grid.metaSchedule, (jobId, address(provider)));
        fails(customer, call, abi.encodeWithSignature("Error(string)", "AccessControl: caller is missing the role"));
        manager.ban(address(provider));
        fails(scheduler, call, abi.encodeWithSelector(Errors.ProviderNotJoined.selector));
        manager.unban(address(provider));
        does(scheduler, call);
        fails(scheduler, call, same());
        manager.ban(address(provider));
        fails(provider, abi.encodeCall(grid.claimNextJob, ()), abi.encodeWithSelector(Errors.ProviderNotJoined.selector));
    }

    function test_panic__needs_the_role__and_not_a_pending_job() external {
        bytes32 jobId = request(5000);
        bytes memory call = abi.encodeCall(grid.panicJob, (jobId, "lost"));
        fails(provider, call, abi.encodeWithSignature("Error(string)", "AccessControl: caller is missing the role"));
        fails(scheduler, call, invalid(JobStatus.PENDING, JobStatus.PANICKED));
        assign(jobId, provider);
        does(scheduler, call);
        isStatus(jobId, JobStatus.PANICKED);
        require(!queues.hasNextClaimableJob(address(provider)), "off the queue");
    }

    function test_timeout__too_early_or_running__is_refused() external {
        bytes32 jobId = scheduled(5000);
        bytes memory call = abi.encodeCall(grid.timeoutJob, (jobId));
        fails(other, call, abi.encodeWithSelector(Errors.RemainingTimeAboveLimit.selector, 86_400, 0));
        bytes32 started = running(5000);
        fails(
            other,
            abi.encodeCall(grid.timeoutJob, (started)),
            abi.encodeWithSelector(Errors.MetaScheduledScheduledStatusOnly.selector, JobStatus.RUNNING)
        );
    }

    function test_timeout__by_anyone__panics_with_all_credits_back() external {
        bytes32 jobId = scheduled(5000);
        constants.setClaimJobTimeout(0);
        does(other, abi.encodeCall(grid.timeoutJob, (jobId)));
        isStatus(jobId, JobStatus.PANICKED);
        owns(address(customer), WEALTH, "all back");
    }

    function test_roles__can_be_taken_and_given_up() external {
        bytes32 role = grid.METASCHEDULER_ROLE();
        require(role == keccak256("METASCHEDULER_ROLE") && grid.hasRole(role, address(scheduler)), "given");
        does(scheduler, abi.encodeCall(grid.renounceRole, (role, address(scheduler))));
        require(!grid.hasRole(role, address(scheduler)), "given up");
        grid.grantRole(role, address(other));
        grid.revokeRole(role, address(other));
        require(!grid.hasRole(role, address(other)), "taken");
        require(grid.getRoleAdmin(role) == 0, "admin");
        require(grid.supportsInterface(0x7965db0b) && grid.supportsInterface(0x01ffc9a7), "interfaces");
        require(!grid.supportsInterface(0xffffffff), "no interface");
    }

    function test_repositories__are_changed_by_the_entry_point_only() external {
        bytes32 jobId = running(5000);
        bytes memory reason = abi.encodeWithSignature("Error(string)", "AccessControl: caller is missing the role");
        failsAt(address(jobs), provider, abi.encodeCall(jobs.end, (jobId, JobStatus.FINISHED, 0, "", 0)), reason);
        failsAt(address(queues), provider, abi.encodeCall(queues.popClaimable, (address(provider))), reason);
        failsAt(address(manager), provider, abi.encodeCall(manager.countJob, (address(provider))), reason);
    }
}
