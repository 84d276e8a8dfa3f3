// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {JobStatus} from "./Types.sol";

/// Every error of the grid's contracts, in one place, so that the entry point's ABI names them all. A few are raised
/// by contracts in the field only: Empty, RunningColdStatusOnly.
interface Errors {
    error CustomerMetaSchedulerProviderOnly();
    error CustomerOnly(address current, address expected);
    error InsufficientFunds(uint256 available, uint256 required);
    error InvalidJobDefinition();
    error JobHotStatusOnly(JobStatus current);
    error JobProviderOnly(address current, address expected);
    error MetaScheduledScheduledStatusOnly(JobStatus current);
    error NewJobRequestDisabled();
    error NoSpendingAuthority();
    error ProviderNotJoined();
    error RemainingTimeAboveLimit(uint256 remaining, uint256 limit);
    error RunningColdStatusOnly(JobStatus current);
    error RunningScheduledStatusOnly(JobStatus current);

    error InvalidTransition(JobStatus from, JobStatus to);
    error SameStatusError();
    error Empty();
    error OutOfBounds();
    error InvalidJob();
    error NoJob();
    error InvalidNodesCount();
    error ArrayLengthMismatch();
    error InvalidTotalMem();
    error InvalidTotalCpus();
    error NoProvider();
    error WaitingApprovalOnly();
    error Banned();
    error AlreadyDone();
}
