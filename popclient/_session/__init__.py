"""A client's connection to its server: transport, TLS, session, routes, batches, and conversion to the wire."""

from popclient import _forks

_forks.load_grpc()  # here, because every module that uses it is loaded after this one
