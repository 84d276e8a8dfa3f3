// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {AccessControl} from "./AccessControl.sol";
import {Errors} from "./Errors.sol";
import {Affinity, Job, JobDefinition, JobHead, JobStatus, Label} from "./Types.sol";

/// The jobs and the rules of their life. Only the MetaScheduler contract changes them.
contract JobRepository is AccessControl, Errors {
    mapping(bytes32 => Job) private _jobs;
    mapping(address => bytes32[]) private _byCustomer;
    uint256 private _count;

    event JobTransitionEvent(bytes32 _jobId, JobStatus _from, JobStatus _to);
    event JobCreated(bytes32 _jobId);

    /// Raises InvalidJob when there is none of that id.
    function get(bytes32 jobId) external view returns (Job memory) {
        return _get(jobId);
    }

    function getByCustomer(address customer) external view returns (bytes32[] memory) {
        return _byCustomer[customer];
    }

    function head(bytes32 jobId) external view returns (JobHead memory) {
        Job storage job = _get(jobId);
        return JobHead(
            job.status, job.customerAddr, job.providerAddr, job.cost.maxCost, job.cost.pendingTopUp, job.hasCancelRequest
        );
    }

    function startOf(bytes32 jobId) external view returns (uint256) {
        return _get(jobId).time.start;
    }

    function blockNumberStateChangeOf(bytes32 jobId) external view returns (uint256) {
        return _get(jobId).time.blockNumberStateChange;
    }

    function delegateSpendingAuthorityOf(bytes32 jobId) external view returns (bool) {
        return _get(jobId).cost.delegateSpendingAuthority;
    }

    /// GPUs, CPUs and memory (MB) of the whole job.
    function resourcesOf(bytes32 jobId) external view returns (uint256 gpus, uint256 cpus, uint256 memMB) {
        JobDefinition storage definition = _get(jobId).definition;
        gpus = definition.gpus;
        cpus = uint256(definition.cpusPerTask) * definition.ntasks;
        memMB = definition.memPerCpu * cpus;
    }

    function create(
        address customer,
        JobDefinition calldata definition,
        uint256 maxCost,
        bytes32 jobName,
        bool delegateSpendingAuthority
    ) external onlyRole(METASCHEDULER_ROLE) returns (bytes32 jobId) {
        // The hash of the last block makes the ids of one grid differ from those of another.
        jobId = keccak256(abi.encode(block.chainid, address(this), blockhash(block.number - 1), ++_count));
        Job storage job = _jobs[jobId];
        job.jobId = jobId;
        job.customerAddr = customer;
        job.jobName = jobName;
        job.cost.maxCost = maxCost;
        job.cost.delegateSpendingAuthority = delegateSpendingAuthority;
        job.time.submit = block.timestamp;
        job.time.blockNumberStateChange = block.number;
        _store(job.definition, definition);
        _byCustomer[customer].push(jobId);
        emit JobCreated(jobId);
    }

    function assign(bytes32 jobId, address provider) external onlyRole(METASCHEDULER_ROLE) {
        _transition(jobId, JobStatus.META_SCHEDULED).providerAddr = provider;
    }

    function claim(bytes32 jobId)
        external
        onlyRole(METASCHEDULER_ROLE)
        returns (address customer, uint256 maxCost, JobDefinition memory definition)
    {
        Job storage job = _transition(jobId, JobStatus.SCHEDULED);
        return (job.customerAddr, job.cost.maxCost, job.definition);
    }

    /// Back to PENDING, as if it had never been assigned; a wish to cancel stays.
    function giveBack(bytes32 jobId) external onlyRole(METASCHEDULER_ROLE) {
        Job storage job = _transition(jobId, JobStatus.PENDING);
        job.providerAddr = address(0);
        if (job.cost.pendingTopUp != 0) job.cost.pendingTopUp = 0;
    }

    function start(bytes32 jobId) external onlyRole(METASCHEDULER_ROLE) {
        _transition(jobId, JobStatus.RUNNING).time.start = block.timestamp;
    }

    function end(bytes32 jobId, JobStatus status, uint256 finalCost, string calldata lastError, int64 exitCode)
        external
        onlyRole(METASCHEDULER_ROLE)
    {
        Job storage job = _transition(jobId, status);
        job.time.end = block.timestamp;
        if (status == JobStatus.PANICKED) job.time.panicTimestamp = block.timestamp;
        if (finalCost != 0) job.cost.finalCost = finalCost;
        if (job.cost.pendingTopUp != 0) job.cost.pendingTopUp = 0;
        if (bytes(lastError).length != 0) job.lastError = lastError;
        if (exitCode != 0) job.exitCode = exitCode;
    }

    function requestCancel(bytes32 jobId) external onlyRole(METASCHEDULER_ROLE) {
        Job storage job = _jobs[jobId];
        job.hasCancelRequest = true;
        job.time.cancelRequestTimestamp = block.timestamp;
    }

    function addFunds(bytes32 jobId, uint256 amount, bool pending) external onlyRole(METASCHEDULER_ROLE) {
        Job storage job = _jobs[jobId];
        job.cost.maxCost += amount;
        if (pending) job.cost.pendingTopUp += amount;
    }

    function clearPendingTopUp(bytes32 jobId) external onlyRole(METASCHEDULER_ROLE) {
        _jobs[jobId].cost.pendingTopUp = 0;
    }

    function setDelegateSpendingAuthority(bytes32 jobId, bool value) external onlyRole(METASCHEDULER_ROLE) {
        _jobs[jobId].cost.delegateSpendingAuthority = value;
    }

    function _get(bytes32 jobId) private view returns (Job storage job) {
        job = _jobs[jobId];
        if (job.jobId == 0) revert InvalidJob();
    }

    function _transition(bytes32 jobId, JobStatus to) private returns (Job storage job) {
        job = _get(jobId);
        JobStatus from = job.status;
        if (from >= JobStatus.CANCELLED) revert JobHotStatusOnly(from);
        if (from == to) revert SameStatusError();
        if (!_allowed(from, to)) revert InvalidTransition(from, to);
        job.status = to;
        job.time.blockNumberStateChange = block.number;
        emit JobTransitionEvent(jobId, from, to);
    }

    /// Whether a hot job may go from one status to another one.
    function _allowed(JobStatus from, JobStatus to) private pure returns (bool) {
        if (to == JobStatus.PENDING) return from == JobStatus.SCHEDULED;
        if (to <= JobStatus.RUNNING) return uint8(from) + 1 == uint8(to);
        if (to == JobStatus.CANCELLED) return true;
        if (to == JobStatus.PANICKED) return from != JobStatus.PENDING;
        return from == JobStatus.RUNNING;
    }

    function _store(JobDefinition storage to, JobDefinition calldata from) private {
        to.gpus = from.gpus;
        to.memPerCpu = from.memPerCpu;
        to.cpusPerTask = from.cpusPerTask;
        to.ntasks = from.ntasks;
        to.batchLocationHash = from.batchLocationHash;
        to.storageType = from.storageType;
        for (uint256 i = 0; i < from.uses.length; i++) {
            to.uses.push(from.uses[i]);
        }
        for (uint256 i = 0; i < from.affinity.length; i++) {
            to.affinity.push(from.affinity[i]);
        }
    }
}
