"""What a move is about and how far it is. It is kept in a file, so each command goes on where the last one ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from popclient.errors import PopError
from popclient.mirror.records import lock, replace_file
from popclient.mirror.sides import Address, OtherPorts

VERSION: Final = 1


class Stage(StrEnum):
    PLANNED = "PLANNED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"


@dataclass(slots=True)
class MovedTopic:
    """A topic, and how far its move is.

    in_order: it has message groups. is_closed: the old side refuses its producers. Only for a topic in order:
    is_switched: the new side takes producers; stored_there: how many messages it had stored before; finished: the
    groups that have nothing left at the old side, and get the topic at the new one.
    """

    name: str
    in_order: bool
    is_closed: bool = False
    is_switched: bool = False
    stored_there: int | None = None
    finished: list[str] = field(default_factory=list)

    def turn(self, groups: list[str]) -> None:
        """As it is for the move in the other direction. All groups have finished a topic that was switched."""
        was_switched = self.is_switched
        self.stored_there = None
        self.is_closed = self.is_switched = self.in_order and not was_switched
        self.finished = list(groups) if self.is_switched else []


@dataclass(slots=True)
class Move:
    """A move.

    imported: by group, how many messages of mirrors the new side had got before. is_turning: it will go back, and the
    topics are being prepared for that; is_turned: it goes back, so old and new have changed places.
    """

    move_id: str
    old: Address
    new: Address
    namespace: str
    reader: str
    topics: list[MovedTopic]
    groups: list[str]
    stage: Stage = Stage.PLANNED
    is_turning: bool = False
    is_turned: bool = False
    imported: dict[str, int] = field(default_factory=dict)

    @property
    def in_order(self) -> list[MovedTopic]:
        return [each for each in self.topics if each.in_order]

    @property
    def plain(self) -> list[MovedTopic]:
        return [each for each in self.topics if not each.in_order]

    def is_finished_elsewhere(self, group: str, topic: MovedTopic) -> bool:
        """Whether the group has finished every other topic in order at the old side."""
        return all(group in each.finished for each in self.in_order if each is not topic)

    def turn(self) -> None:
        """From now on it moves back: to the side that was the old one."""
        self.old, self.new = self.new, self.old
        self.is_turning, self.is_turned = False, True
        self.imported = {}
        for each in self.topics:
            each.turn(self.groups)


def _address(written: list[Any]) -> Address:
    endpoint, ports, *user = written
    return Address(endpoint, OtherPorts(*ports), *user)


class MoveFile:
    """The file of a move."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Move:
        """Raises PopError."""
        try:
            document = json.loads(self.path.read_text())
            if document.pop("version") != VERSION:
                raise PopError(f"{self.path} was written by another version of popmq; use that one to end the move")
            topics = [MovedTopic(**each) for each in document.pop("topics")]
            old, new = _address(document.pop("old")), _address(document.pop("new"))
            return Move(old=old, new=new, topics=topics, stage=Stage(document.pop("stage")), **document)
        except FileNotFoundError:
            raise PopError(f"{self.path} does not exist; plan the move first with: popmq move plan") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
            raise PopError(f"{self.path} is no file of a move ({failure}); name another --file") from None

    def save(self, move: Move) -> None:
        document: dict[str, Any] = {"version": VERSION, **asdict(move)}
        replace_file(self.path, document)

    @contextmanager
    def held(self) -> Iterator[None]:
        """No other process runs this move meanwhile. Raises PopError if one does."""
        try:
            held = lock(self.path)
        except BlockingIOError:
            raise PopError(
                f"another command runs the move of {self.path}; end it first (Ctrl-C, SIGTERM): nothing is lost, and"
                " this one goes on where it ended"
            ) from None
        except OSError as failure:
            raise PopError(f"{self.path} cannot be locked: {failure.strerror}; name another --file") from None
        with held:
            yield
