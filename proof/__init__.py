"""The proof that promises are kept: harnesses that run the real code under faults, each shown to find planted ones.

`make proof` runs all of them at the bars of CI; `docs/promises.md` says what each shows, with its totals.
"""
