"""What several workflows make of the contract's logs and receipts."""
