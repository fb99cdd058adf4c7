"""PopMQ beside other brokers: `make bench ARGS=peers`.

One module per peer has all that is known of it: how it is installed and started so that an answered send is on the
disk, and the client that drives it (`peer.py` has their types). `loads.py` has the workloads, `load.py` the process
that runs them, `tools.py` installs what is needed in `bench-out/peers`, `pages.py` writes the results into the
documentation.
"""
