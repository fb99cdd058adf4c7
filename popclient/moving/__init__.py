"""Moves topics and their groups from one server to another while producers and consumers run: `popmq move`.

Topics without message groups: mirrors hand over what a group has not done, and producers and consumers may change sides
at any time. Topics with message groups: producers change sides at one moment, the old side refuses them from then on,
and a group gets nothing at the new side until its consumers have finished the old one. So their order is kept.
"""
