"""The common parts of the TCP protocols' clients: the interface of a protocol core, TLS, drivers and errors."""
