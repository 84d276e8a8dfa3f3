// SPDX-License-Identifier: UNLICENSED
pragma solidity ^0.8.20;

/// One owner, who deployed the contract.
abstract contract Ownable {
    address public immutable owner;

    modifier onlyOwner() {
        require(msg.sender == owner, "Ownable: caller is not the owner");
        _;
    }

    constructor() {
        owner = msg.sender;
    }
}
