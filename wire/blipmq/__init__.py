"""BlipMQ v1: publish and subscribe over length-prefixed frames (docs/protocols/blipmq.md)."""
