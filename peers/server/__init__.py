"""Peerbus in a web server: the ASGI application, the Channels consumer and the faster path under daphne."""
