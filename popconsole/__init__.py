"""The console: pages for the people who run a PopMQ server. It asks the server by the same calls as `popmq`.

`popmq console` runs it beside any server; `popconsole.app.app(…)` is a Starlette application to mount elsewhere.
Nothing is imported here, because every `popmq` command imports this package for its options.
"""
