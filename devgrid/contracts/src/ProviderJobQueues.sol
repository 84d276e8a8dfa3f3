// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {AccessControl} from "./AccessControl.sol";
import {Errors} from "./Errors.sol";
import {JobQueue} from "./JobQueue.sol";

/// Three queues a provider: jobs to claim, jobs whose customer wants no more of them, jobs with more credits.
/// Only the MetaScheduler contract changes them.
contract ProviderJobQueues is AccessControl, Errors {
    using JobQueue for JobQueue.Queue;

    mapping(address => JobQueue.Queue) private _claimable;
    mapping(address => JobQueue.Queue) private _cancelling;
    mapping(address => JobQueue.Queue) private _topUp;

    function hasNextClaimableJob(address provider) external view returns (bool) {
        return _claimable[provider].length != 0;
    }

    function hasCancellingJob(address provider) external view returns (bool) {
        return _cancelling[provider].length != 0;
    }

    function hasTopUpJob(address provider) external view returns (bool) {
        return _topUp[provider].length != 0;
    }

    // The sizes are not marked view: so it is in the field.

    function getClaimableJobQueueSize(address provider) external returns (uint256) {
        return _claimable[provider].length;
    }

    function getCancellingJobQueueSize(address provider) external returns (uint256) {
        return _cancelling[provider].length;
    }

    function getTopUpJobQueueSize(address provider) external returns (uint256) {
        return _topUp[provider].length;
    }

    function pushClaimable(address provider, bytes32 jobId) external onlyRole(METASCHEDULER_ROLE) {
        _claimable[provider].push(jobId);
    }

    function pushCancelling(address provider, bytes32 jobId) external onlyRole(METASCHEDULER_ROLE) {
        _cancelling[provider].push(jobId);
    }

    function pushTopUp(address provider, bytes32 jobId) external onlyRole(METASCHEDULER_ROLE) {
        _topUp[provider].push(jobId);
    }

    /// Raises NoJob when the queue is empty.
    function popClaimable(address provider) external onlyRole(METASCHEDULER_ROLE) returns (bytes32) {
        return _pop(_claimable[provider]);
    }

    /// Raises NoJob when the queue is empty.
    function popCancelling(address provider) external onlyRole(METASCHEDULER_ROLE) returns (bytes32) {
        return _pop(_cancelling[provider]);
    }

    /// Raises NoJob when the queue is empty.
    function popTopUp(address provider) external onlyRole(METASCHEDULER_ROLE) returns (bytes32) {
        return _pop(_topUp[provider]);
    }

    /// Take a job out of all three queues, wherever it is.
    function remove(address provider, bytes32 jobId) external onlyRole(METASCHEDULER_ROLE) {
        _claimable[provider].remove(jobId);
        _cancelling[provider].remove(jobId);
        _topUp[provider].remove(jobId);
    }

    function _pop(JobQueue.Queue storage queue) private returns (bytes32 jobId) {
        jobId = queue.first;
        if (jobId == 0) revert NoJob();
        queue.remove(jobId);
    }
}
