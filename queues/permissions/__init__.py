"""Who may do what: addresses, what protocols may do with them, sessions by API key, wrong keys."""
