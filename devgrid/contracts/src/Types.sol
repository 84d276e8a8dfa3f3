// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

// What the grid's contracts speak of. The order of fields and of enum values is the ABI.

struct Label {
    string key;
    string value;
}

struct Affinity {
    Label label;
    bytes2 op; // "<", "<=", "=", "==", ">", ">=", "in", padded with zeros
}

/// gpus is per job; memPerCpu in MB; storageType is for the parties off chain, no contract reads it.
struct JobDefinition {
    uint64 gpus;
    uint64 memPerCpu;
    uint64 cpusPerTask;
    uint64 ntasks;
    string batchLocationHash;
    uint8 storageType;
    Label[] uses;
    Affinity[] affinity;
}

/// Credits x 1e18. pendingTopUp is what was added and not yet announced to the provider.
struct JobCost {
    uint256 maxCost;
    uint256 finalCost;
    uint256 pendingTopUp;
    bool delegateSpendingAuthority;
}

/// Seconds since the epoch, except blockNumberStateChange.
struct JobTime {
    uint256 submit;
    uint256 start;
    uint256 end;
    uint256 cancelRequestTimestamp;
    uint256 blockNumberStateChange;
    uint256 panicTimestamp;
}

enum JobStatus {
    PENDING,
    META_SCHEDULED,
    SCHEDULED,
    RUNNING,
    CANCELLED,
    FINISHED,
    FAILED,
    OUT_OF_CREDITS,
    PANICKED
}

struct Job {
    bytes32 jobId;
    JobStatus status;
    address customerAddr;
    address providerAddr;
    JobDefinition definition;
    JobCost cost;
    JobTime time;
    bytes32 jobName;
    bool hasCancelRequest;
    string lastError;
    int64 exitCode;
}

/// memPerNode in MB.
struct ProviderHardware {
    uint64 nodes;
    uint64[] gpusPerNode;
    uint64[] cpusPerNode;
    uint64[] memPerNode;
}

/// Credits x 1e18 a minute: for one GPU, one CPU, one MB.
struct ProviderPrices {
    uint256 gpuPricePerMin;
    uint256 cpuPricePerMin;
    uint256 memPricePerMin;
}

struct Provider {
    address addr;
    ProviderHardware providerHardware;
    ProviderPrices providerPrices;
    Label[] labels;
    bool isBanned;
}

/// The few facts that most decisions need, cheaper to read than a whole Job.
struct JobHead {
    JobStatus status;
    address customer;
    address provider;
    uint256 maxCost;
    uint256 pendingTopUp;
    bool hasCancelRequest;
}
