"""The network kit of every protocol: addresses, TLS, limits, listeners, connections and processes."""
