// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {Errors} from "./Errors.sol";
import {Ownable} from "./Ownable.sol";

/// The numbers that the grid's owner may tune. cancellationFeeMinute and billDurationDeltaMinute are the grid's to
/// publish; these contracts charge no cancellation fee and do not compare the minutes with the chain's clock.
contract Constants is Ownable, Errors {
    uint256 public constant WHOLE = 10_000;

    /// The least that a job must lock, credits x 1e18.
    uint256 public minimumAmount = 1;
    /// The platform's part of each bill, in hundredths of a percent: WHOLE is all of it.
    uint256 public deepsquareCut = 0;
    uint256 public cancellationFeeMinute = 0;
    uint256 public billDurationDeltaMinute = 0;
    /// Blocks that a job may stay META_SCHEDULED or SCHEDULED before anyone may time it out.
    uint64 public claimJobTimeout = 86_400;
    /// Minutes that one delegated top-up adds.
    uint64 public topUpSliceDurationMin = 5;

    function setMinimumAmount(uint256 value) external onlyOwner {
        minimumAmount = value;
    }

    function setDeepsquareCut(uint256 value) external onlyOwner {
        if (value > WHOLE) revert OutOfBounds();
        deepsquareCut = value;
    }

    function setCancellationFeeMinute(uint256 value) external onlyOwner {
        cancellationFeeMinute = value;
    }

    function setBillDurationDeltaMinute(uint256 value) external onlyOwner {
        billDurationDeltaMinute = value;
    }

    function setClaimJobTimeout(uint64 value) external onlyOwner {
        claimJobTimeout = value;
    }

    function setTopUpSliceDurationMin(uint64 value) external onlyOwner {
        topUpSliceDurationMin = value;
    }
}
