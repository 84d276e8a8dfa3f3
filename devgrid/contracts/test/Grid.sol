// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {Constants} from "../src/Constants.sol";
import {Credit} from "../src/Credit.sol";
import {JobRepository} from "../src/JobRepository.sol";
import {MetaScheduler} from "../src/MetaScheduler.sol";
import {ProviderJobQueues} from "../src/ProviderJobQueues.sol";
import {ProviderManager} from "../src/ProviderManager.sol";
import {
    Affinity, Job, JobDefinition, JobStatus, Label, ProviderHardware, ProviderPrices
} from "../src/Types.sol";

/// Someone with an address of their own.
contract Actor {
    function attempt(address to, bytes calldata data) external returns (bool, bytes memory) {
        return to.call(data);
    }
}

/// A grid of its own with a customer, a provider and a meta-scheduler. Each test is one call of a function test_*,
/// whose changes are not kept.
abstract contract Grid {
    // Of one minute of `definition()`: 2 GPUs, 3 x 4 CPUs, 12 x 100 MB.
    uint256 constant PRICE = 2 * 1000 + 12 * 10 + 1200 * 1;
    uint256 constant WEALTH = 1_000_000;

    Credit credit = new Credit();
    Constants constants = new Constants();
    JobRepository jobs = new JobRepository();
    ProviderJobQueues queues = new ProviderJobQueues();
    ProviderManager manager = new ProviderManager();
    MetaScheduler grid = new MetaScheduler(jobs, queues, manager, credit, constants);
    Actor customer = new Actor();
    Actor provider = new Actor();
    Actor other = new Actor();
    Actor scheduler = new Actor();

    constructor() {
        bytes32 role = grid.METASCHEDULER_ROLE();
        jobs.grantRole(role, address(grid));
        queues.grantRole(role, address(grid));
        manager.grantRole(role, address(grid));
        grid.grantRole(role, address(scheduler));
        credit.mint(address(customer), WEALTH);
        _to(customer, address(credit), abi.encodeCall(credit.approve, (address(grid), WEALTH)));
        _join(provider);
    }

    // --- what the parties do ---

    function request(uint256 locked) internal returns (bytes32) {
        return request(locked, false);
    }

    function request(uint256 locked, bool delegate) internal returns (bytes32) {
        bytes memory call = abi.encodeCall(grid.requestNewJob, (definition(), locked, "name", delegate));
        return abi.decode(does(customer, call), (bytes32));
    }

    function metaScheduled(uint256 locked) internal returns (bytes32 jobId) {
        jobId = request(locked);
        assign(jobId, provider);
    }

    function scheduled(uint256 locked) internal returns (bytes32 jobId) {
        jobId = metaScheduled(locked);
        claim(provider);
    }

    function running(uint256 locked) internal returns (bytes32 jobId) {
        jobId = scheduled(locked);
        does(provider, status(jobId, JobStatus.RUNNING, 0));
    }

    function assign(bytes32 jobId, Actor to) internal {
        does(scheduler, abi.encodeCall(grid.metaSchedule, (jobId, address(to))));
    }

    function claim(Actor by) internal {
        does(by, abi.encodeCall(grid.claimNextJob, ()));
    }

    function status(bytes32 jobId, JobStatus next, uint64 minutesUsed) internal view returns (bytes memory) {
        return abi.encodeCall(grid.providerSetJobStatus, (jobId, next, minutesUsed, "", 0));
    }

    function cancel(bytes32 jobId) internal view returns (bytes memory) {
        return abi.encodeCall(grid.cancelJob, (jobId));
    }

    function refuse(bytes32 jobId) internal view returns (bytes memory) {
        return abi.encodeCall(grid.refuseJob, (jobId));
    }

    function topUp(bytes32 jobId, uint256 amount) internal view returns (bytes memory) {
        return abi.encodeCall(grid.topUpJob, (jobId, amount));
    }

    function definition() internal pure returns (JobDefinition memory wanted) {
        wanted.gpus = 2;
        wanted.memPerCpu = 100;
        wanted.cpusPerTask = 4;
        wanted.ntasks = 3;
        wanted.batchLocationHash = "a hash";
        wanted.uses = new Label[](1);
        wanted.uses[0] = Label("network", "wireguard");
        wanted.affinity = new Affinity[](1);
        wanted.affinity[0] = Affinity(Label("os", "linux"), "==");
    }

    function hardware(uint64 nodes, uint256 length) internal pure returns (ProviderHardware memory) {
        uint64[] memory each = new uint64[](length);
        for (uint256 i = 0; i < length; i++) {
            each[i] = uint64(i + 1);
        }
        return ProviderHardware(nodes, each, each, each);
    }

    function registration(ProviderHardware memory has) internal view returns (bytes memory) {
        Label[] memory labels = new Label[](1);
        labels[0] = Label("zone", "here");
        return abi.encodeCall(manager.register, (has, ProviderPrices(1000, 10, 1), labels));
    }

    function _join(Actor actor) internal {
        _to(actor, address(manager), registration(hardware(2, 2)));
        manager.approve(address(actor));
    }

    // --- what must be so ---

    function does(Actor actor, bytes memory data) internal returns (bytes memory) {
        return _to(actor, address(grid), data);
    }

    function fails(Actor actor, bytes memory data, bytes memory reason) internal {
        failsAt(address(grid), actor, data, reason);
    }

    function failsAt(address to, Actor actor, bytes memory data, bytes memory reason) internal {
        (bool ok, bytes memory found) = actor.attempt(to, data);
        require(!ok, "it did not fail");
        if (keccak256(found) != keccak256(reason)) _raise(found);
    }

    function isStatus(bytes32 jobId, JobStatus expected) internal view {
        equal(uint256(jobs.get(jobId).status), uint256(expected), "status");
    }

    function owns(address who, uint256 expected, string memory what) internal view {
        equal(credit.balanceOf(who), expected, what);
    }

    function equal(uint256 found, uint256 expected, string memory what) internal pure {
        require(found == expected, string.concat(what, ": found ", _text(found), ", expected ", _text(expected)));
    }

    function _to(Actor actor, address to, bytes memory data) private returns (bytes memory) {
        (bool ok, bytes memory answer) = actor.attempt(to, data);
        if (!ok) _raise(answer);
        return answer;
    }

    function _raise(bytes memory reason) private pure {
        assembly {
            revert(add(reason, 32), mload(reason))
        }
    }

    function _text(uint256 value) private pure returns (string memory) {
        if (value < 10) return string(abi.encodePacked(uint8(48 + value)));
        return string.concat(_text(value / 10), _text(value % 10));
    }
}
