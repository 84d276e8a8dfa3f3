"""The client of the chain: RPC, blocks, and the meta-scheduler's contracts."""
