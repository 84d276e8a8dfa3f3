// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {AccessControl} from "./AccessControl.sol";
import {Errors} from "./Errors.sol";
import {Label, Provider, ProviderHardware, ProviderPrices} from "./Types.sol";

/// Who sells what at which price. A provider registers; the grid's administrator approves. Registering again waits for
/// approval again, and the approved registration stays in force meanwhile.
contract ProviderManager is AccessControl, Errors {
    struct Registration {
        bool waiting;
        bool joined;
        bool banned;
        uint64 jobCount;
    }

    mapping(address => Registration) private _registrations;
    mapping(address => Provider) private _waiting;
    mapping(address => Provider) private _joined;

    event ProviderWaitingForApproval(address addr);
    event ProviderApproved(address addr);
    event ProviderRemoved(address addr);
    event ProviderBanChanged(address addr, bool status);

    function register(ProviderHardware memory hardware, ProviderPrices memory prices, Label[] memory labels) external {
        if (_registrations[msg.sender].banned) revert Banned();
        _validate(hardware);
        Provider storage provider = _waiting[msg.sender];
        provider.addr = msg.sender;
        provider.providerHardware = hardware;
        provider.providerPrices = prices;
        delete provider.labels;
        for (uint256 i = 0; i < labels.length; i++) {
            provider.labels.push(labels[i]);
        }
        _registrations[msg.sender].waiting = true;
        emit ProviderWaitingForApproval(msg.sender);
    }

    function approve(address provider) external onlyRole(DEFAULT_ADMIN_ROLE) {
        Registration storage registration = _registrations[provider];
        if (!registration.waiting) revert WaitingApprovalOnly();
        _joined[provider] = _waiting[provider];
        delete _waiting[provider];
        registration.waiting = false;
        registration.joined = true;
        emit ProviderApproved(provider);
    }

    function remove(address provider) external onlyRole(DEFAULT_ADMIN_ROLE) {
        Registration storage registration = _registrations[provider];
        if (!registration.joined && !registration.waiting) revert NoProvider();
        delete _joined[provider];
        delete _waiting[provider];
        registration.joined = false;
        registration.waiting = false;
        emit ProviderRemoved(provider);
    }

    function ban(address provider) external onlyRole(DEFAULT_ADMIN_ROLE) {
        _setBan(provider, true);
    }

    function unban(address provider) external onlyRole(DEFAULT_ADMIN_ROLE) {
        _setBan(provider, false);
    }

    /// One more job was claimed. Raises ProviderNotJoined when the provider may take none.
    function countJob(address provider) external onlyRole(METASCHEDULER_ROLE) {
        if (!isValidForScheduling(provider)) revert ProviderNotJoined();
        _registrations[provider].jobCount++;
    }

    /// All zero where the provider is unknown.
    function getProvider(address provider) external view returns (Provider memory found) {
        found = _joined[provider];
        found.isBanned = _registrations[provider].banned;
    }

    /// All zero where none waits.
    function getWaitingForApprovalProvider(address provider) external view returns (Provider memory found) {
        found = _waiting[provider];
        found.isBanned = _registrations[provider].banned;
    }

    function isWaitingForApproval(address provider) external view returns (bool) {
        return _registrations[provider].waiting;
    }

    function isValidForScheduling(address provider) public view returns (bool) {
        Registration memory registration = _registrations[provider];
        return registration.joined && !registration.banned;
    }

    function isBanned(address provider) external view returns (bool) {
        return _registrations[provider].banned;
    }

    function getJobCount(address provider) external view returns (uint64) {
        return _registrations[provider].jobCount;
    }

    function getLabels(address provider) external view returns (Label[] memory) {
        return _get(provider).labels;
    }

    function getProviderHardware(address provider) external view returns (ProviderHardware memory) {
        return _get(provider).providerHardware;
    }

    function getProviderPrices(address provider) external view returns (ProviderPrices memory) {
        return _get(provider).providerPrices;
    }

    function _get(address provider) private view returns (Provider storage) {
        if (!_registrations[provider].joined) revert NoProvider();
        return _joined[provider];
    }

    function _setBan(address provider, bool status) private {
        if (_registrations[provider].banned == status) revert AlreadyDone();
        _registrations[provider].banned = status;
        emit ProviderBanChanged(provider, status);
    }

    function _validate(ProviderHardware memory hardware) private pure {
        uint256 nodes = hardware.nodes;
        if (nodes == 0) revert InvalidNodesCount();
        if (
            hardware.gpusPerNode.length != nodes || hardware.cpusPerNode.length != nodes
                || hardware.memPerNode.length != nodes
        ) revert ArrayLengthMismatch();
        if (_sum(hardware.memPerNode) == 0) revert InvalidTotalMem();
        if (_sum(hardware.cpusPerNode) == 0) revert InvalidTotalCpus();
    }

    function _sum(uint64[] memory values) private pure returns (uint256 total) {
        for (uint256 i = 0; i < values.length; i++) {
            total += values[i];
        }
    }
}
