// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {Errors} from "../src/Errors.sol";
import {JobStatus, ProviderPrices, Label} from "../src/Types.sol";
import {Grid} from "./Grid.sol";

/// Who pays what to whom. Credits are never lost: what the customer does not pay comes back.
contract BillingTest is Grid {
    function _paid(uint256 customerPaid, uint256 providerEarned, uint256 contractEarned) private view {
        owns(address(customer), WEALTH - customerPaid, "customer");
        owns(address(provider), providerEarned, "provider");
        owns(address(grid), contractEarned, "left in the contract");
    }

    function test_request__locks_the_credits() external {
        request(5000);
        owns(address(customer), WEALTH - 5000, "customer");
        owns(address(grid), 5000, "contract");
    }

    function test_request__without_the_funds__is_refused() external {
        bytes memory call = abi.encodeCall(grid.requestNewJob, (definition(), WEALTH + 1, "", false));
        fails(customer, call, abi.encodeWithSelector(Errors.InsufficientFunds.selector, WEALTH, WEALTH + 1));
        call = abi.encodeCall(grid.requestNewJob, (definition(), 0, "", false));
        fails(customer, call, abi.encodeWithSelector(Errors.InsufficientFunds.selector, 0, 1));
        call = abi.encodeCall(grid.requestNewJob, (definition(), 9, "", false));
        fails(other, call, abi.encodeWithSelector(Errors.InsufficientFunds.selector, 0, 9));
    }

    function test_finished__bills_the_minutes_and_gives_back_the_rest() external {
        bytes32 jobId = running(10 * PRICE);
        does(provider, status(jobId, JobStatus.FINISHED, 7));
        equal(jobs.get(jobId).cost.finalCost, 7 * PRICE, "finalCost");
        _paid(7 * PRICE, 7 * PRICE, 0);
    }

    function test_other_ends__bill_the_minutes_too() external {
        does(provider, status(running(10 * PRICE), JobStatus.FAILED, 1));
        does(provider, status(running(10 * PRICE), JobStatus.OUT_OF_CREDITS, 10));
        does(provider, status(running(10 * PRICE), JobStatus.CANCELLED, 3));
        _paid(14 * PRICE, 14 * PRICE, 0);
    }

    function test_zero_minutes__cost_nothing() external {
        does(provider, status(running(10 * PRICE), JobStatus.FINISHED, 0));
        _paid(0, 0, 0);
    }

    function test_too_many_minutes__bill_what_was_locked() external {
        does(provider, status(running(10 * PRICE + 5), JobStatus.FINISHED, 11));
        _paid(10 * PRICE + 5, 10 * PRICE + 5, 0);
        does(provider, status(running(PRICE), JobStatus.FINISHED, type(uint64).max));
        _paid(11 * PRICE + 5, 11 * PRICE + 5, 0);
    }

    function test_cancelled_before_the_claim__costs_nothing() external {
        does(customer, cancel(request(5000)));
        does(customer, cancel(metaScheduled(5000)));
        _paid(0, 0, 0);
    }

    function test_panicked__by_any_caller__costs_nothing() external {
        does(provider, status(running(5000), JobStatus.PANICKED, 1));
        does(scheduler, abi.encodeCall(grid.panicJob, (running(5000), "lost")));
        _paid(0, 0, 0);
    }

    function test_refused__keeps_the_credits_locked_and_pays_no_account() external {
        does(provider, refuse(scheduled(5000)));
        owns(address(provider), 0, "provider");
        owns(address(grid), 5000, "contract");
    }

    function test_cut__is_earned_and_taken_out_by_the_owner() external {
        constants.setDeepsquareCut(250);
        does(provider, status(running(10 * PRICE), JobStatus.FINISHED, 10));
        uint256 cut = 10 * PRICE * 250 / 10_000;
        _paid(10 * PRICE, 10 * PRICE - cut, cut);
        grid.withdrawAdmin(cut - 1);
        owns(address(this), cut - 1, "owner");
        owns(address(grid), 1, "left in the contract");
        grid.withdrawAdmin(1);
        _paid(10 * PRICE, 10 * PRICE - cut, 0);
    }

    function test_withdraw__what_was_taken_out_already__is_refused() external {
        constants.setDeepsquareCut(250);
        does(provider, status(running(10 * PRICE), JobStatus.FINISHED, 10));
        request(5000);
        uint256 cut = 10 * PRICE * 250 / 10_000;
        grid.withdrawAdmin(cut);
        (bool ok, bytes memory found) = address(grid).call(abi.encodeCall(grid.withdrawAdmin, (1)));
        bytes memory reason = abi.encodeWithSelector(Errors.InsufficientFunds.selector, 0, 1);
        require(!ok && keccak256(found) == keccak256(reason), "InsufficientFunds");
        owns(address(grid), 5000, "contract");
    }

    function test_withdraw__of_what_customers_have_locked__is_refused() external {
        request(5000);
        (bool ok, bytes memory found) = address(grid).call(abi.encodeCall(grid.withdrawAdmin, (1)));
        bytes memory reason = abi.encodeWithSelector(Errors.InsufficientFunds.selector, 0, 1);
        require(!ok && keccak256(found) == keccak256(reason), "InsufficientFunds");
        owns(address(grid), 5000, "contract");
    }

    function test_withdraw__by_another__is_refused() external {
        bytes memory right = abi.encodeWithSignature("Error(string)", "AccessControl: caller is missing the role");
        fails(provider, abi.encodeCall(grid.withdrawAdmin, (0)), right);
    }

    function test_cut__of_more_than_all__is_out_of_bounds() external {
        (bool ok, bytes memory reason) =
            address(constants).call(abi.encodeCall(constants.setDeepsquareCut, (10_001)));
        require(!ok && bytes4(reason) == Errors.OutOfBounds.selector, "OutOfBounds");
        failsAt(
            address(constants),
            other,
            abi.encodeCall(constants.setDeepsquareCut, (1)),
            abi.encodeWithSignature("Error(string)", "Ownable: caller is not the owner")
        );
    }

    function test_price__is_that_of_the_assignment() external {
        bytes32 jobId = running(10 * PRICE);
        bytes memory dearer =
            abi.encodeCall(manager.register, (hardware(1, 1), ProviderPrices(9999, 9999, 9999), new Label[](0)));
        provider.attempt(address(manager), dearer);
        manager.approve(address(provider));
        equal(manager.getProviderPrices(address(provider)).gpuPricePerMin, 9999, "the new price");
        does(provider, status(jobId, JobStatus.FINISHED, 2));
        _paid(2 * PRICE, 2 * PRICE, 0);
    }

    function test_top_up__of_a_running_job__is_locked_announced_and_billed() external {
        bytes32 jobId = running(2 * PRICE + 1);
        does(customer, topUp(jobId, 3 * PRICE));
        owns(address(grid), 5 * PRICE + 1, "locked");
        equal(jobs.get(jobId).cost.pendingTopUp, 3 * PRICE, "pendingTopUp");
        does(customer, topUp(jobId, PRICE));
        equal(queues.getTopUpJobQueueSize(address(provider)), 1, "once in the queue");
        does(provider, abi.encodeCall(grid.claimNextTopUpJob, ()));
        equal(jobs.get(jobId).cost.pendingTopUp, 0, "announced");
        require(!queues.hasTopUpJob(address(provider)), "off the queue");
        does(provider, status(jobId, JobStatus.FINISHED, 6));
        _paid(6 * PRICE, 6 * PRICE, 0);
    }

    function test_top_up__of_less_than_a_minute__waits_until_it_makes_one() external {
        bytes32 jobId = scheduled(2 * PRICE);
        does(customer, topUp(jobId, PRICE - 1));
        require(!queues.hasTopUpJob(address(provider)), "not a minute yet");
        does(customer, topUp(jobId, 1));
        require(queues.hasTopUpJob(address(provider)), "a minute");
    }

    function test_top_up__before_the_claim__needs_no_announcement() external {
        bytes32 jobId = metaScheduled(2 * PRICE);
        does(customer, topUp(jobId, PRICE));
        equal(jobs.get(jobId).cost.maxCost, 3 * PRICE, "maxCost");
        equal(jobs.get(jobId).cost.pendingTopUp, 0, "pendingTopUp");
        require(!queues.hasTopUpJob(address(provider)), "no announcement");
    }

    function test_top_up__of_an_ended_job__is_off_the_queue() external {
        bytes32 jobId = running(2 * PRICE);
        does(customer, topUp(jobId, PRICE));
        does(provider, status(jobId, JobStatus.FINISHED, 1));
        require(!queues.hasTopUpJob(address(provider)), "off the queue");
        _paid(PRICE, PRICE, 0);
    }

    function test_top_up__by_another__is_refused() external {
        bytes32 jobId = running(2 * PRICE);
        bytes memory reason = abi.encodeWithSelector(Errors.CustomerOnly.selector, address(other), address(customer));
        fails(other, topUp(jobId, PRICE), reason);
        fails(other, abi.encodeCall(grid.setDelegateSpendingAuthority, (jobId, true)), reason);
    }

    function test_delegate_top_up__adds_a_slice_when_little_is_left() external {
        bytes32 jobId = running(5 * PRICE);
        bytes memory call = abi.encodeCall(grid.topUpJobDelegate, (jobId));
        fails(scheduler, call, abi.encodeWithSelector(Errors.NoSpendingAuthority.selector));
        does(customer, abi.encodeCall(grid.setDelegateSpendingAuthority, (jobId, true)));
        does(scheduler, call);
        equal(jobs.get(jobId).cost.maxCost, 10 * PRICE, "maxCost");
        require(queues.hasTopUpJob(address(provider)), "announced");
        fails(scheduler, call, abi.encodeWithSelector(Errors.RemainingTimeAboveLimit.selector, 10, 5));
        fails(customer, call, abi.encodeWithSignature("Error(string)", "AccessControl: caller is missing the role"));
    }

    function test_delegate_top_up__of_an_unclaimed_job__is_refused() external {
        bytes32 jobId = request(5 * PRICE, true);
        bytes memory call = abi.encodeCall(grid.topUpJobDelegate, (jobId));
        fails(scheduler, call, abi.encodeWithSelector(Errors.RunningScheduledStatusOnly.selector, JobStatus.PENDING));
    }
}
