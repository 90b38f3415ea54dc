//! Shared ground: clocks, TLS, logging, metrics, shutdown, and the small HTTPS server of every component.
