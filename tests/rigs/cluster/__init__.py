"""Torture of a Patroni cluster: three nodes with the configuration of docs/patroni, on loopback, under load."""
