"""The queue push consumer: `core` is its life, `parts` what it is made of by its `options`.

`rebalance` takes queues and gives them up, in the rounds of `rebalance_rounds`. `pull_requests` is the loop of pulls,
`pull_service` handles their answers, and `pull_loop` has what all consumers of an event loop share.
"""
