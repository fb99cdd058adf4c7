"""What PopMQ costs, measured: `python -m benchmarks [case …] [--quick]`, or `make bench`.

Each figure is compared with its upper bounds, which are measured in turns with it in the same run: the product's own
server without a database (`noop_server`), and the database's own insert rate for the same rows (`raw_insert`). On a
shared, noisy machine only such ratios mean something; absolute rates are valid only for that machine on that day.
"""
