"""The departures from New York around the blizzard of February 2013, through a broker.

    python -m examples.flights          7 to 9 February, 2,546 flights, under a minute
    python -m examples.flights --all    the whole year, 336,776 flights
    python -m examples.flights --serve  as the first, and then the console on these flights, until Ctrl-C

Every figure on the screen is read from the database that the server keeps in `demo-out/`. So are two pictures there:
`flight.svg`, the life of a flight that failed, and `states.svg`, the states of all flights over time.
"""
