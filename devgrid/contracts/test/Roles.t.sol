// SPDX-License-Identifier: UNLICENSED
pragma solidity ^0.8.20;

import {IAccessControl} from "../src/AccessControl.sol";
import {Grid} from "./Grid.sol";

/// Who may what. Only a change is an event; the signatures are OpenZeppelin's.
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
}
