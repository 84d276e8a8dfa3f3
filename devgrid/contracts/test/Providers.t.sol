// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {Errors} from "../src/Errors.sol";
import {Provider, ProviderHardware} from "../src/Types.sol";
import {Actor, Grid} from "./Grid.sol";

/// Registration, approval, removal and banning of providers.
contract ProvidersTest is Grid {
    function _refused(ProviderHardware memory has, bytes4 reason) private {
        failsAt(address(manager), other, registration(has), abi.encodePacked(reason));
    }

    function _isUnknown(Provider memory found) private pure {
        Provider memory zero;
        require(keccak256(abi.encode(found)) == keccak256(abi.encode(zero)), "not all zero");
    }

    function test_register__waits_for_approval() external {
        other.attempt(address(manager), registration(hardware(3, 3)));
        require(manager.isWaitingForApproval(address(other)), "waiting");
        require(!manager.isValidForScheduling(address(other)), "not yet valid");
        equal(manager.getWaitingForApprovalProvider(address(other)).providerHardware.nodes, 3, "nodes");
        _isUnknown(manager.getProvider(address(other)));
    }

    function test_unknown__is_all_zero() external {
        _isUnknown(manager.getProvider(address(other)));
        _isUnknown(manager.getWaitingForApprovalProvider(address(other)));
        _isUnknown(manager.getWaitingForApprovalProvider(address(provider)));
        manager.remove(address(provider));
        _isUnknown(manager.getProvider(address(provider)));
        bytes memory none = abi.encodeWithSelector(Errors.NoProvider.selector);
        failsAt(address(manager), customer, abi.encodeCall(manager.getProviderPrices, (address(other))), none);
    }

    function test_approve__puts_the_registration_in_force() external {
        other.attempt(address(manager), registration(hardware(3, 3)));
        manager.approve(address(other));
        Provider memory found = manager.getProvider(address(other));
        require(found.addr == address(other) && !found.isBanned, "provider");
        equal(found.providerHardware.memPerNode[2], 3, "memory");
        equal(found.providerPrices.cpuPricePerMin, 10, "price");
        require(keccak256(bytes(found.labels[0].value)) == keccak256("here"), "label");
        require(manager.isValidForScheduling(address(other)), "valid");
        require(!manager.isWaitingForApproval(address(other)), "waits no more");
        equal(manager.getLabels(address(other)).length, 1, "getLabels");
        equal(manager.getProviderHardware(address(other)).nodes, 3, "getProviderHardware");
    }

    function test_approve__without_a_registration_or_the_right__is_refused() external {
        bytes memory call = abi.encodeCall(manager.approve, (address(other)));
        (bool ok, bytes memory reason) = address(manager).call(call);
        require(!ok && bytes4(reason) == Errors.WaitingApprovalOnly.selector, "WaitingApprovalOnly");
        bytes memory right = abi.encodeWithSignature("Error(string)", "AccessControl: caller is missing the role");
        failsAt(address(manager), provider, call, right);
    }

    function test_register_again__the_old_one_stays_in_force_until_approval() external {
        provider.attempt(address(manager), registration(hardware(5, 5)));
        require(manager.isValidForScheduling(address(provider)), "still valid");
        equal(manager.getProviderHardware(address(provider)).nodes, 2, "the old one");
        provider.attempt(address(manager), registration(hardware(6, 6)));
        manager.approve(address(provider));
        equal(manager.getProviderHardware(address(provider)).nodes, 6, "the newest one");
        equal(manager.getLabels(address(provider)).length, 1, "labels are not piled up");
    }

    function test_register__hardware_that_does_not_add_up__is_refused() external {
        _refused(hardware(0, 0), Errors.InvalidNodesCount.selector);
        _refused(hardware(3, 2), Errors.ArrayLengthMismatch.selector);
        ProviderHardware memory has = hardware(2, 2);
        has.memPerNode = new uint64[](2);
        _refused(has, Errors.InvalidTotalMem.selector);
        has = hardware(2, 2);
        has.cpusPerNode = new uint64[](2);
        _refused(has, Errors.InvalidTotalCpus.selector);
    }

    function test_remove__ends_it() external {
        manager.remove(address(provider));
        require(!manager.isValidForScheduling(address(provider)), "not valid");
        (bool ok, bytes memory reason) = address(manager).call(abi.encodeCall(manager.remove, (address(provider))));
        require(!ok && bytes4(reason) == Errors.NoProvider.selector, "NoProvider");
    }

    function test_ban__keeps_a_provider_out_until_it_is_lifted() external {
        manager.ban(address(provider));
        require(manager.isBanned(address(provider)) && manager.getProvider(address(provider)).isBanned, "banned");
        require(!manager.isValidForScheduling(address(provider)), "not valid");
        bytes memory banned = abi.encodeWithSelector(Errors.Banned.selector);
        failsAt(address(manager), provider, registration(hardware(2, 2)), banned);
        (bool ok, bytes memory reason) = address(manager).call(abi.encodeCall(manager.ban, (address(provider))));
        require(!ok && bytes4(reason) == Errors.AlreadyDone.selector, "AlreadyDone");
        manager.unban(address(provider));
        require(manager.isValidForScheduling(address(provider)), "valid again");
    }
}
