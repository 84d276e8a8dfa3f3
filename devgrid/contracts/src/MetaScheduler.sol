// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {AccessControl} from "./AccessControl.sol";
import {Constants} from "./Constants.sol";
import {Credit} from "./Credit.sol";
import {Errors} from "./Errors.sol";
import {JobRepository} from "./JobRepository.sol";
import {ProviderJobQueues} from "./ProviderJobQueues.sol";
import {ProviderManager} from "./ProviderManager.sol";
import {JobDefinition, JobHead, JobStatus, ProviderPrices} from "./Types.sol";

/// The grid's entry point: customers request jobs and lock credits for them, the holder of METASCHEDULER_ROLE assigns
/// them to providers, providers claim them and say how they went, and then the credits are shared out.
contract MetaScheduler is AccessControl, Errors {
    JobRepository public immutable jobs;
    ProviderJobQueues public immutable providerJobQueues;
    ProviderManager public immutable providerManager;
    Credit public immutable credit;
    Constants public immutable constants;

    bool public enableRequestNewJob = true;
    // The cuts of all bills, less what was taken out: the rest of the contract's credits is its customers'.
    uint256 private _earned;
    // Credits x 1e18 a minute for all of the job, at the prices that it was assigned for.
    mapping(bytes32 => uint256) private _pricePerMinute;

    event NewJobRequestEvent(bytes32 _jobId, address _customerAddr);
    event ClaimJobEvent(
        address customerAddr,
        address providerAddr,
        bytes32 jobId,
        uint64 maxDurationMinute,
        JobDefinition jobDefinition
    );
    event ClaimNextCancellingJobEvent(address customerAddr, address providerAddr, bytes32 jobId);
    event ClaimNextTopUpJobEvent(bytes32 _jobId, address _providerAddr, uint64 maxDurationMinute);
    event JobRefusedEvent(bytes32 _jobId, address _providerAddr, address _customerAddr);
    event BilledTooMuchEvent(bytes32 _jobId, address _providerAddr, uint256 _billingAmount);

    constructor(
        JobRepository jobs_,
        ProviderJobQueues queues_,
        ProviderManager manager_,
        Credit credit_,
        Constants constants_
    ) {
        jobs = jobs_;
        providerJobQueues = queues_;
        providerManager = manager_;
        credit = credit_;
        constants = constants_;
    }

    // --- customers ---

    /// Locks the credits, which this contract must be allowed to take.
    function requestNewJob(
        JobDefinition calldata definition,
        uint256 lockedCredits,
        bytes32 jobName,
        bool delegateSpendingAuthority
    ) external returns (bytes32 jobId) {
        if (!enableRequestNewJob) revert NewJobRequestDisabled();
        if (definition.ntasks == 0 || definition.cpusPerTask == 0 || definition.memPerCpu == 0) {
            revert InvalidJobDefinition();
        }
        uint256 least = constants.minimumAmount();
        if (lockedCredits < least) revert InsufficientFunds(lockedCredits, least);
        credit.transferFrom(msg.sender, address(this), lockedCredits);
        jobId = jobs.create(msg.sender, definition, lockedCredits, jobName, delegateSpendingAuthority);
        emit NewJobRequestEvent(jobId, msg.sender);
    }

    /// A job that no provider has claimed is over at once; else its provider is asked to end it.
    function cancelJob(bytes32 jobId) external {
        JobHead memory job = jobs.head(jobId);
        bool allowed =
            msg.sender == job.customer || msg.sender == job.provider || hasRole(METASCHEDULER_ROLE, msg.sender);
        if (!allowed) revert CustomerMetaSchedulerProviderOnly();
        _requireHot(job.status);
        if (job.status < JobStatus.SCHEDULED) {
            _end(jobId, job, JobStatus.CANCELLED, 0, "", 0);
            return;
        }
        if (job.hasCancelRequest) revert AlreadyDone();
        jobs.requestCancel(jobId);
        providerJobQueues.pushCancelling(job.provider, jobId);
    }

    function topUpJob(bytes32 jobId, uint256 amount) external {
        JobHead memory job = jobs.head(jobId);
        if (msg.sender != job.customer) revert CustomerOnly(msg.sender, job.customer);
        _topUp(jobId, job, amount);
    }

    function setDelegateSpendingAuthority(bytes32 jobId, bool value) external {
        JobHead memory job = jobs.head(jobId);
        if (msg.sender != job.customer) revert CustomerOnly(msg.sender, job.customer);
        _requireHot(job.status);
        jobs.setDelegateSpendingAuthority(jobId, value);
    }

    // --- the meta-scheduler ---

    function metaSchedule(bytes32 jobId, address provider) external onlyRole(METASCHEDULER_ROLE) {
        if (!providerManager.isValidForScheduling(provider)) revert ProviderNotJoined();
        jobs.assign(jobId, provider);
        _pricePerMinute[jobId] = _price(jobId, provider);
        providerJobQueues.pushClaimable(provider, jobId);
    }

    /// Adds one slice of minutes (Constants) to a job that has no more than a slice left.
    function topUpJobDelegate(bytes32 jobId) external onlyRole(METASCHEDULER_ROLE) {
        JobHead memory job = jobs.head(jobId);
        _requireHot(job.status);
        if (job.status < JobStatus.SCHEDULED) revert RunningScheduledStatusOnly(job.status);
        if (!jobs.delegateSpendingAuthorityOf(jobId)) revert NoSpendingAuthority();
        uint256 slice = constants.topUpSliceDurationMin();
        uint256 remaining = _remainingMinutes(jobId, job);
        if (remaining > slice) revert RemainingTimeAboveLimit(remaining, slice);
        _topUp(jobId, job, slice * _pricePerMinute[jobId]);
    }

    function panicJob(bytes32 jobId, string calldata lastError) external onlyRole(METASCHEDULER_ROLE) {
        _end(jobId, jobs.head(jobId), JobStatus.PANICKED, 0, lastError, 0);
    }

    /// Anyone may end a job (PANICKED, all credits back) whose provider has not claimed or started it in time.
    function timeoutJob(bytes32 jobId) external {
        JobHead memory job = jobs.head(jobId);
        _requireHot(job.status);
        if (job.status != JobStatus.META_SCHEDULED && job.status != JobStatus.SCHEDULED) {
            revert MetaScheduledScheduledStatusOnly(job.status);
        }
        uint256 due = jobs.blockNumberStateChangeOf(jobId) + constants.claimJobTimeout();
        if (block.number < due) revert RemainingTimeAboveLimit(due - block.number, 0);
        _end(jobId, job, JobStatus.PANICKED, 0, "not started in time", 0);
    }

    function setEnableRequestNewJob(bool value) external onlyRole(DEFAULT_ADMIN_ROLE) {
        enableRequestNewJob = value;
    }

    /// The owner takes out what the contract has earned, and no more than that.
    function withdrawAdmin(uint256 amount) external onlyRole(DEFAULT_ADMIN_ROLE) {
        if (amount > _earned) revert InsufficientFunds(_earned, amount);
        _earned -= amount;
        _pay(msg.sender, amount);
    }

    // --- providers ---

    function claimNextJob() external {
        providerManager.countJob(msg.sender);
        bytes32 jobId = providerJobQueues.popClaimable(msg.sender);
        (address customer, uint256 maxCost, JobDefinition memory definition) = jobs.claim(jobId);
        emit ClaimJobEvent(customer, msg.sender, jobId, _minutes(maxCost, _pricePerMinute[jobId]), definition);
    }

    function claimNextCancellingJob() external {
        bytes32 jobId = providerJobQueues.popCancelling(msg.sender);
        emit ClaimNextCancellingJobEvent(jobs.head(jobId).customer, msg.sender, jobId);
    }

    /// Announces the minutes to add: those that the job's credits buy now, less those that were announced before.
    function claimNextTopUpJob() external {
        bytes32 jobId = providerJobQueues.popTopUp(msg.sender);
        uint64 minutesToAdd = _unannouncedMinutes(jobId, jobs.head(jobId), 0);
        jobs.clearPendingTopUp(jobId);
        emit ClaimNextTopUpJobEvent(jobId, msg.sender, minutesToAdd);
    }

    /// A job that its customer wanted cancelled is cancelled instead of being given to another provider.
    function refuseJob(bytes32 jobId) external {
        JobHead memory job = jobs.head(jobId);
        if (msg.sender != job.provider) revert JobProviderOnly(msg.sender, job.provider);
        jobs.giveBack(jobId);
        providerJobQueues.remove(job.provider, jobId);
        emit JobRefusedEvent(jobId, job.provider, job.customer);
        if (job.hasCancelRequest) {
            job = jobs.head(jobId);
            _end(jobId, job, JobStatus.CANCELLED, 0, "", 0);
        }
    }

    /// RUNNING, or how the job ended; the minutes are billed at the end.
    function providerSetJobStatus(
        bytes32 jobId,
        JobStatus next,
        uint64 durationMinute,
        string calldata lastError,
        int64 exitCode
    ) external {
        JobHead memory job = jobs.head(jobId);
        if (msg.sender != job.provider) revert JobProviderOnly(msg.sender, job.provider);
        if (next == JobStatus.RUNNING) {
            jobs.start(jobId);
        } else if (next >= JobStatus.CANCELLED) {
            uint256 bill = next == JobStatus.PANICKED ? 0 : _bill(jobId, job, durationMinute);
            _end(jobId, job, next, bill, lastError, exitCode);
        } else {
            _requireHot(job.status);
            if (job.status == next) revert SameStatusError();
            revert InvalidTransition(job.status, next);
        }
    }

    // --- money ---

    /// The bill, at most what the customer locked.
    function _bill(bytes32 jobId, JobHead memory job, uint256 durationMinute) private returns (uint256) {
        uint256 price = _pricePerMinute[jobId];
        bool tooLarge = price != 0 && durationMinute > type(uint256).max / price;
        uint256 bill = tooLarge ? type(uint256).max : durationMinute * price;
        if (bill <= job.maxCost) return bill;
        emit BilledTooMuchEvent(jobId, job.provider, bill);
        return job.maxCost;
    }

    function _end(
        bytes32 jobId,
        JobHead memory job,
        JobStatus status,
        uint256 bill,
        string memory lastError,
        int64 exitCode
    ) private {
        jobs.end(jobId, status, bill, lastError, exitCode);
        if (job.status == JobStatus.META_SCHEDULED || job.hasCancelRequest || job.pendingTopUp != 0) {
            providerJobQueues.remove(job.provider, jobId);
        }
        uint256 cut = bill * constants.deepsquareCut() / constants.WHOLE();
        _earned += cut;
        _pay(job.provider, bill - cut);
        _pay(job.customer, job.maxCost - bill);
    }

    function _pay(address to, uint256 amount) private {
        if (amount != 0) credit.transfer(to, amount);
    }

    /// For a claimed job the provider is told of the new minutes, once there is at least one.
    function _topUp(bytes32 jobId, JobHead memory job, uint256 amount) private {
        _requireHot(job.status);
        credit.transferFrom(job.customer, address(this), amount);
        bool claimed = job.status >= JobStatus.SCHEDULED;
        jobs.addFunds(jobId, amount, claimed);
        if (claimed && _unannouncedMinutes(jobId, job, amount) != 0) {
            providerJobQueues.pushTopUp(job.provider, jobId);
        }
    }

    function _unannouncedMinutes(bytes32 jobId, JobHead memory job, uint256 added) private view returns (uint64) {
        uint256 price = _pricePerMinute[jobId];
        return _minutes(job.maxCost + added, price) - _minutes(job.maxCost - job.pendingTopUp, price);
    }

    function _remainingMinutes(bytes32 jobId, JobHead memory job) private view returns (uint256) {
        uint256 limit = _minutes(job.maxCost, _pricePerMinute[jobId]);
        if (job.status == JobStatus.SCHEDULED) return limit;
        uint256 used = (block.timestamp - jobs.startOf(jobId)) / 60;
        return used < limit ? limit - used : 0;
    }

    function _price(bytes32 jobId, address provider) private view returns (uint256) {
        ProviderPrices memory prices = providerManager.getProviderPrices(provider);
        (uint256 gpus, uint256 cpus, uint256 memMB) = jobs.resourcesOf(jobId);
        return gpus * prices.gpuPricePerMin + cpus * prices.cpuPricePerMin + memMB * prices.memPricePerMin;
    }

    function _minutes(uint256 credits, uint256 price) private pure returns (uint64) {
        if (price == 0 || credits / price > type(uint64).max) return type(uint64).max;
        return uint64(credits / price);
    }

    function _requireHot(JobStatus status) private pure {
        if (status >= JobStatus.CANCELLED) revert JobHotStatusOnly(status);
    }
}
