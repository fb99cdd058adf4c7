"""All gRPC services: the methods of each, and the server that has them."""
