// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {IAccessControl} from "../src/AccessControl.sol";
import {Grid} from "./Grid.sol";

/// Roles and owners. Only a change of a role is an event; the signatures are OpenZeppelin's.
contract RolesTest is Grid {
    bytes32 constant ROLE = keccak256("METASCHEDULER_ROLE");

    function test_grant__gives_the_role() external {
        grid.grantRole(ROLE, address(other));
        require(grid.hasRole(ROLE, address(other)), "has it");
        grid.grantRole(ROLE, address(other));
        require(grid.hasRole(ROLE, address(other)), "has it still");
    }

    function test_revoke__takes_it() external {
        grid.revokeRole(ROLE, address(scheduler));
        require(!grid.hasRole(ROLE, address(scheduler)), "has it no more");
    }

    function test_renounce__is_for_oneself_alone() external {
        bytes memory call = abi.encodeCall(grid.renounceRole, (ROLE, address(scheduler)));
        fails(other, call, abi.encodeWithSignature("Error(string)", "AccessControl: can only renounce roles for self"));
        does(scheduler, call);
        require(!grid.hasRole(ROLE, address(scheduler)), "has it no more");
    }

    function test_interface__is_openzeppelins() external view {
        require(type(IAccessControl).interfaceId == 0x7965db0b, "IAccessControl");
        require(grid.supportsInterface(0x7965db0b), "supported");
    }

    function test_transferOwnership__the_new_owner_alone_may() external {
        constants.transferOwnership(address(other));
        require(constants.owner() == address(other), "is the owner");
        bytes memory call = abi.encodeCall(constants.setMinimumAmount, (7));
        (bool ok,) = address(constants).call(call);
        require(!ok, "the former owner may no more");
        (ok,) = other.attempt(address(constants), call);
        require(ok && constants.minimumAmount() == 7, "the new one may");
    }

    function test_transferOwnership__by_another_or_to_none__is_refused() external {
        bytes memory notOwner = abi.encodeWithSignature("Error(string)", "Ownable: caller is not the owner");
        failsAt(
            address(constants), other, abi.encodeCall(constants.transferOwnership, (address(other))), notOwner
        );
        failsAt(address(constants), other, abi.encodeCall(constants.renounceOwnership, ()), notOwner);
        (bool ok, bytes memory reason) =
            address(constants).call(abi.encodeCall(constants.transferOwnership, (address(0))));
        bytes memory zero = abi.encodeWithSignature("Error(string)", "Ownable: new owner is the zero address");
        require(!ok && keccak256(reason) == keccak256(zero), "the zero address");
    }

    function test_renounceOwnership__no_account_may() external {
        constants.renounceOwnership();
        require(constants.owner() == address(0), "no owner");
        (bool ok,) = address(constants).call(abi.encodeCall(constants.setMinimumAmount, (7)));
        require(!ok, "nor the deployer");
    }
}
