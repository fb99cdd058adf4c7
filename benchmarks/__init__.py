"""What PopMQ costs, measured: `python -m benchmarks [case …] [--quick]`, or `make bench`.

Every figure stands beside its ceiling, taken in the same run and in turns with it: the product's own server with the
store replaced by nothing (`noop_server`), and the database's own insert rate for the same rows (`raw_insert`). On a
machine that is shared and noisy only such ratios say something; absolute rates are those of the machine of that day.
"""
