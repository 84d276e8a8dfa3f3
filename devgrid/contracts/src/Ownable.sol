// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

/// One owner: at first the deployer, until it hands the contract over or gives it up. Signatures, event and reasons are
/// OpenZeppelin's (4.x).
abstract contract Ownable {
    address public owner;

    event OwnershipTransferred(address indexed previousOwner, address indexed newOwner);

    modifier onlyOwner() {
        require(msg.sender == owner, "Ownable: caller is not the owner");
        _;
    }

    constructor() {
        _transfer(msg.sender);
    }

    /// Without an owner, no account can call what is onlyOwner.
    function renounceOwnership() external onlyOwner {
        _transfer(address(0));
    }

    function transferOwnership(address newOwner) external onlyOwner {
        require(newOwner != address(0), "Ownable: new owner is the zero address");
        _transfer(newOwner);
    }

    function _transfer(address newOwner) private {
        emit OwnershipTransferred(owner, newOwner);
        owner = newOwner;
    }
}
