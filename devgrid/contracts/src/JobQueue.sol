// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

/// First in, first out, each job at most once; push, pop and removal from the middle cost the same at any length.
library JobQueue {
    struct Queue {
        bytes32 first;
        bytes32 last;
        uint256 length;
        mapping(bytes32 => bytes32) next;
        mapping(bytes32 => bytes32) previous;
    }

    function contains(Queue storage queue, bytes32 jobId) internal view returns (bool) {
        return queue.first == jobId || queue.previous[jobId] != 0;
    }

    /// A job that is in the queue keeps its place.
    function push(Queue storage queue, bytes32 jobId) internal {
        if (contains(queue, jobId)) return;
        bytes32 last = queue.last;
        if (last == 0) {
            queue.first = jobId;
        } else {
            queue.next[last] = jobId;
            queue.previous[jobId] = last;
        }
        queue.last = jobId;
        queue.length++;
    }

    /// A job that is not in the queue is no error.
    function remove(Queue storage queue, bytes32 jobId) internal {
        if (!contains(queue, jobId)) return;
        bytes32 previous = queue.previous[jobId];
        bytes32 next = queue.next[jobId];
        if (previous == 0) queue.first = next;
        else queue.next[previous] = next;
        if (next == 0) queue.last = previous;
        else queue.previous[next] = previous;
        delete queue.next[jobId];
        delete queue.previous[jobId];
        queue.length--;
    }
}
