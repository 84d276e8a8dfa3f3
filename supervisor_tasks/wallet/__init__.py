"""Our own transactions: gas, fees, nonces and signatures."""
